/** What takes something away ends the credentials that it should, and no others: every cell of taking-away.matrix.ts. */
import { createHash, randomUUID } from 'node:crypto'
import { join } from 'node:path'
import test from 'ava'
import { TOTP } from 'otpauth'
import { ImportKind } from '../../proto/gen/auth/v1/administration_pb.js'
import { Scope } from '../../proto/gen/auth/v1/scopes_pb.js'
import { type AdministrationClient, openAdministration, reasonOf } from '../_helpers/administration.js'
import { done, newIdentity } from '../_helpers/backups.js'
import { runCli } from '../_helpers/cli.js'
import { type Clock, createStoppedClock, stopClock } from '../_helpers/clock.js'
import { anyAddress, from, login } from '../_helpers/crowd.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { enterByAnswers, enterByKey, saveAnswer, sendKey, updatePassword } from '../_helpers/recovery.js'
import {
  type Answer,
  password,
  signUpForm,
  startTestService,
  type TestService,
  teardownOfFile,
} from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { forge, idOf } from '../_helpers/tokens.js'
import { type Credential, notes, readTakingAway } from './taking-away.matrix.js'

const mailbox = mailboxForFile()
const hooks = teardownOfFile()
const day = 86_400

/** A service whose clock the test moves. */
interface Installation {
  readonly service: TestService & { readonly clock: Clock }
  /** Administration, with a recent session of the administrator of the installation. */
  administer(): Promise<AdministrationClient>
}

const settings = () => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url, AUTH_ISSUER: 'http://localhost' })

/** Where the tool gets its codes. */
const redirectUri = 'https://tool.example.org/callback'

function installation(service: Installation['service']): Installation {
  const open = openAdministration(hooks, service)
  let session: { readonly at: number; readonly api: Promise<AdministrationClient> } | undefined
  const renew = async () =>
    openAdministration(hooks, service, (await open.signIn({ username: 'admin', password })).token)
  return {
    service,
    administer() {
      if (session?.at !== service.clock.now()) session = { at: service.clock.now(), api: renew() }
      return session.api
    },
  }
}

/** A user, with what it needs for events that take something away. */
interface Person {
  readonly id: number
  /** The text of a question that it answered at sign-up. */
  readonly question: string
  username: string
  password: string
  /** Public sessions. */
  pwd: string
  kba: string
  otp: string
  /** The session that saved the waiting answers. */
  saver: string
  /** Another session by password. */
  fresh: string
  /** A session of the owner by mailed key, after a stranger had signed up. */
  recovered?: string
  /** Secret of the one-time codes. */
  totp?: string
}

/** What the account is that holds most credentials; in the name of somebody else, it is a ROLE_INSTITUTION that a stranger signed up. */
type Kind = 'institution' | 'in the name of somebody else' | 'client' | 'administrator' | 'administrator with codes'

/** One of every credential. */
type Holding = Awaited<ReturnType<typeof beginHolding>>

/** Answers to each of four questions; the first two count, and the third one isn't saved. */
const answers = { first: 'azul', waiting: 'verde', other: 'rosa' }

/** The reason of a refusal over HTTP; undefined when there is none. */
const refusalOf = ({ status, json }: Answer): string | undefined =>
  status === 200 ? undefined : (json?.reason ?? String(status))

/** The text of an answer that must be a success. */
async function must(answer: Promise<Answer>): Promise<string> {
  const { status, text } = await answer
  if (status !== 200) throw new Error(`${status} ${text}`)
  return text
}

const send = ({ service }: Installation, path: string, body: unknown, token?: string) =>
  service.request('POST', path, { body, headers: from(anyAddress()), ...(token !== undefined && { token }) })

/** The refusal of a request. */
const refusal = async (...request: Parameters<typeof send>) => refusalOf(await send(...request))

const enter = ({ service }: Installation, person: Person, secret = person.password) =>
  login(service, person.username, anyAddress(), secret)

/** The key in the next e-mail to an address that has one. */
async function keyIn(address: string): Promise<string> {
  for (;;) {
    const { text = '' } = await mailbox.nextEmail(address)
    const key = /: ([2-9A-HJ-NP-Z]{8}|[\da-f]{8}-[\da-f-]{27})$/m.exec(text)?.[1]
    if (key) return key
  }
}

