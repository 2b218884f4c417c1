/**
 * The outbox owns what becomes of the e-mails that the service queues: it composes them in their turn (here), words
 * them (texts.ts), delivers them (sender.ts) and reaches the mail server (transport.ts). Whether an e-mail is due,
 * and the queue itself, belong to the models; the program's wiring starts it, and no request waits for it.
 */
import { randomUUID } from 'node:crypto'
import { knownAddressDays } from '../access/lockout.js'
import type { Transaction } from '../database/connection.js'
import type { Models } from '../models/define-models.js'
import type { Email, EmailIntent, Notice, Queued } from '../models/email.js'
import { emailCode, newRecoveryKey } from '../models/mailed-key.js'
import type { User } from '../models/user.js'
import type { Log } from '../observability/log.js'
import type { Settings } from '../process/settings.js'
import type { Limit } from '../requests/refusal.js'
import { emailKey } from '../rules/names.js'
import { createQuotas } from './quotas.js'
import { type Composed, type Sender, startSender } from './sender.js'
import { type Contents, type Locale, writeEmail } from './texts.js'
import { createMailTransport } from './transport.js'

/** Starts to process the queue of e-mails. `onRefusal` is called with the limit that holds one back. */
export function startMail(
  models: ComposerModels,
  settings: Pick<Settings, 'smtpUrl' | 'mailFrom' | 'dataDir' | 'recoveryEmail' | 'limitFactor'>,
  log: Log,
  now: () => number,
  onRefusal?: (limit: Limit) => void,
): Sender {
  const compose = createComposer(models, settings, now, onRefusal)
  const transport = createMailTransport(settings, log)
  return startSender({ queue: models.emails, compose, transport, log, factor: settings.limitFactor, now })
}

/** Milliseconds after which a request for a recovery key is of no use. */
const recoveryUseful = 3_600_000

/** The models that composing needs. */
type ComposerModels = Pick<
  Models,
  | 'database'
  | 'users'
  | 'administeredUsers'
  | 'organizations'
  | 'mailedKeys'
  | 'emails'
  | 'emailQuotas'
  | 'attempts'
  | 'counterKeys'
  | 'audit'
>

/**
 * Makes e-mails out of what is queued, for users as they are by now: a user who was suspended meanwhile gets none. A
 * key is made here, when it goes out, and is stored as a digest only.
 */
