/**
 * The outbox owns what becomes of the e-mails that the service queues: it composes them in their turn (here), words
 * them (texts.ts), delivers them (sender.ts) and reaches the mail server (transport.ts). Whether an e-mail is due to
 * anybody, and the queue itself, belong to the models; the program's wiring starts it, and nobody waits for it.
 */
import { randomUUID } from 'node:crypto'
import { knownAddressDays } from '../access/lockout.js'
import type { Log } from '../log.js'
import type { Models } from '../models/definemodels.js'
import type { Email, Notice } from '../models/email.js'
import { newRecoveryKey } from '../models/mailedkey.js'
import { emailKey } from '../names.js'
import type { Settings } from '../settings.js'
import { createQuotas } from './quotas.js'
import { type Composed, type Sender, startSender } from './sender.js'
import { type Contents, type Locale, writeEmail } from './texts.js'
import { createMailTransport } from './transport.js'

/** An e-mail of one kind, as the queue lends it. */
type Queued<K extends Email['kind']> = Extract<Email, { kind: K }>

/** Starts to work off the queue of e-mails. */
export function startMail(
  models: ComposerModels,
  settings: Pick<Settings, 'smtpUrl' | 'mailFrom' | 'dataDir' | 'recoveryEmail' | 'limitFactor'>,
  log: Log,
  now: () => number,
): Sender {
  const compose = createComposer(models, settings)
  return startSender({ queue: models.emails, compose, transport: createMailTransport(settings, log), log, now })
}

/** The models that composing needs. */
type ComposerModels = Pick<
  Models,
  'database' | 'users' | 'organizations' | 'mailedKeys' | 'emails' | 'emailQuotas' | 'attempts' | 'subjects' | 'audit'
>

/**
 * Makes e-mails out of what is queued, for users as they are by now: who was suspended meanwhile gets none. A key is
 * made here, when it goes out, and is stored as a digest only.
 */
export function createComposer(
  models: ComposerModels,
  settings: Pick<Settings, 'recoveryEmail' | 'limitFactor'>,
): (email: Email) => Promise<Composed> {
  const { database, users, organizations, mailedKeys, emails, attempts, subjects, audit } = models
  const quotas = createQuotas(models.emailQuotas, subjects, settings.limitFactor)

  /**
   * Decides on a request for a key: whether the user is there, the address is its own, and there were few e-mails. No
   * stranger uses up what an owner asks for from an address that the account knows. Only active accounts reach their
   * recipient without limit from there: anybody may sign up, and sign in, with somebody else's e-mail address.
   */
  async function decide(request: Queued<'recovery-request'>): Promise<Composed> {
    const { usernameKey, email, address, requestId } = request.parameters
    const user = await users.byUsername(usernameKey)
    if (!user || user.suspended) return 'unwanted'
    const registered = user.email !== null && emailKey(user.email) === emailKey(email)
    if (!registered && settings.recoveryEmail !== 'any') return 'unwanted'
    const to = registered ? user.email! : email
    const known = await attempts.knows(user.id, subjects.knownAddress(address), knownAddressDays)
    const event = { action: 'recovery.send-key', outcome: 'ok', actor: 'anonymous', subject_id: user.id } as const
    const refused = new Error('refused')
    const decided = database.transact<Composed>(async t => {
      const unlimited = known && registered && user.active
      const wait =
        (await quotas.recovery(user.id, known ? address : undefined, t)) ||
        (unlimited ? 0 : await quotas.recipient(to, known && registered, t))
      // What sends nothing uses up nothing.
      if (wait > 0) throw refused
      await emails.admit(request.id, { kind: 'recovery-key', parameters: { userId: user.id, to } }, t)
      await audit.append({ ...event, address, request_id: requestId }, t)
      return 'requeued'
    })
    return decided.catch(error => {
      if (error !== refused) throw error
      return 'unwanted'
    })
  }

  async function sendRecoveryKey({ parameters: { userId, to }, locale }: Queued<'recovery-key'>): Promise<Composed> {
    const user = await users.byId(userId)
    if (!user || user.suspended) return 'unwanted'
    const key = newRecoveryKey()
    await mailedKeys.replace(userId, 'recovery', key)
    return write(to, 'recovery-key', locale, { username: user.username, key })
  }

  async function sendActivationKey({ parameters, locale }: Queued<'activation-key'>): Promise<Composed> {
    const { userId, organizationId } = parameters
    const user = await users.byId(userId)
    const organization = await organizations.find({ id: organizationId })
    if (!user || user.suspended || !organization?.active || !organization.email) return 'unwanted'
    const key = randomUUID()
    await mailedKeys.replace(userId, 'activation', key, organizationId)
    return write(organization.email, 'activation-key', locale, { username: user.username, key })
  }

  /** Decides when an owner is told: at once, or later of all that happened until then. */
  async function announce(email: Queued<Notice | 'held-notice'>): Promise<Composed> {
    const user = await users.byId(email.parameters.userId)
    const to = user?.email
    if (!to) return 'unwanted'
    const parameters =
      email.kind === 'held-notice' ? email.parameters : { ...email.parameters, notice: email.kind, times: 1 }
    await database.transact(async t => {
      const wait = await quotas.recipient(to, false, t)
      if (wait > 0) await emails.hold(email, wait, t)
      else await emails.admit(email.id, { kind: 'notice', parameters }, t)
    })
    return 'requeued'
  }

  async function tellOwner({ parameters, locale }: Queued<'notice'>): Promise<Composed> {
    const { userId, notice, ...content } = parameters
    const user = await users.byId(userId)
    if (!user?.email) return 'unwanted'
    return write(user.email, notice, locale, { username: user.username, ...content })
  }

  return async email => {
    switch (email.kind) {
      case 'recovery-request':
        return decide(email)
      case 'recovery-key':
        return sendRecoveryKey(email)
      case 'activation-key':
        return sendActivationKey(email)
      case 'password-changed':
      case 'recovery-login':
      case 'answer-saved':
      case 'held-notice':
        return announce(email)
      case 'notice':
        return tellOwner(email)
    }
  }
}

function write<K extends keyof Contents>(to: string, kind: K, locale: string, content: Contents[K]): Composed {
  return { to, ...writeEmail(kind, locale as Locale, content) }
}