/** The recovery key before the one that is mailed. */
const former = 'FGHJ2345'

/** A mailed recovery key. */
async function recoveryKey({ service }: Installation, { username }: Person, email: string): Promise<string> {
  await must(sendKey(service, username, email))
  return keyIn(email)
}

/** Asks for a code for a new address. */
async function emailCode(at: Installation, { pwd, password }: Person): Promise<{ refused?: string; code: string }> {
  const email = newAddress()
  const refused = await refusal(at, '/users/setemail', { email, password }, pwd)
  return refused === undefined ? { code: await keyIn(email) } : { refused, code: '' }
}

const confirmEmail = (at: Installation, token: string, code: string) =>
  refusal(at, '/users/confirmemail', { code }, token)

/** The present one-time code. */
const codeOf = ({ service }: Installation, secret: string) =>
  new TOTP({ secret }).generate({ timestamp: service.clock.now() })

/** A session of Administration. */
async function signIn(at: Installation, { username, password, totp }: Person): Promise<string> {
  const code = totp === undefined ? {} : { code: codeOf(at, totp) }
  return (await openAdministration(hooks, at.service).signIn({ username, password, ...code })).token
}

/** Enrolls new one-time codes with a session of Administration. */
async function enroll(at: Installation, token: string): Promise<string> {
  const session = openAdministration(hooks, at.service, token)
  const { secret } = await session.enrollTotp({})
  await session.confirmTotp({ code: codeOf(at, secret) })
  return secret
}

async function signUp(at: Installation, role: string): Promise<Person> {
  const question = `Qual é o número ${randomUUID()}?`
  const username = randomUUID()
  const form = signUpForm({ username, roles: [role], securityquestion: question, securityanswer: answers.first })
  const pwd = await must(send(at, '/users/signup', form))
  return { id: idOf(pwd), question, username, password, pwd, kba: '', otp: '', saver: '', fresh: '' }
}

const activate = (at: Installation, { username }: Person, activationkey = '', token = '') =>
  send(at, '/users/activate', { username, activationkey }, token)

/** The day of the sign-ups: answers count at once. */
async function beginHolding(at: Installation, kind: Kind) {
  const { service } = at
  const api = await at.administer()
  const organization = await service.organization()
  const member = `#${organization.id}`
  /** Ids of four questions. */
  const questions: number[] = []
  for (let count = 0; count < 4; count++) {
    const { question } = await api.createQuestion({ question: `Qual é a cor ${randomUUID()}?` })
    questions.push(question!.record!.id!)
  }
  async function administrator(): Promise<Person> {
    const person = await signUp(at, 'ROLE_ADMIN')
    await api.activateUser({ user: person.username, organization: member, confirm: person.username })
    return person
  }
  async function activated(role: string, activationkey: string): Promise<Person> {
    const person = await signUp(at, role)
    await must(activate(at, person, activationkey, person.pwd))
    return person
  }
  /** Another institution of the organization. */
  const institution = await activated('ROLE_INSTITUTION', organization.activationkey)
  const account =
    kind === 'institution' || kind === 'in the name of somebody else'
      ? await activated('ROLE_INSTITUTION', organization.activationkey)
      : kind === 'client'
        ? await activated('ROLE_CLIENT', await providerKeyOf(at, institution))
        : await administrator()
  for (const question of questions.slice(0, 2)) await must(saveAnswer(service, account.pwd, question, answers.first))
  const newcomer = await signUp(at, 'ROLE_INSTITUTION')
  await api.setOrganization({ user: newcomer.username, organization: member })
  const { service: made, key } = await api.createService({
    ...{ name: randomUUID(), scopes: [Scope.USERS_READ], redirectUris: [redirectUri] },
  })
  return {
    isStranger: kind === 'in the name of somebody else',
    organization,
    institution,
    account,
    newcomer,
    administrator: kind.startsWith('administrator') ? account : await administrator(),
    enrolled: kind === 'administrator with codes' ? account : await administrator(),
    service: { name: made!.name, key, keyId: made!.keys[0]!.id },
    /** Users whom nothing has activated. */
    third: { client: await signUp(at, 'ROLE_CLIENT'), institution: await signUp(at, 'ROLE_INSTITUTION') },
    questions,
    /** The recovery address of the account. */
    email: newAddress(),
    secrets: {} as Partial<Record<Credential, string>>,
    /** Why a credential can't be held. */
    missing: {} as Partial<Record<Credential, string>>,
  }
}

