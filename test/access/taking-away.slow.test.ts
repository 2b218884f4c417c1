/** What takes something away ends the credentials that it should, and no others: every cell of taking-away.matrix.ts. */
import { createHash, randomUUID } from 'node:crypto'
import { join } from 'node:path'
import test from 'ava'
import { ImportKind } from '../../proto/gen/auth/v1/administration_pb.js'
import type { AdministrationClient } from '../_helpers/administration.js'
import { reasonOf } from '../_helpers/administration.js'
import { done, newIdentity } from '../_helpers/backups.js'
import { runCli } from '../_helpers/cli.js'
import { createStoppedClock, stopClock } from '../_helpers/clock.js'
import { freshDatabase } from '../_helpers/database.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { startTestService } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import {
  answers,
  beginHolding,
  collectSecrets,
  confirmEmail,
  countsNow,
  day,
  emailCode,
  enroll,
  type Holding,
  holderOf,
  type Installation,
  installation,
  type Kind,
  openInstallation,
  openSessions,
  type Person,
  peopleOf,
  refusalOf,
  saveAnswer,
  send,
  signIn,
  useAll,
} from './holdings.js'
import { notes, readTakingAway } from './taking-away.matrix.js'

const mailbox = mailboxForFile()

type Refusal = string | undefined

/** An event: it happens to each person of a holding, or once. */
interface Event {
  /** What the account is; a ROLE_INSTITUTION unless it is given. */
  readonly kind?: Kind
  /** It concerns all accounts of the registry, so it has a registry of its own. */
  readonly alone?: true
  readonly each?: (at: Installation, person: Person, holding: Holding) => Promise<Refusal>
  readonly once?: (at: Installation, holding: Holding) => Promise<unknown>
  /** Returns the registry that goes on. */
  readonly replace?: (at: Installation) => Promise<Installation>
}

const newAddress = () => `${randomUUID()}@example.org`
const newPassword = () => `tartaruga ${randomUUID()}`

/** The refusal of a request of a person. */
const refusal = async (...request: Parameters<typeof send>): Promise<Refusal> => refusalOf(await send(...request))

/** An event at Administration, by the administrator of the installation. */
const administer = (
  ...works: ((api: AdministrationClient, person: Person, holding: Holding) => Promise<unknown>)[]
): Event => ({
  async each(at, person, holding) {
    for (const work of works) {
      const reason = await reasonOf(work(await at.administer(), person, holding))
      if (reason !== 'none') return reason
    }
    return undefined
  },
})

/** An event at Administration that isn't about a user. */
const administerOnce = (...works: ((api: AdministrationClient, holding: Holding) => Promise<unknown>)[]): Event => ({
  async once(at, holding) {
    for (const work of works) await work(await at.administer(), holding)
  },
})

/** A password update by a token. */
const updatePassword = (tokenOf: (person: Person, at: Installation) => string | Promise<string>): Event => ({
  async each(at, person) {
    const body = { username: person.username, newPassword: newPassword() }
    const path = '/forgotpasswords/passwordupdatebyusername'
    const refused = await refusal(at, person, path, body, await tokenOf(person, at))
    if (refused === undefined) person.password = body.newPassword
    return refused
  },
})

/** Saves answers to all questions with a session, with the password or without. */
const saveAnswers = (withPassword: boolean): Event => ({
  async each(at, person, { questions }) {
    const secret = withPassword ? person.password : undefined
    for (const question of questions) {
      const refused = refusalOf(await saveAnswer(at, person, person.pwd, question, answers.other, secret))
      if (refused !== undefined) return refused
    }
    return undefined
  },
})

/** The fields of an imported row, with names that no other user has. */
interface Row {
  readonly form?: { readonly username?: string; readonly password?: string; readonly email?: string }
  readonly organizationId?: number
}

