import { randomInt } from 'node:crypto'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { SignUpRequest, Users as UsersService } from '../../proto/gen/auth/v1/users_pb.js'
import { type Callers, traces } from '../access/caller.js'
import type { Keyring } from '../access/keyring.js'
import { attemptSignIn, withPlace } from '../access/signin.js'
import type { Tokens } from '../access/tokens.js'
import type { Implementation } from '../call.js'
import { brokenConstraint, type Database, type Transaction } from '../database/connection.js'
import type { MasterKey } from '../masterkey.js'
import type { Audit } from '../models/audit.js'
import type { Emails } from '../models/email.js'
import type { MailedKeys } from '../models/mailedkey.js'
import type { Organizations } from '../models/organization.js'
import type { Questions } from '../models/question.js'
import type { SignIns } from '../models/signin.js'
import type { LockedUser, Users } from '../models/user.js'
import { isEmailAddress, nicknameKey, questionKey, usernameKey } from '../names.js'
import type { PasswordPolicy, Passwords } from '../passwords/hash.js'
import type { Hashing } from '../passwords/pool.js'
import { type FieldViolation, refuse } from '../refusal.js'
import { required } from '../required.js'
import { checkSignUp, dayInBrazil, type SignUpForm } from './signupform.js'
import { toRecord } from './userrecord.js'

/** What the Users service is made of. */
export interface UsersDeps {
  readonly database: Database
  readonly users: Users
  readonly organizations: Organizations
  readonly questions: Questions
  readonly mailedKeys: MailedKeys
  readonly emails: Emails
  readonly signIns: SignIns
  readonly audit: Audit
  readonly callers: Callers
  readonly tokens: Tokens
  readonly keyring: Keyring
  readonly hashing: Hashing
  readonly passwords: Passwords
  readonly policy: PasswordPolicy
  readonly masterKey: MasterKey
  readonly chooseLocale: (acceptLanguage: string | undefined) => string
}

const uuid = /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/