/** A day later: a session of each kind. */
async function openSessions(at: Installation, holding: Holding): Promise<void> {
  const { account, enrolled, questions, email, secrets, missing, isStranger } = holding
  const { service } = at
  enrolled.totp = await enroll(at, await signIn(at, enrolled))
  for (const person of peopleOf(holding)) {
    person.pwd = await must(enter(at, person))
    person.saver = person.pwd
    person.fresh = person.pwd
    if (person === account) continue
    person.kba = await forge(service, person.pwd, { amr: ['kba'] })
    person.otp = await forge(service, person.pwd, { amr: ['otp'] })
  }
  secrets.device = account.saver
  const counting = { questions: questions.slice(0, 2) }
  account.kba = await must(enterByAnswers(service, account.username, answers.first, counting))
  for (const question of questions) {
    const refused = refusalOf(await saveAnswer(service, account.saver, question, answers.waiting))
    if (refused !== undefined) missing.waiting = refused
  }
  // Only now: a process sends two e-mails a second, and answers would bring more.
  const form = { form: { email }, updateMask: { paths: ['email'] } }
  await (await at.administer()).updateUser({ user: account.username, ...form })
  if (isStranger) missing.otp = 'proved'
  else await prove(at, account)
  if (!isStranger)
    account.otp = await must(enterByKey(service, account.username, await recoveryKey(at, account, email)))
}

/** Records that the address of a person is proved. */
const prove = ({ service }: Installation, { id }: Person) =>
  ask(service.env.DATABASE_URL!, `UPDATE users SET email_proved = true WHERE id = ${id}`)

/** Two minutes later, so that the sessions differ: everything else. */
async function collectSecrets(at: Installation, holding: Holding): Promise<void> {
  const { account, newcomer, administrator, organization, email, secrets, missing } = holding
  account.pwd = await must(enter(at, account))
  await at.service.registry.mailedKeys.replace(account.id, 'recovery', former)
  secrets.recovery = await recoveryKey(at, account, email)
  const { refused, code } = await emailCode(at, account)
  secrets.email = code
  if (refused !== undefined) missing.email = refused
  secrets.provider = await providerKeyOf(at, account)
  if (secrets.provider === '')
    missing.provider = (await refusal(at, '/users/me/providerkey', {}, account.pwd)) ?? 'none'
  const partner = { username: newcomer.username, emailpartner: organization.email }
  await must(send(at, '/1.0.0/users/sendadminkeybyemailpartner', partner, newcomer.pwd))
  secrets.mailed = await keyIn(organization.email)
  secrets.session = await signIn(at, administrator)
  await beginRefreshTokens(at, holding)
  const issued = (await at.administer()).issueKey({ user: account.username })
  const refusedKey = await reasonOf(issued)
  if (refusedKey === 'none') secrets.issued = (await issued).key
  else missing.issued = refusedKey
}

/** The refresh tokens of an app and of a tool, by a session of the account at the registry. */
async function beginRefreshTokens(at: Installation, { account, service, secrets, missing }: Holding): Promise<void> {
  const { username, password } = account
  const token = await must(send(at, '/users/login', { username, password, stay: true }))
  const begun = await send(at, '/users/me/refreshtoken', {}, token)
  const refused = refusalOf(begun)
  if (refused === undefined) secrets.app = begun.json.refreshToken
  else missing.app = refused
  const asked = { clientId: service.name, redirectUri, responseType: 'code', scope: 'openid offline_access' }
  const { json } = await send(at, '/auth.v1.OpenId/Authorize', { authorization: asked }, token)
  const code = json.location && new URL(json.location).searchParams.get('code')
  if (!code) missing.tool = json.details?.[0]?.debug?.reason ?? JSON.stringify(json)
  else {
    const grant = { grant_type: 'authorization_code', code, redirect_uri: redirectUri }
    secrets.tool = JSON.parse(await must(exchange(at, { ...grant, ...clientOf(service) }))).refresh_token
  }
}