/** An import of one row on a user, with permission to change these columns. */
const importRow = (changeAccounts: string[], rowOf: (elsewhere: number) => Row): Event => ({
  async each(at, person) {
    const api = await at.administer()
    const row = rowOf((await at.service.organization()).id)
    const sourceDigest = createHash('sha256').update(randomUUID()).digest('hex')
    const { id } = (await api.startImport({ kind: ImportKind.USERS, sourceDigest, changeAccounts })).import!
    const { rejected } = await api.importBatch({ id, users: [{ id: person.id, ...row }] })
    await api.finishImport({ id, rows: 1 })
    if (rejected[0]) return rejected[0].reason
    const { username = person.username, password = person.password } = row.form ?? {}
    Object.assign(person, { username, password })
    return undefined
  },
})

const user = ({ username }: Person) => username

const clearAnswers = (api: AdministrationClient, person: Person) => api.clearAnswers({ user: user(person) })

const moveTo =
  (organization: (holding: Holding) => string) => (api: AdministrationClient, person: Person, holding: Holding) =>
    api.setOrganization({ user: user(person), organization: organization(holding) })
const ownOrganization = ({ organization }: Holding) => `#${organization.id}`

async function moveElsewhere(api: AdministrationClient, person: Person): Promise<unknown> {
  const { organization } = await api.createOrganization({ form: { name: randomUUID() } })
  return api.setOrganization({ user: user(person), organization: `#${organization!.record!.id}` })
}

const setRole =
  (role: (person: Person, holding: Holding) => string) =>
  (api: AdministrationClient, person: Person, holding: Holding) =>
    api.setRole({ user: user(person), role: role(person, holding), confirm: user(person) })
const formerRole = (person: Person, { account, newcomer }: Holding) =>
  person === account || person === newcomer ? 'ROLE_INSTITUTION' : 'ROLE_ADMIN'