export function createComposer(
  models: ComposerModels,
  settings: Pick<Settings, 'recoveryEmail' | 'limitFactor'>,
  now: () => number,
  onRefusal?: (limit: Limit) => void,
): (email: Email) => Promise<Composed> {
  const { database, users, administeredUsers, organizations, mailedKeys, emails, attempts, counterKeys, audit } = models
  const quotas = createQuotas(models.emailQuotas, counterKeys, settings.limitFactor, now, onRefusal)

  /**
   * Admits an e-mail for a user. Anybody may sign up, with addresses that a mail server refuses, and refuses slowly: what
   * goes to an account that isn't active comes back behind all others.
   */
  async function admit<I extends EmailIntent>(id: string, intent: I, user: User | undefined, t: Transaction) {
    const active = user?.active === true
    const admitted = await emails.admit(id, intent, active, t)
    return admitted && active ? admitted : 'held'
  }

  /**
   * Decides on a request for a key: whether the user is there, the address is its own, and there were few e-mails. No
   * stranger uses up what an owner asks for from a network that the account knows. Only active accounts reach their
   * recipient without limit from there: anybody may sign up, and sign in, with somebody else's e-mail address.
   */
  async function decide(request: Queued<'recovery-request'>): Promise<Composed> {
    const { usernameKey, email, address, requestId, actor = 'anonymous' } = request.parameters
    const user = await users.byUsername(usernameKey)
    if (!user || user.suspended) return 'unwanted'
    const registered = user.email !== null && emailKey(user.email) === emailKey(email)
    if (!registered && settings.recoveryEmail !== 'any') return 'unwanted'
    const to = registered ? user.email! : email
    const known = await attempts.knownNetwork(user.id, address, knownAddressDays)
    const event = { action: 'recovery.send-key', outcome: 'ok', actor, subject_id: user.id } as const
    const unlimited = known !== undefined && registered && user.active
    const wait = async (t?: Transaction) =>
      (await quotas.recovery(user.id, known, t)) ||
      (unlimited ? 0 : await quotas.recipient(to, known !== undefined && registered, t))
    if ((await wait()) > 0) return 'unwanted'
    const refused = new Error('refused')
    const decided = database.transact(async t => {
      // What sends nothing uses up nothing.
      if ((await wait(t)) > 0) throw refused
      await audit.append({ ...event, address, request_id: requestId }, t)
      return admit(request.id, { kind: 'recovery-key', parameters: { userId: user.id, to } }, user, t)
    })
    const admitted = await decided.catch(error => {
      if (error !== refused) throw error
      return 'unwanted' as const
    })
    return typeof admitted === 'object' ? sendRecoveryKey(admitted, user) : admitted
  }

  /**
   * Stores a key while its entry is in the queue; false when it was discarded, as by whatever voids such keys: that waits
   * for this, and voids the key, or was first.
   */
  function storeKey({ id }: Email, store: (t: Transaction) => Promise<void>): Promise<boolean> {
    return database.transact(async t => {
      if (!(await emails.lock(id, t))) return false
      await store(t)
      return true
    })
  }

  async function sendRecoveryKey(entry: Queued<'recovery-key'>, read?: User): Promise<Composed> {
    const { userId, to } = entry.parameters
    const user = read ?? (await users.byId(userId))
    if (!user || user.suspended) return 'unwanted'
    // It may have been changed since the request.
    if (settings.recoveryEmail !== 'any' && emailKey(user.email ?? '') !== emailKey(to)) return 'unwanted'
    const key = newRecoveryKey()
    if (!(await storeKey(entry, t => mailedKeys.replace(userId, 'recovery', key, undefined, t)))) return 'unwanted'
    return write(entry, [userId], to, 'recovery-key', { username: user.username, key })
  }

  /** Decides whether a code goes to the address that a user wants: only its quota can prevent it, silently. */
  async function admitCode({ id, parameters }: Queued<'email-request'>): Promise<Composed> {
    const user = await users.byId(parameters.userId)
    const admitted = await database.transact(async t => {
      if ((await quotas.recipient(parameters.to, false, t)) > 0) return 'unwanted'
      return admit(id, { kind: 'email-code', parameters }, user, t)
    })
    return typeof admitted === 'object' ? sendCode(admitted) : admitted
  }

  async function sendCode(entry: Queued<'email-code'>): Promise<Composed> {
    const { userId, to, generation } = entry.parameters
    const user = await users.byId(userId)
    // The session that asked has ended.
    if (!user || user.suspended || user.tokenGeneration !== generation) return 'unwanted'
    const key = newRecoveryKey()
    const code = emailCode(key, generation)
    if (!(await storeKey(entry, t => mailedKeys.replaceEmail(userId, code, to, t)))) return 'unwanted'
    return write(entry, [userId], to, 'email-code', { username: user.username, key })
  }

  async function sendActivationKey(entry: Queued<'activation-key'>): Promise<Composed> {
    const { userId, organizationId } = entry.parameters
    const user = await users.byId(userId)
    const organization = await organizations.find(organizationId)
    if (!user || user.suspended || !organization?.active || !organization.email) return 'unwanted'
    const key = randomUUID()
    const stored = await storeKey(entry, t => mailedKeys.replace(userId, 'activation', key, organizationId, t))
    if (!stored) return 'unwanted'
    return write(entry, [userId], organization.email, 'activation-key', { username: user.username, key })
  }

  /** Decides when an owner is notified: at once, or later of all that happened until then. */
  async function announce(email: Queued<Notice | 'held-notice'>): Promise<Composed> {
    const user = await users.byId(email.parameters.userId)
    const to = email.parameters.to ?? user?.email
    if (!to) return 'unwanted'
    const parameters =
      email.kind === 'held-notice' ? email.parameters : { ...email.parameters, notice: email.kind, times: 1 }
    const admitted = await database.transact(async t => {
      const wait = await quotas.recipient(to, false, t)
      if (wait === 0) return admit(email.id, { kind: 'notice', parameters }, user, t)
      await emails.hold(email, wait, t)
      return 'held'
    })
    return typeof admitted === 'object' ? tellOwner(admitted) : admitted
  }

  async function tellOwner(entry: Queued<'notice'>): Promise<Composed> {
    const { userId, notice, to, ...content } = entry.parameters
    const user = await users.byId(userId)
    const email = to ?? user?.email
    if (!user || !email) return 'unwanted'
    return write(entry, [userId], email, notice, { username: user.username, ...content })
  }

  async function tellAdministrator(entry: Queued<'administration' | 'administered'>): Promise<Composed> {
    const { kind, parameters } = entry
    const { userId, subjectId, actor, actorId, ...content } = parameters
    const to = 'to' in parameters ? parameters.to : (await users.byId(userId))?.email
    if (!to) return 'unwanted'
    // A deleted one has its name still, an erased one none.
    const nameOf = async (id: number) => (await administeredUsers.find({ id }))?.username ?? ''
    const who = actorId === undefined ? { actor } : { actor: await nameOf(actorId), actorId }
    const told = { username: await nameOf(subjectId), id: subjectId, ...who, ...content }
    return write(entry, [userId, subjectId], to, kind, told)
  }

  return async email => {
    switch (email.kind) {
      case 'recovery-request':
      case 'recovery-key':
        if (now() - email.createdAt.getTime() > recoveryUseful) return 'expired'
        return email.kind === 'recovery-request' ? decide(email) : sendRecoveryKey(email)
      case 'email-request':
        return admitCode(email)
      case 'email-code':
        return sendCode(email)
      case 'activation-key':
        return sendActivationKey(email)
      case 'password-changed':
      case 'recovery-login':
      case 'answer-saved':
      case 'email-changed':
      case 'wrong-codes':
      case 'held-notice':
        return announce(email)
      case 'notice':
        return tellOwner(email)
      case 'administration':
      case 'administered':
        return tellAdministrator(email)
    }
  }
}

function write<K extends keyof Contents>(
  { id, createdAt, locale }: Email,
  users: readonly number[],
  to: string,
  kind: K,
  content: Contents[K],
): Composed {
  return { to, ...writeEmail(kind, locale as Locale, content), name: `auth.${id}.${createdAt.getTime()}`, users }
}