const exchange = (at: Installation, form: object) => send(at, '/oauth/token', form)
const clientOf = ({ name, key }: Holding['service']) => ({ client_id: name, client_secret: key })

async function providerKeyOf({ service }: Installation, { pwd }: Person): Promise<string> {
  const me = await service.request('GET', '/users/me', { token: pwd })
  return me.json.providerActivationKey?.activationkey ?? ''
}

/** The people of a holding, each once. */
const peopleOf = ({ account, newcomer, administrator, enrolled }: Holding): Person[] => [
  ...new Set([account, newcomer, administrator, enrolled]),
]

/** Who holds a credential; undefined for those of an organization or a service. */
function holderOf(holding: Holding, credential: Credential): Person | undefined {
  if (credential === 'organization' || credential === 'service') return undefined
  if (credential === 'mailed' || credential === 'fresh') return holding.newcomer
  if (credential === 'session') return holding.administrator
  return credential === 'code' ? holding.enrolled : holding.account
}

/** Uses every credential except waiting answers, in an order in which no use disturbs another. Returns which work. */
async function useAll(at: Installation, holding: Holding): Promise<Partial<Record<Credential, boolean>>> {
  const { service } = at
  const { account, newcomer, enrolled, organization, questions, secrets, third } = holding
  const { username } = account
  const opens = async (answer: Promise<Answer>) => (await answer).status === 200
  const me = (token: string) => opens(service.request('GET', '/users/me', { token }))
  const refreshes = (token = '', client: object) =>
    opens(exchange(at, { grant_type: 'refresh_token', refresh_token: token, ...client }))
  /** A new session, if there can be one: an end of the old ones must not hide that a secret still works. */
  async function sessionOf(person: Person): Promise<string> {
    const { status, text } = await enter(at, person)
    return status === 200 ? text : (person.recovered ?? person.pwd)
  }
  const activates = async (person: Person, key?: string) => opens(activate(at, person, key, await sessionOf(person)))
  const session = openAdministration(hooks, service, secrets.session)
  // Only an event is to prove the address: a use of the held key would end the credentials of a twin.
  if (holding.isStranger) await prove(at, account)
  const found: Partial<Record<Credential, boolean>> = {
    pwd: await me(account.pwd),
    kba: await me(account.kba),
    otp: await me(account.otp),
    app: await refreshes(secrets.app, { client_id: 'registry' }),
    tool: await refreshes(secrets.tool, clientOf(holding.service)),
    organization: await activates(third.institution, organization.activationkey),
    provider: await activates(third.client, secrets.provider),
    mailed: await activates(newcomer, secrets.mailed),
    service: await opens(service.request('GET', '/users/admin', { token: holding.service.key })),
    session: (await reasonOf(session.getSession({}))) === 'none',
    code: await needsCode(at, enrolled),
    password: await opens(enter(at, account, password)),
    answers: await opens(enterByAnswers(service, username, answers.first, { questions: questions.slice(0, 2) })),
    issued: await opens(enterByKey(service, username, secrets.issued ?? '')),
    recovery: await recovers(at, holding),
  }
  found.fresh = await me(newcomer.fresh)
  found.email = (await confirmEmail(at, await sessionOf(account), secrets.email || 'none')) === undefined
  found.device = await passesLock(at, holding)
  return found
}

/** Whether a sign-in of Administration needs the one-time code of a person, and succeeds with it. */
async function needsCode(at: Installation, { username, password, totp }: Person): Promise<boolean> {
  const open = openAdministration(hooks, at.service)
  if ((await reasonOf(open.signIn({ username, password }))) !== 'CODE_NEEDED') return false
  return (await reasonOf(open.signIn({ username, password, code: codeOf(at, totp!) }))) === 'none'
}

/** Whether the mailed key before the newest one works. Its use ends the newest, and what ends one ends both. */
async function recovers({ service }: Installation, { account, secrets }: Holding): Promise<boolean> {
  const works = async (key: string) => (await enterByKey(service, account.username, key)).status === 200
  const found = await works(former)
  if (await works(secrets.recovery!)) throw new Error(`The newest mailed key works; the one before worked: ${found}`)
  return found
}