const events: Readonly<Record<string, Event>> = {
  'password updated in the session of the answers': updatePassword(({ saver }) => saver),
  'password updated in another session by password': updatePassword(({ pwd }) => pwd),
  'password updated in a session by answers': updatePassword(({ kba }) => kba),
  'password updated in a session by mailed key': updatePassword(({ otp }) => otp),
  'password updated in a session of a ROLE_ADMIN': updatePassword((_, at) => at.service.adminToken()),
  'password set at Administration': administer(async (api, person) => {
    const password = newPassword()
    await api.setPassword({ user: user(person), password })
    person.password = password
  }),

  'answers replaced with the password': saveAnswers(true),
  'answers saved by a session alone': saveAnswers(false),
  'answers cleared': administer(clearAnswers),
  'answers cleared, then the text of sign-up linked': {
    async each(at, person, { account, questions }) {
      const api = await at.administer()
      await clearAnswers(api, person)
      // The answer to the text is that of the first question; the second one is answered again.
      await reasonOf(api.linkQuestion({ text: person.question, question: `#${questions[0]}` }))
      if (person !== account) return undefined
      return refusalOf(await saveAnswer(at, person, person.pwd, questions[1]!, answers.first, person.password))
    },
  },
  'text of sign-up linked to a question': administer((api, { question }, { questions }) =>
    api.linkQuestion({ text: question, question: `#${questions[0]}` }),
  ),
  'questions retired': administerOnce(async (api, { questions }) => {
    for (const id of questions) await api.retireQuestion({ question: `#${id}` })
  }),

  'e-mail address changed by the user': {
    async each(at, person) {
      const { refusal, code } = await emailCode(at, person)
      return refusal ?? refusalOf(await confirmEmail(at, person, person.pwd, code))
    },
  },
  'e-mail address changed at Administration': administer((api, person) =>
    api.updateUser({ user: user(person), form: { email: newAddress() }, updateMask: { paths: ['email'] } }),
  ),
  'username changed by the user': {
    async each(at, person) {
      const username = randomUUID()
      const { password, pwd } = person
      const refused = await refusal(at, person, '/users/me/username', { username, password }, pwd)
      if (refused === undefined) person.username = username
      return refused
    },
  },
  'username changed at Administration': administer(async (api, person) => {
    const username = randomUUID()
    await api.updateUser({ user: user(person), form: { username }, updateMask: { paths: ['username'] } })
    person.username = username
  }),

  suspended: administer((api, person) => api.suspendUser({ user: user(person) })),
  'suspended and resumed': administer(
    (api, person) => api.suspendUser({ user: user(person) }),
    (api, person) => api.resumeUser({ user: user(person) }),
  ),
  'deactivated by the institution': {
    kind: 'client',
    async each(at, person, { institution }) {
      const token = await at.service.login(institution.username)
      return refusal(at, institution, '/users/me/members/deactivate', { username: user(person) }, token)
    },
  },
  'role changed': administer(setRole(() => 'ROLE_CLIENT')),
  'role changed and changed back': administer(
    setRole(() => 'ROLE_CLIENT'),
    setRole(formerRole),
  ),
  'organization of the user changed': administer(moveElsewhere),
  'organization of the user changed and changed back': administer(moveElsewhere, moveTo(ownOrganization)),
  'organization of the user removed': administer(moveTo(() => '')),
  'tokens revoked by the user': { each: (at, person) => refusal(at, person, '/users/revokemytokens', {}, person.pwd) },
  'tokens revoked at Administration': administer((api, person) => api.revokeTokens({ user: user(person) })),
  'deleted by the user': {
    each: (at, person) => refusal(at, person, '/users/me/delete', { password: person.password }, person.pwd),
  },
  'deleted at Administration': administer((api, person) => api.deleteUser({ user: user(person) })),
  'deleted and undeleted': administer(
    (api, person) => api.deleteUser({ user: user(person) }),
    (api, person) => api.undeleteUser({ user: `#${person.id}` }),
  ),
  erased: administer((api, person) => api.eraseUser({ user: user(person), confirm: user(person) })),

  'organization deactivated': administerOnce((api, { organization }) =>
    api.deactivateOrganization({ organization: `#${organization.id}` }),
  ),
  'organization deactivated and activated': {
    async once(at, { organization, newcomer, secrets }) {
      const api = await at.administer()
      await api.deactivateOrganization({ organization: `#${organization.id}` })
      // A try meanwhile doesn't spend a mailed key.
      const body = { username: user(newcomer), activationkey: secrets.mailed }
      const refused = await refusal(at, newcomer, '/users/activate', body, newcomer.pwd)
      if (refused !== 'ACTIVATION_REFUSED') throw new Error(`not refused: ${refused}`)
      await api.activateOrganization({ organization: `#${organization.id}` })
    },
  },
  'key of the organization rotated': administerOnce((api, { organization }) =>
    api.rotateOrganizationKey({ organization: `#${organization.id}` }),
  ),
  'e-mail address of the organization changed': administerOnce((api, { organization }) =>
    api.updateOrganization({
      organization: `#${organization.id}`,
      form: { email: newAddress() },
      updateMask: { paths: ['email'] },
    }),
  ),
  'provider key rotated by the user': {
    each: (at, person) => refusal(at, person, '/users/me/providerkey', {}, person.pwd),
  },
  'provider key rotated at Administration': administer((api, person) => api.rotateProviderKey({ user: user(person) })),

  'e-mail address changed by an import': importRow(['email'], () => ({ form: { email: newAddress() } })),
  'username changed by an import': importRow(['username'], () => ({ form: { username: randomUUID() } })),
  'password changed by an import': importRow(['password'], () => ({ form: { password: newPassword() } })),
  'organization of the user changed by an import': importRow(['organization'], organizationId => ({ organizationId })),
  'all of this in an import that may change none of it': importRow([], organizationId => ({
    form: { email: newAddress(), username: randomUUID(), password: newPassword() },
    organizationId,
  })),

  'codes enrolled': {
    kind: 'administrator',
    async each(at, person) {
      const token = await signIn(at, person).catch(error => Promise.resolve(reasonOf(Promise.reject(error))))
      if (!token.includes('.')) return token
      await enroll(at, token)
      return undefined
    },
  },
  'codes removed': {
    kind: 'administrator with codes',
    async each(at, person) {
      const { changed } = await (await at.administer()).removeTotp({ user: user(person), confirm: user(person) })
      return changed ? undefined : 'unchanged'
    },
  },
  'service deleted': administerOnce((api, { service: { name } }) => api.deleteService({ name, confirm: name })),
  'scope of the service removed': administerOnce((api, { service: { name } }) =>
    api.updateService({ name, form: { scopes: [2] }, updateMask: { paths: ['scopes'] } }),
  ),
  'key of the service deleted': administerOnce((api, { service: { name, keyId } }) =>
    api.deleteServiceKey({ name, id: keyId }),
  ),
  'signing key retired': {
    alone: true,
    ...administerOnce(async api => {
      const { keys } = await api.listSigningKeys({})
      for (const { kid } of keys.filter(({ signs }) => signs)) await api.retireSigningKey({ kid, confirm: kid })
    }),
  },
  'registry restored from a backup': { alone: true, replace: restore },
}