/** The Users service; what each RPC means and refuses stands in users.proto. */
export function createUsersService(deps: UsersDeps): Implementation<typeof UsersService> {
  const { database, users, organizations, questions, mailedKeys, emails, signIns, audit } = deps
  const { callers, tokens, keyring, hashing, passwords, policy, masterKey, chooseLocale } = deps

  /** The names in the form that are taken, as wrong fields. */
  async function takenNames(request: Pick<SignUpRequest, 'username' | 'nickname'>): Promise<FieldViolation[]> {
    const [name, nick] = [usernameKey(request.username ?? ''), nicknameKey(request.nickname ?? '')]
    const taken = await users.taken(name, nick)
    const fields: FieldViolation[] = []
    if (taken.username) fields.push({ field: 'username', message: 'Choose another username: this one is taken.' })
    if (taken.nickname) {
      const free = await freeNickname(request.nickname!.trim())
      fields.push({ field: 'nickname', message: `Choose another nickname: this one is taken, ${free} is free.` })
    }
    return fields
  }

  async function freeNickname(nickname: string): Promise<string> {
    const base = [...nickname].slice(0, 200).join('')
    for (let digits = 1; ; digits++) {
      const offers = Array.from({ length: 8 }, () => `${base}${randomInt(10 ** digits, 10 ** (digits + 1))}`)
      const taken = await users.takenNicknames(offers.map(nicknameKey))
      const free = offers.find(offer => !taken.has(nicknameKey(offer)))
      if (free) return free
    }
  }

  /** The offered question that the form names by number or text, if any. */
  async function chosenQuestion({ securityquestion: text }: SignUpForm) {
    if (text === undefined) return undefined
    const id = /^\d{1,9}$/.test(text) ? Number(text) : undefined
    return questions.offered(id === undefined ? { key: questionKey(text) } : { id })
  }

  /** The organization that a key makes the user a member of; undefined when the key is no good for this user. */
  async function spendActivationKey(user: LockedUser, key: string, t: Transaction): Promise<number | undefined> {
    if (!uuid.test(key)) return undefined
    if (user.role === 'ROLE_CLIENT') return organizations.byProviderKey(key, t)
    const organization = await organizations.byActivationKey(key, t)
    if (organization !== undefined) return organization
    const spent = await mailedKeys.spend(user.id, 'activation', key, t)
    const id = spent?.organizationId
    return id != null && (await organizations.isActive(id, t)) ? id : undefined
  }

  return {
    async signUp(request, call) {
      const { fields, form } = checkSignUp(request, policy, dayInBrazil(new Date()))
      const wrong = new Set(fields.map(({ field }) => field))
      const taken = (await takenNames(request)).filter(({ field }) => !wrong.has(field))
      const malformed = new Set(call.malformedFields.map(({ field }) => field))
      const all = [...fields.filter(({ field }) => !malformed.has(field)), ...call.malformedFields, ...taken]
      if (all.length > 0 || !form) refuse(Reason.INVALID_SIGN_UP, { fields: all })

      const question = await chosenQuestion(form)
      const answer = question && form.securityanswer
      const turn = { account: form.usernameKey, deadline: call.deadline, signal: call.signal, jobs: answer ? 2 : 1 }
      const [passwordHash, answerHash] = await withPlace(hashing.reserve(turn), async place => [
        await passwords.hash(form.password, 'password', place),
        answer && (await passwords.hash(answer, 'answer', place)),
      ])

      const row = {
        username: form.username,
        usernameKey: form.usernameKey,
        nickname: form.nickname,
        nicknameKey: form.nicknameKey,
        passwordHash: passwordHash!,
        email: form.email ?? null,
        dateOfBirth: form.dateofborn ?? null,
        gender: form.gender ?? null,
        state: form.state,
        city: form.city,
        institutionType: form.institutiontype ?? null,
        institution: form.institution ?? null,
        securityQuestion: question?.question ?? form.securityquestion ?? null,
        termsOfUsage: true,
        role: form.role,
      }
      const id = await database
        .transact(async t => {
          const added = await users.add(row, t)
          if (question && answerHash) await questions.saveAnswer(added, question.id, answerHash, t)
          await audit.append({ ...traces(call), action: 'user.sign-up', outcome: 'ok', subject_id: added }, t)
          return added
        })
        .catch(async error => {
          // Somebody else took a name since it was looked up.
          if (!brokenConstraint(error)?.startsWith('users_')) throw error
          return refuse(Reason.INVALID_SIGN_UP, { fields: await takenNames(request) })
        })
      const holder = { id, username: form.username, role: form.role, active: false }
      return { token: await tokens.issue({ ...holder, organizationId: null, tokenGeneration: 0 }, startSession('pwd')) }
    },

    async activate(request, call) {
      const key = usernameKey(request.username ?? '')
      const caller = await callers.identify(call)
      if (key !== '' && key !== caller.user.usernameKey && !caller.admin) refuse(Reason.ACCESS_DENIED)
      const { activationkey } = required({ username: request.username, activationkey: request.activationkey })

      const activated = await database.transact(async t => {
        const user = await users.lock(key, t)
        if (!user || user.active || user.suspended || user.role === 'ROLE_ADMIN') return undefined
        const organization = await spendActivationKey(user, activationkey.trim().toLowerCase(), t)
        if (organization === undefined) return undefined
        await users.activate(user, organization, t)
        const object = `organization:${organization}`
        const event = { action: 'user.activate', outcome: 'ok', subject_id: user.id, object } as const
        await audit.append({ ...traces(call, caller.user), ...event }, t)
        return user.username
      })
      if (activated !== undefined) return { username: activated }
      const event = { action: 'user.activate', outcome: 'refused', reason: 'ACTIVATION_REFUSED' } as const
      await audit.append({
        ...traces(call, caller.user),
        ...event,
        ...(!caller.admin && { subject_id: caller.user.id }),
      })
      return refuse(Reason.ACTIVATION_REFUSED)
    },

    async login(request, call) {
      const { username, password } = required({ username: request.username, password: request.password })
      const key = usernameKey(username)
      const place = hashing.reserve({ account: key, deadline: call.deadline, signal: call.signal })
      return withPlace(place, () =>
        attemptSignIn({ signIns, audit }, 'session.login', key, call, async attempt => {
          const { account } = attempt
          const verdict = await passwords.verify(password, account?.passwordHash, 'password', place)
          if (!account || !verdict.correct || account.suspended) return attempt.fail(Reason.INVALID_CREDENTIALS)
          const renewed = verdict.renew ? await passwords.hash(password, 'password', place) : undefined
          const options = renewed === undefined ? {} : { renewed }
          await signIns.succeed({ ...attempt, account }, call.address, attempt.success(account), options)
          return { token: await tokens.issue(account, startSession('pwd')) }
        }),
      )
    },

    async getMe(_request, call) {
      const caller = await callers.identify(call)
      return { user: toRecord(caller.user, caller, masterKey) }
    },

    async refresh(_request, call) {
      const { user, session } = await callers.identify(call)
      return { token: await tokens.issue(user, session) }
    },

    async getUser(request, call) {
      const { caller, target } = await callers.identifyWith(call, usernameKey(request.username ?? ''))
      const { user, admin } = caller
      const own = target?.id === user.id
      const provider = user.role === 'ROLE_INSTITUTION' && user.active && user.organizationId !== null
      const member = provider && target?.organizationId === user.organizationId
      if (request.username?.trim() && !own && !member && !admin) refuse(Reason.ACCESS_DENIED)
      required({ username: request.username })
      return { user: toRecord(target ?? refuse(Reason.USER_NOT_FOUND), caller, masterKey) }
    },

    async sendAdminKeyByEmailPartner(request, call) {
      const key = usernameKey(request.username ?? '')
      const { caller, target } = await callers.identifyWith(call, key)
      const own = key === '' || target?.id === caller.user.id
      const permitted = caller.admin || (caller.user.role === 'ROLE_INSTITUTION' && own)
      if (!permitted) refuse(Reason.ACCESS_DENIED)
      const { emailpartner } = required({ emailpartner: request.emailpartner, username: request.username })
      if (target?.role !== 'ROLE_INSTITUTION') refuse(Reason.USER_NOT_FOUND)
      const member = { organizationId: target.organizationId, institutionKey: nicknameKey(target.institution ?? '') }
      const email = emailpartner.trim()
      const organizationId = isEmailAddress(email) ? await organizations.byEmail(email, member) : undefined
      if (organizationId === undefined) refuse(Reason.ORGANIZATION_EMAIL_NOT_FOUND)
      await database.transact(async t => {
        if (!(await emails.mayMail('activation', target.id, t))) return
        const locale = chooseLocale(call.acceptLanguage)
        await emails.add({ kind: 'activation-key', parameters: { userId: target.id, organizationId } }, locale, t)
        const object = `organization:${organizationId}`
        const event = { action: 'user.send-activation-key', outcome: 'ok', subject_id: target.id, object } as const
        await audit.append({ ...traces(call, caller.user), ...event }, t)
      })
      return {}
    },

    async existsByUsername(request) {
      const { username } = required({ username: request.username })
      return { exists: (await users.taken(usernameKey(username), '')).username }
    },

    async existsByNickname(request) {
      const { nickname } = required({ nickname: request.nickname })
      return { exists: (await users.taken('', nicknameKey(nickname))).nickname }
    },

    async verifyToken(request) {
      const found = await callers.introspect(request.token?.trim() ?? '')
      if (!found) return { active: false }
      const { claims } = found
      const { user } = found.caller
      return {
        active: true,
        sub: claims.sub,
        username: user.username,
        tokenType: 'Bearer',
        exp: BigInt(claims.exp),
        iat: BigInt(claims.iat),
        iss: claims.iss,
        aud: claims.aud,
        jti: claims.jti,
        authTime: BigInt(claims.auth_time),
        amr: [...claims.amr],
        roles: [user.role],
        org: user.organizationId ?? undefined,
        userActive: user.active,
      }
    },

    getKeys: async () => ({ keys: await keyring.published() }),
  }
}

/** A session that starts now. */
export function startSession<M>(method: M): { method: M; startedAt: number } {
  return { method, startedAt: Math.floor(Date.now() / 1000) }
}