/** Whether the device of an account may try a password while strangers have locked the account. */
async function passesLock(at: Installation, { account, secrets }: Holding): Promise<boolean> {
  for (let failures = 0; failures < 10; failures++) await enter(at, account, 'not the password')
  const locked = await enter(at, account)
  if (locked.status !== 429) throw new Error(`The account isn’t locked: ${locked.status}`)
  const tried = await login(at.service, account.username, anyAddress(), account.password, { token: secrets.device! })
  return tried.status !== 429
}

/** Whether answers that waited for a day count now: the first ones to two questions, and those that replace others. */
async function countsNow({ service }: Installation, { account, questions }: Holding): Promise<boolean> {
  const of = async (chosen: readonly number[]) =>
    (await enterByAnswers(service, account.username, answers.waiting, { questions: chosen })).status === 200
  const [replacing, first] = [await of(questions.slice(0, 2)), await of(questions.slice(2))]
  if (replacing !== first) throw new Error(`Of waiting answers count: first ones ${first}, replacing ones ${replacing}`)
  return first
}

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
const administerOnce = (work: (api: AdministrationClient, holding: Holding) => Promise<unknown>): Event => ({
  once: async (at, holding) => work(await at.administer(), holding),
})

/** A password update by a token. */
const update = (tokenOf: (person: Person, at: Installation) => string | Promise<string>): Event => ({
  async each(at, person) {
    const next = newPassword()
    const token = await tokenOf(person, at)
    const refused = refusalOf(await updatePassword(at.service, token, next, person.username))
    if (refused === undefined) person.password = next
    return refused
  },
})

/** A use of a mailed key by who reads the address of a person. */
const recover = (address: 'proved before' | 'never proved'): Event => ({
  async each(at, person, { account, secrets }) {
    const { service } = at
    const { registry, env } = service
    if (person !== account) {
      await ask(env.DATABASE_URL!, `UPDATE users SET email = '${newAddress()}' WHERE id = ${person.id}`)
      await registry.mailedKeys.replace(person.id, 'recovery', 'ABCD2345')
    }
    if (address === 'proved before') await prove(at, person)
    const key = person === account ? secrets.recovery! : 'ABCD2345'
    person.recovered = await must(enterByKey(service, person.username, key))
    return undefined
  },
})