/** Restores a backup of a registry into another database, at the same time. */
async function restore({ t, service, clock, mailbox }: Installation): Promise<Installation> {
  const folder = await temporaryFolder(t)
  const { recipient, identity } = await newIdentity(folder)
  const file = join(folder, 'registry.age')
  done(await runCli(service.env, ['backup', file, '--recipient', recipient]))
  const url = await freshDatabase(t, { from: 'template0' })
  await stopClock(url)
  done(await runCli({ ...service.env, DATABASE_URL: url }, ['restore', file, '--identity', identity]))
  const restored = await createStoppedClock(t, url)
  await restored.pass((clock.now() - restored.now()) / 1000)
  const env = { AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url, DATABASE_URL: url }
  return installation(t, await startTestService(t, env, { clock: restored }), restored, mailbox)
}

const table = readTakingAway()
const seenAs: Readonly<Record<string, string>> = { stays: 'still works', ends: 'has ended' }

/** A holding to which an event happens, or a twin, to which nothing happens. */
interface Trial {
  readonly name: string
  readonly kind: Kind
  readonly event: Event
  at: Installation
  holding?: Holding
  readonly refusals: Map<Person | undefined, Refusal>
  found: Awaited<ReturnType<typeof useAll>>
  error?: unknown
}

/** Runs events in an installation, side by side: the clock passes for all at once. */
async function run(names: readonly string[]): Promise<ReadonlyMap<string, Trial>> {
  const at = await openInstallation({ teardown: work => void cleanUps.push(work) }, mailbox)
  const trialOf = (name: string, kind: Kind, event: Event): Trial => ({
    name,
    kind,
    event,
    at,
    refusals: new Map(),
    found: {},
  })
  const kinds = new Set(names.map(name => events[name]!.kind ?? 'institution'))
  const trials = [
    ...[...kinds].map(kind => trialOf(kind, kind, {})),
    ...names.map(name => trialOf(name, events[name]!.kind ?? 'institution', events[name]!)),
  ]
  /** A step of all trials, four at a time. */
  async function step(work: (trial: Trial, holding: Holding) => Promise<void>): Promise<void> {
    const left = [...trials]
    const take = async () => {
      for (let trial = left.shift(); trial; trial = left.shift()) {
        if (trial.error !== undefined) continue
        await work(trial, trial.holding!).catch(error => {
          trial!.error = error
        })
      }
    }
    await Promise.all([take(), take(), take(), take()])
  }
  await step(async trial => {
    trial.holding = await beginHolding(at, trial.kind)
  })
  await at.clock.pass(day + 3600)
  await step((_, holding) => openSessions(at, holding))
  await at.clock.pass(120)
  await step((_, holding) => collectSecrets(at, holding))
  await at.clock.pass(120)
  const isTwin = ({ name, kind }: Trial) => name === kind
  // Before the events: some end credentials of the whole registry.
  await step(async (trial, holding) => {
    if (isTwin(trial)) trial.found = await useAll(at, holding)
  })
  await step(async (trial, holding) => {
    const { once, each, replace } = trial.event
    await once?.(at, holding)
    if (each) for (const person of peopleOf(holding)) trial.refusals.set(person, await each(at, person, holding))
    if (replace) trial.at = await replace(at)
  })
  const pass = async (seconds: number) => {
    for (const each of new Set(trials.map(({ at }) => at))) await each.clock.pass(seconds)
  }
  // One-time codes are good once, and service keys are cached for a second.
  await pass(60)
  await step(async (trial, holding) => {
    if (!isTwin(trial)) trial.found = await useAll(trial.at, holding)
  })
  await pass(day)
  await step(async (trial, holding) => {
    trial.found.waiting = await countsNow(trial.at, holding)
  })
  return new Map(trials.map(trial => [trial.name, trial]))
}

