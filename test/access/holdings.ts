/** Every credential of the service, held at once, and how each is used. */
import { randomUUID } from 'node:crypto'
import { TOTP } from 'otpauth'
import { Scope } from '../../proto/gen/auth/v1/scopes_pb.js'
import { type AdministrationClient, openAdministration, reasonOf } from '../_helpers/administration.js'
import type { Clock } from '../_helpers/clock.js'
import { anyAddress, from } from '../_helpers/crowd.js'
import type { Teardown } from '../_helpers/database.js'
import type { Mailbox } from '../_helpers/mailbox.js'
import { type Answer, password, serviceWithClock, signUpForm, type TestService } from '../_helpers/service.js'
import { forge, idOf } from '../_helpers/tokens.js'
import type { Credential } from './taking-away.matrix.js'

export const day = 86_400

/** A service whose clock the test moves. */
export interface Installation {
  readonly t: Teardown
  readonly service: TestService
  readonly clock: Clock
  readonly mailbox: Mailbox
  /** Administration, with a recent session of the administrator of the installation. */
  administer(): Promise<AdministrationClient>
}

/** A user, with what it needs for events that take something away. */
export interface Person {
  readonly id: number
  /** The address of its requests: limits of networks concern no other holding. */
  readonly home: string
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
  /** Secret of the one-time codes. */
  totp?: string
}

/** What the account is that holds most credentials. */
export type Kind = 'institution' | 'client' | 'administrator' | 'administrator with codes'

/** One of every credential. */
export interface Holding {
  readonly organization: { readonly id: number; readonly activationkey: string; readonly email: string }
  /** Another institution of the organization. */
  readonly institution: Person
  readonly account: Person
  readonly newcomer: Person
  readonly administrator: Person
  readonly enrolled: Person
  readonly service: { readonly name: string; readonly key: string; readonly keyId: number }
  /** The recovery address of the account. */
  readonly email: string
  /** Users whom nothing has activated. */
  readonly third: { readonly client: Person; readonly institution: Person }
  /** Ids of four questions. */
  readonly questions: readonly number[]
  /** A token of an earlier session. */
  readonly device: string
  /** Secrets by credential. */
  readonly secrets: Partial<Record<Credential, string>>
  /** Why a credential can't be held. */
  readonly missing: Partial<Record<Credential, string>>
}

/** Answers to each of the four questions; the first two count, and the third one isn't saved. */
export const answers = { first: 'azul', waiting: 'verde', other: 'rosa' }

export async function openInstallation(t: Teardown, mailbox: Mailbox): Promise<Installation> {
  const { clock, ...service } = await serviceWithClock(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url })
  return installation(t, service, clock, mailbox)
}

export function installation(t: Teardown, service: TestService, clock: Clock, mailbox: Mailbox): Installation {
  const open = openAdministration(t, service)
  let session: { readonly at: number; readonly api: Promise<AdministrationClient> } | undefined
  const renew = async () => openAdministration(t, service, (await open.signIn({ username: 'admin', password })).token)
  return {
    t,
    service,
    clock,
    mailbox,
    administer() {
      if (session?.at !== clock.now()) session = { at: clock.now(), api: renew() }
      return session.api
    },
  }
}

/** The reason of a refusal over HTTP; undefined when there is none. */
export const refusalOf = ({ status, json }: Answer): string | undefined =>
  status === 200 ? undefined : (json?.reason ?? String(status))

/** The text of an answer that must be a success. */
export async function must(answer: Promise<Answer>): Promise<string> {
  const { status, text } = await answer
  if (status !== 200) throw new Error(`${status} ${text}`)
  return text
}

/** A request of a person, from its home. */
export const send = (at: Installation, { home }: Pick<Person, 'home'>, path: string, body: unknown, token?: string) =>
  at.service.request('POST', path, { body, headers: from(home), ...(token !== undefined && { token }) })