/** Saves answers to all questions with a session, with the password or without. */
const saveAnswers = (withPassword: boolean): Event => ({
  async each({ service }, { pwd, password }, { questions }) {
    for (const question of questions) {
      const saved = await saveAnswer(service, pwd, question, answers.other, withPassword ? { password } : {})
      if (saved.status !== 200) return refusalOf(saved)
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
  'password updated in the session of the answers': update(({ saver }) => saver),
  'password updated in another session by password': update(({ pwd }) => pwd),
  'password updated in a session by answers': update(({ kba }) => kba),
  'password updated in a session by mailed key': update(({ otp }) => otp),
  'password updated in a session of a ROLE_ADMIN': update((_, at) => at.service.adminToken()),
  'password set at Administration': administer(async (api, person) => {
    const password = newPassword()
    await api.setPassword({ user: user(person), password })
    person.password = password
  }),

  'answers replaced with the password': saveAnswers(true),
  'answers saved by a session alone': saveAnswers(false),
  'answers deleted by the user': {
    each: (at, person) => refusal(at, '/users/me/answers/delete', { password: person.password }, person.pwd),
  },
  'answers cleared': administer(clearAnswers),
  'answers cleared, then the text of sign-up linked': {
    async each(at, person, { account, questions }) {
      const api = await at.administer()
      await clearAnswers(api, person)
      // The answer to the text is that of the first question; the second one is answered again.
      await reasonOf(api.linkQuestion({ text: person.question, question: `#${questions[0]}` }))
      if (person !== account) return undefined
      const { pwd, password } = person
      return refusalOf(await saveAnswer(at.service, pwd, questions[1]!, answers.first, { password }))
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
      const { refused, code } = await emailCode(at, person)
      return refused ?? confirmEmail(at, person.pwd, code)
    },
  },
  'e-mail address changed at Administration': administer((api, person) =>
    api.updateUser({ user: user(person), form: { email: newAddress() }, updateMask: { paths: ['email'] } }),
  ),
  'username changed by the user': {
    async each(at, person) {
      const username = randomUUID()
      const { password, pwd } = person
      const refused = await refusal(at, '/users/me/username', { username, password }, pwd)
      if (refused === undefined) person.username = username
      return refused
    },
  },
  'username changed at Administration': administer(async (api, person) => {
    const username = randomUUID()
    await api.updateUser({ user: user(person), form: { username }, updateMask: { paths: ['username'] } })
    person.username = username
  }),

  'recovered by mailed key, all set by the owner': recover('proved before'),
  'recovered by mailed key, all set by a stranger': {
    kind: 'in the name of somebody else',
    ...recover('never proved'),
  },

  suspended: administer((api, person) => api.suspendUser({ user: user(person) })),
  'suspended and resumed': administer(
    (api, person) => api.suspendUser({ user: user(person) }),
    (api, person) => api.resumeUser({ user: user(person) }),
  ),
  'deactivated by the institution': {
    kind: 'client',
    async each(at, person, { institution }) {
      const token = await at.service.login(institution.username)
      return refusal(at, '/users/me/members/deactivate', { username: user(person) }, token)
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
  'tokens revoked by the user': { each: (at, person) => refusal(at, '/users/revokemytokens', {}, person.pwd) },
  'tokens revoked at Administration': administer((api, person) => api.revokeTokens({ user: user(person) })),
  'deleted by the user': {
    each: (at, person) => refusal(at, '/users/me/delete', { password: person.password }, person.pwd),
  },
  'deleted at Administration': administer((api, person) => api.deleteUser({ user: user(person) })),
  'deleted and undeleted': administer(
    (api, person) => api.deleteUser({ user: user(person) }),
    (api, person) => api.undeleteUser({ user: `#${person.id}` }),
  ),
  erased: administer((api, person) => api.eraseUser({ user: user(person), confirm: user(person) })),

  'desk granted': administer((api, person) => api.grantDesk({ user: user(person) })),
  'desk granted and revoked': administer(
    (api, person) => api.grantDesk({ user: user(person) }),
    (api, person) => api.revokeDesk({ user: user(person) }),
  ),

  'newcomer activated': {
    async once(at, { newcomer, organization }) {
      await must(activate(at, newcomer, organization.activationkey, newcomer.pwd))
    },
  },

  'organization deactivated': administerOnce((api, { organization }) =>
    api.deactivateOrganization({ organization: `#${organization.id}` }),
  ),
  'organization deactivated and activated': {
    async once(at, { organization, newcomer, secrets }) {
      const api = await at.administer()
      await api.deactivateOrganization({ organization: `#${organization.id}` })
      // A try meanwhile doesn't spend a mailed key.
      const refused = refusalOf(await activate(at, newcomer, secrets.mailed, newcomer.pwd))
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
    each: (at, person) => refusal(at, '/users/me/providerkey', {}, person.pwd),
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
      const token = await signIn(at, person).catch(error => reasonOf(Promise.reject(error)))
      if (!token.startsWith('sealed_')) return token
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
  'redirect URI removed': administerOnce((api, { service: { name } }) =>
    api.updateService({ name, form: { redirectUris: [`${redirectUri}2`] }, updateMask: { paths: ['redirect_uris'] } }),
  ),
  'key of ID tokens retired': {
    alone: true,
    ...administerOnce(async api => {
      for (const { kid, signs } of (await api.listSigningKeys({})).idTokenKeys)
        if (signs) await api.retireSigningKey({ kid, confirm: kid })
    }),
  },
  'signing key retired': {
    alone: true,
    ...administerOnce(async api => {
      const { keys } = await api.listSigningKeys({})
      for (const { kid } of keys.filter(({ signs }) => signs)) await api.retireSigningKey({ kid, confirm: kid })
    }),
  },
  'sealing key retired': {
    alone: true,
    ...administerOnce(async api => {
      for (const { kid } of (await api.listSigningKeys({})).sealingKeys)
        await api.retireSigningKey({ kid, confirm: kid })
    }),
  },
  'registry restored from a backup': { alone: true, replace: restore },
}

/** Restores a backup of a registry into another database, at the same time. */
async function restore({ service }: Installation): Promise<Installation> {
  const folder = await temporaryFolder(hooks)
  const { recipient, identity } = await newIdentity(folder)
  const file = join(folder, 'registry.age')
  done(await runCli(service.env, ['backup', file, '--recipient', recipient]))
  const url = await freshDatabase(hooks, { from: 'template0' })
  await stopClock(url)
  done(await runCli({ ...service.env, DATABASE_URL: url }, ['restore', file, '--identity', identity]))
  const clock = await createStoppedClock(hooks, url)
  await clock.pass((service.clock.now() - clock.now()) / 1000)
  return installation({ ...(await startTestService(hooks, { ...settings(), DATABASE_URL: url }, { clock })), clock })
}

const table = readTakingAway()
const kindOf = (name: string): Kind => events[name]!.kind ?? 'institution'
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
}

/** Runs events in an installation, side by side: the clock passes for all at once. */
async function run(names: readonly string[]): Promise<ReadonlyMap<string, Trial>> {
  const url = await freshDatabase(hooks, { from: 'template0' })
  await stopClock(url)
  const clock = await createStoppedClock(hooks, url)
  const started = await startTestService(hooks, { ...settings(), DATABASE_URL: url }, { clock })
  const at = installation({ ...started, clock })
  const trialOf = (name: string, kind: Kind, event: Event): Trial => {
    return { name, kind, event, at, refusals: new Map(), found: {} }
  }
  const all = names.map(name => trialOf(name, kindOf(name), events[name]!))
  const trials = [...[...new Set(names.map(kindOf))].map(kind => trialOf(kind, kind, {})), ...all]
  /** A step of all trials, four at a time. */
  async function step(work: (trial: Trial, holding: Holding) => Promise<void>): Promise<void> {
    const left = [...trials]
    const take = async () => {
      for (let trial = left.shift(); trial; trial = left.shift()) {
        await work(trial, trial.holding!)
      }
    }
    await Promise.all([take(), take(), take(), take()])
  }
  await step(async trial => {
    trial.holding = await beginHolding(at, trial.kind)
  })
  await at.service.clock.pass(day + 3600)
  await step((_, holding) => openSessions(at, holding))
  await at.service.clock.pass(120)
  await step((_, holding) => collectSecrets(at, holding))
  await at.service.clock.pass(120)
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
    for (const each of new Set(trials.map(({ at }) => at))) await each.service.clock.pass(seconds)
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

/** Rows by registry: a process has 50 e-mails before it waits. */
const lanes = new Map<string, string[]>()
for (const [index, name] of [...table.keys()].entries()) {
  const { alone, kind } = events[name]!
  const lane = alone ? name : ((kind && 'kinds') ?? `${Math.floor(index / 6)}`)
  lanes.set(lane, [...(lanes.get(lane) ?? []), name])
}
test('the table has a row for each event', t => {
  t.deepEqual([...table.keys()], Object.keys(events))
})

for (const names of lanes.values()) {
  test.serial(`the credentials that the table says end, and the others stay: ${names.join('; ')}`, async t => {
    const trials = await run(names)
    const wrong: string[] = []
    for (const name of names) {
      const { holding, found, refusals, kind, event } = trials.get(name)!
      const { missing } = holding!
      for (const [credential, cell] of table.get(name)!) {
        const expected = notes[cell]?.[0] ?? cell
        const refused = missing[credential] ?? refusals.get(holderOf(holding!, credential))
        const seen = refused ?? (found[credential] ? 'stays' : 'ends')
        const where = `${name} × ${credential}`
        if (seen !== expected) wrong.push(`${where}: expected ${expected}, ${seenAs[seen] ?? `refused: ${seen}`}`)
        // Else it could end for another reason than the event. A refused event takes nothing away.
        if (missing[credential] !== undefined) continue
        // A day later, an event on all accounts has ended the waiting answers of its twin; twins elsewhere prove them.
        const isProven = trials.get(kind)!.found[credential] || (event.alone && credential === 'waiting')
        if (!isProven) wrong.push(`${where}: it doesn’t work on a twin either`)
        if (refused !== undefined && !found[credential]) wrong.push(`${where}: refused, and it ends`)
      }
    }
    t.deepEqual(wrong, [])
  })
}