const cleanUps: (() => Promise<void>)[] = []
test.after.always(async () => {
  for (const work of cleanUps.reverse()) await work()
})

/** Rows by registry: a process has 50 e-mails before it waits. */
const lanes = new Map<string, string[]>()
for (const [index, name] of [...table.keys()].entries()) {
  const { alone, kind } = events[name]!
  const lane = alone ? name : ((kind && 'kinds') ?? `${Math.floor(index / 6)}`)
  lanes.set(lane, [...(lanes.get(lane) ?? []), name])
}
/** The lanes that have begun, two at a time. */
const runs = new Map<string, ReturnType<typeof run>>()
const tracks: Promise<unknown>[] = [Promise.resolve(), Promise.resolve()]

/** An event, and the twin of its account. */
async function resultOf(name: string): Promise<[trial: Trial, twin: Trial]> {
  const [lane, names] = [...lanes].find(([, names]) => names.includes(name))!
  if (!runs.has(lane)) {
    const track = runs.size % tracks.length
    const begun = tracks[track]!.then(() => run(names))
    runs.set(lane, begun)
    tracks[track] = begun.catch(() => {})
  }
  const trials = await runs.get(lane)!
  const both = [trials.get(name)!, trials.get(events[name]!.kind ?? 'institution')!] as const
  for (const { error } of both) if (error !== undefined) throw error
  return [...both]
}

test('the table has a row for each event', t => {
  t.deepEqual([...table.keys()], Object.keys(events))
})

for (const [name, row] of table) {
  test(`${name}: the credentials that the table says end, and the others stay`, async t => {
    const [{ holding, found, refusals }, twin] = await resultOf(name)
    const { missing } = holding!
    const wrong: string[] = []
    for (const [credential, cell] of row) {
      const expected = notes[cell]?.[0] ?? cell
      const refused = missing[credential] ?? refusals.get(holderOf(holding!, credential))
      const seen = refused ?? (found[credential] ? 'stays' : 'ends')
      if (seen !== expected)
        wrong.push(`${name} × ${credential}: expected ${expected}, ${seenAs[seen] ?? `refused: ${seen}`}`)
      // Else it could end for another reason than the event. A refused event takes nothing away.
      if (missing[credential] !== undefined) continue
      // A day later, an event on all accounts has ended the waiting answers of its twin; twins elsewhere prove them.
      const isProven = twin.found[credential] || (events[name]!.alone && credential === 'waiting')
      if (!isProven) wrong.push(`${name} × ${credential}: it doesn’t work on a twin either`)
      if (refused !== undefined && !found[credential]) wrong.push(`${name} × ${credential}: refused, and it ends`)
    }
    t.deepEqual(wrong, [])
  })
}