/** Saves an answer to a question, with the password or without. */
export function saveAnswer(
  at: Installation,
  person: Person,
  token: string,
  question: number,
  answer: string,
  secret?: string,
) {
  const body = { forgotpasswordquestionsid: question, answer, ...(secret !== undefined && { password: secret }) }
  return send(at, person, '/forgotpasswords/saveforgotpasswordquestionsusersanswers', body, token)
}

function enterAnswers(at: Installation, person: Person, questions: readonly number[], answer: string) {
  const body = questions.map(forgotpasswordquestionsid => ({ forgotpasswordquestionsid, answer }))
  const path = `/forgotpasswords/loginbyusernameandanswers?username=${encodeURIComponent(person.username)}`
  return send(at, person, path, body)
}

const enterKey = (at: Installation, person: Person, key: string) =>
  send(at, person, '/forgotpasswords/loginbyusernameandkey', { username: person.username, key })

const enterPassword = (at: Installation, person: Person, secret = person.password) =>
  send(at, person, '/users/login', { username: person.username, password: secret })

/** The key in the next e-mail to an address that has one. */
export async function keyIn(at: Installation, address: string): Promise<string> {
  for (;;) {
    const { text = '' } = await at.mailbox.nextEmail(address)
    const key = /: ([2-9A-HJ-NP-Z]{8}|[\da-f]{8}-[\da-f-]{27})$/m.exec(text)?.[1]
    if (key) return key
  }
}

/** A mailed recovery key. */
async function recoveryKey(at: Installation, person: Person, email: string): Promise<string> {
  const { username } = person
  await must(send(at, person, '/forgotpasswords/sendkeybyemail', { username, email }))
  return keyIn(at, email)
}

/** Asks for a code for a new address. */
export async function emailCode(at: Installation, person: Person): Promise<{ refusal?: string; code: string }> {
  const { pwd, password } = person
  const email = `${randomUUID()}@example.org`
  const refusal = refusalOf(await send(at, person, '/users/setemail', { email, password }, pwd))
  return refusal === undefined ? { code: await keyIn(at, email) } : { refusal, code: '' }
}

export const confirmEmail = (at: Installation, person: Person, token: string, code: string) =>
  send(at, person, '/users/confirmemail', { code }, token)

/** The present one-time code. */
export const codeOf = ({ clock }: Installation, secret: string) =>
  new TOTP({ secret }).generate({ timestamp: clock.now() })

/** A session of Administration. */
export async function signIn(at: Installation, { username, password, totp }: Person): Promise<string> {
  const code = totp === undefined ? {} : { code: codeOf(at, totp) }
  return (await openAdministration(at.t, at.service).signIn({ username, password, ...code })).token
}

/** Enrolls new one-time codes with a session of Administration. */
export async function enroll(at: Installation, token: string): Promise<string> {
  const session = openAdministration(at.t, at.service, token)
  const { secret } = await session.enrollTotp({})
  await session.confirmTotp({ code: codeOf(at, secret) })
  return secret
}

async function signUp(at: Installation, role: string, home: string): Promise<Person> {
  const question = `Qual é o número ${randomUUID()}?`
  const username = randomUUID()
  const form = signUpForm({ username, roles: [role], securityquestion: question, securityanswer: answers.first })
  const pwd = await must(send(at, { home }, '/users/signup', form))
  return { id: idOf(pwd), home, question, username, password, pwd, kba: '', otp: '', saver: '' }
}

/** The day of the sign-ups: answers count at once. */
export async function beginHolding(at: Installation, kind: Kind): Promise<Holding> {
  const { service } = at
  const api = await at.administer()
  const home = anyAddress()
  const organization = await service.organization()
  const member = `#${organization.id}`
  const questions: number[] = []
  for (let count = 0; count < 4; count++) {
    const { question } = await api.createQuestion({ question: `Qual é a cor ${randomUUID()}?` })
    questions.push(question!.record!.id!)
  }

  async function administrator(): Promise<Person> {
    const person = await signUp(at, 'ROLE_ADMIN', home)
    await api.activateUser({ user: person.username, organization: member, confirm: person.username })
    return person
  }
  async function activated(role: string, activationkey: string): Promise<Person> {
    const person = await signUp(at, role, home)
    await must(send(at, person, '/users/activate', { username: person.username, activationkey }, person.pwd))
    return person
  }
  const institution = await activated('ROLE_INSTITUTION', organization.activationkey)
  const account =
    kind === 'institution'
      ? await activated('ROLE_INSTITUTION', organization.activationkey)
      : kind === 'client'
        ? await activated('ROLE_CLIENT', await providerKeyOf(at, institution))
        : await administrator()
  for (const question of questions.slice(0, 2))
    await must(saveAnswer(at, account, account.pwd, question, answers.first))
  const newcomer = await signUp(at, 'ROLE_INSTITUTION', home)
  await api.setOrganization({ user: newcomer.username, organization: member })
  const { service: made, key } = await api.createService({ name: randomUUID(), scopes: [Scope.USERS_READ] })
  return {
    organization,
    institution,
    account,
    newcomer,
    administrator: kind.startsWith('administrator') ? account : await administrator(),
    enrolled: kind === 'administrator with codes' ? account : await administrator(),
    service: { name: made!.name, key, keyId: made!.keys[0]!.id },
    third: { client: await signUp(at, 'ROLE_CLIENT', home), institution: await signUp(at, 'ROLE_INSTITUTION', home) },
    questions,
    email: `${randomUUID()}@example.org`,
    device: await must(enterPassword(at, account)),
    secrets: {},
    missing: {},
  }
}

/** A day later: a session of each kind. */
export async function openSessions(at: Installation, holding: Holding): Promise<void> {
  const { account, enrolled, questions, email, missing } = holding
  enrolled.totp = await enroll(at, await signIn(at, enrolled))
  for (const person of peopleOf(holding)) {
    person.pwd = await must(enterPassword(at, person))
    person.saver = person.pwd
    if (person === account) continue
    person.kba = await forge(at.service, person.pwd, { amr: ['kba'] })
    person.otp = await forge(at.service, person.pwd, { amr: ['otp'] })
  }
  account.kba = await must(enterAnswers(at, account, questions.slice(0, 2), answers.first))
  for (const question of questions) {
    const refusal = refusalOf(await saveAnswer(at, account, account.saver, question, answers.waiting))
    if (refusal !== undefined) missing.waiting = refusal
  }
  // Only now: a process sends two e-mails a second, and answers would bring more.
  const form = { form: { email }, updateMask: { paths: ['email'] } }
  await (await at.administer()).updateUser({ user: account.username, ...form })
  account.otp = await must(enterKey(at, account, await recoveryKey(at, account, email)))
}

/** Two minutes later, so that the sessions differ: everything else. */
export async function collectSecrets(at: Installation, holding: Holding): Promise<void> {
  const { account, newcomer, administrator, organization, email, secrets, missing } = holding
  account.pwd = await must(enterPassword(at, account))
  secrets.recovery = await recoveryKey(at, account, email)
  const { refusal, code } = await emailCode(at, account)
  secrets.email = code
  if (refusal !== undefined) missing.email = refusal
  secrets.provider = await providerKeyOf(at, account)
  if (secrets.provider === '')
    missing.provider = refusalOf(await send(at, account, '/users/me/providerkey', {}, account.pwd)) ?? 'none'
  const partner = { username: newcomer.username, emailpartner: organization.email }
  await must(send(at, newcomer, '/1.0.0/users/sendadminkeybyemailpartner', partner, newcomer.pwd))
  secrets.mailed = await keyIn(at, organization.email)
  secrets.session = await signIn(at, administrator)
}

async function providerKeyOf(at: Installation, { pwd }: Person): Promise<string> {
  const me = await at.service.request('GET', '/users/me', { token: pwd })
  return me.json.providerActivationKey?.activationkey ?? ''
}

/** The people of a holding, each once. */
export const peopleOf = ({ account, newcomer, administrator, enrolled }: Holding): Person[] => [
  ...new Set([account, newcomer, administrator, enrolled]),
]

/** Who holds a credential; undefined for those of an organization or a service. */
export function holderOf(holding: Holding, credential: Credential): Person | undefined {
  if (credential === 'organization' || credential === 'service') return undefined
  if (credential === 'mailed') return holding.newcomer
  if (credential === 'session') return holding.administrator
  if (credential === 'code') return holding.enrolled
  return holding.account
}

/**
 * Uses every credential except waiting answers, and returns whether it opens what it should. The order is that in which no use
 * disturbs another.
 */
export async function useAll(at: Installation, holding: Holding): Promise<Partial<Record<Credential, boolean>>> {
  const { service } = at
  const { account, newcomer, enrolled, organization, questions, secrets, third } = holding
  const me = async (token: string) => (await service.request('GET', '/users/me', { token })).status === 200
  /** A new session, if there can be one: an end of the old ones must not hide that a secret still works. */
  async function sessionOf(person: Person): Promise<string> {
    const { status, text } = await enterPassword(at, person)
    return status === 200 ? text : person.pwd
  }
  async function activates(person: Person, activationkey = ''): Promise<boolean> {
    const body = { username: person.username, activationkey }
    return (await send(at, person, '/users/activate', body, await sessionOf(person))).status === 200
  }
  const key = holding.service.key
  const found: Partial<Record<Credential, boolean>> = {
    pwd: await me(account.pwd),
    kba: await me(account.kba),
    otp: await me(account.otp),
    organization: await activates(third.institution, organization.activationkey),
    provider: await activates(third.client, secrets.provider),
    mailed: await activates(newcomer, secrets.mailed),
    service: (await service.request('GET', '/users/admin', { token: key })).status === 200,
    session: (await reasonOf(openAdministration(at.t, service, secrets.session).getSession({}))) === 'none',
    code: await needsCode(at, enrolled),
    password: (await enterPassword(at, account, password)).status === 200,
    answers: (await enterAnswers(at, account, questions.slice(0, 2), answers.first)).status === 200,
    recovery: (await enterKey(at, account, secrets.recovery ?? '')).status === 200,
  }
  found.email = (await confirmEmail(at, account, await sessionOf(account), secrets.email || 'none')).status === 200
  found.device = await passesLock(at, holding)
  return found
}

/** Whether a sign-in of Administration needs the one-time code of a person, and succeeds with it. */
async function needsCode(at: Installation, { username, password, totp }: Person): Promise<boolean> {
  const open = openAdministration(at.t, at.service)
  if ((await reasonOf(open.signIn({ username, password }))) !== 'CODE_NEEDED') return false
  return (await reasonOf(open.signIn({ username, password, code: codeOf(at, totp!) }))) === 'none'
}

/** Whether the device of an account may try a password while strangers have locked the account. */
async function passesLock(at: Installation, { account, device }: Holding): Promise<boolean> {
  const strange = { ...account, home: anyAddress() }
  for (let failures = 0; failures < 10; failures++) await enterPassword(at, strange, 'not the password')
  const locked = await enterPassword(at, strange)
  if (locked.status !== 429) throw new Error(`The account isn’t locked: ${locked.status}`)
  const { username, password } = account
  return (await send(at, { home: anyAddress() }, '/users/login', { username, password }, device)).status !== 429
}

/** Whether answers that waited for a day count now: the first ones to two questions, and those that replace others. */
export async function countsNow(at: Installation, { account, questions }: Holding): Promise<boolean> {
  const of = async (chosen: readonly number[]) =>
    (await enterAnswers(at, account, chosen, answers.waiting)).status === 200
  const [replacing, first] = [await of(questions.slice(0, 2)), await of(questions.slice(2))]
  if (replacing !== first) throw new Error(`Of waiting answers count: first ones ${first}, replacing ones ${replacing}`)
  return first
}
