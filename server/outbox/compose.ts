// Composes queued e-mails, within quotas.
import { randomUUID } from 'node:crypto'
import { pass } from '../access/gate.js'
import type { Transaction } from '../database/database.js'
import { registryTag } from '../models/data-key.js'
import type { Email, Notice, ReadyEmail, RequestedEmail } from '../models/email.js'
import type { Models } from '../models/index.js'
import { newRecoveryKey } from '../models/mailed-key.js'
import type { User } from '../models/user.js'
import type { Log } from '../observability/log.js'
import type { Settings } from '../process/settings.js'
import type { Locale } from '../requests/locale.js'
import type { Limit } from '../requests/refusal.js'
import { emailKey } from '../rules/names.js'
import { readTelephone } from '../rules/telephone.js'
import { createQuotas, hasByRight, type Quotas } from './quotas.js'
import { type Composed, startSender } from './sender.js'
import { createMailTransport } from './transport.js'
import { type Contents, writeEmail } from './write-email.js'

/** Starts to process the queue of e-mails. `onRefusal` is called with the limit that an e-mail exceeds. */
export function startMail(
  models: Models,
  settings: Pick<
    Settings,
    'smtpUrl' | 'mailFrom' | 'issuer' | 'dataDir' | 'recoveryEmail' | 'limitFactor' | 'timeZone'
  >,
  log: Log,
  now: () => number,
  onRefusal?: (limit: Limit) => void,
) {
  const compose = createComposer(models, settings, now, onRefusal)
  const transport = createMailTransport(settings, log, registryTag(models.dataKeys))
  return startSender({ queue: models.emails, compose, transport, log, factor: settings.limitFactor })
}

/** Seconds after which a request for a recovery key is dropped. */
const recoveryMaxAge = 3_600

/**
 * Creates the function that composes the e-mail of a queue entry from the current state of its user: one that could
 * not use it gets none. Keys are created at this point, and the database stores only their digests.
 */
export function createComposer(
  models: Models,
  settings: Pick<Settings, 'recoveryEmail' | 'limitFactor' | 'timeZone'>,
  now: () => number,
  onRefusal?: (limit: Limit) => void,
): (email: Email) => Promise<Composed> {
  const quotas = createQuotas(models.emailQuotas, models.counterKeys, settings.limitFactor, now, onRefusal)
  const decide = createDecide(models, settings, quotas)
  const make = createMake(models, settings)
  return async email => {
    if (email.kind === 'recovery-key' && email.age > recoveryMaxAge) return 'expired'
    const decided = email.stage === 'ready' ? email : await decide(email)
    return typeof decided === 'object' ? make(decided) : decided
  }
}

/** Creates the function that applies the quotas to a request. It returns an e-mail that is to be sent now. */
function createDecide(models: Models, settings: Pick<Settings, 'recoveryEmail'>, quotas: Quotas) {
  const { database, users, emails, attempts, audit, counterKeys } = models

  /**
   * Admits an e-mail for a user. An e-mail to an inactive account returns to the queue with the last priority: anyone can
   * sign up many accounts with addresses that mail servers are slow to reject.
   */
  async function admit({ id }: Email, user: User | undefined, t: Transaction, parameters?: ReadyEmail['parameters']) {
    const active = user?.active === true
    const admitted = await emails.admit(id, active, parameters, t)
    return admitted && active ? admitted : 'held'
  }

  /**
   * Decides on a request for a recovery key: the user must exist, the address must be the registered one, otherwise an event
   * says so, and the quotas must not be exceeded. A request for usernames counts against the first of the users. A network that
   * the account knows has a separate quota, so that other clients can't exhaust the owner's quota. Of the quotas of the
   * recipient, an account that has the address by right has its own, and needs none from such a network; the others share one.
   */
  async function decideRecoveryKey(request: RequestedEmail<'recovery-key'>) {
    const { usernameKey, email, address, requestId, actor = 'anonymous' } = request.parameters
    const asksForNames = usernameKey === ''
    const user = asksForNames ? (await users.byProvedAddress(email))[0] : await users.byUsername(usernameKey)
    if (!user || !pass(user, 'recover by e-mail')) return 'unwanted'
    const registered = user.email !== null && emailKey(user.email) === emailKey(email)
    const action = asksForNames ? 'recovery.send-usernames' : 'recovery.send-key'
    const event = { action, actor, subject_id: user.id, address, request_id: requestId } as const
    if (!registered && settings.recoveryEmail !== 'any') {
      // Strangers can cause it: the first in an hour leaves an event, the count informs administrators of the others.
      const { count } = await attempts.count(counterKeys.otherAddress(user.id), recoveryMaxAge)
      if (count === 1) await attempts.record({ ...event, outcome: 'refused', reason: 'OTHER_ADDRESS' })
      return 'unwanted'
    }
    const to = registered ? user.email! : email
    const known = await attempts.knownNetwork(user.id, address)
    const byRight = registered && hasByRight(user)
    const shared = known === undefined ? 'unproved' : 'known'
    const sharers = byRight ? user.id : registered ? shared : undefined
    const unlimited = known !== undefined && byRight
    const wait = async (t?: Transaction) =>
      (await quotas.recovery(user.id, known, t)) || (unlimited ? 0 : await quotas.recipient(to, sharers, t))
    if ((await wait()) > 0) return 'unwanted'
    const refused = new Error('refused')
    const decided = database.transact(async t => {
      // The rollback also reverts the count of the first of two quotas.
      if ((await wait(t)) > 0) throw refused
      await audit.append({ ...event, outcome: 'ok' }, t)
      return admit(request, user, t, asksForNames ? { usernamesOf: to } : { userId: user.id, to })
    })
    return decided.catch(error => {
      if (error !== refused) throw error
      return 'unwanted' as const
    })
  }

  /** Decides on a code for a user's new address: only the quota of the recipient prevents it, without an error. */
  async function decideCode(request: RequestedEmail<'email-code'>) {
    const user = await users.byId(request.parameters.userId)
    return database.transact(async t => {
      if ((await quotas.recipient(request.parameters.to, undefined, t)) > 0) return 'unwanted'
      return admit(request, user, t)
    })
  }

  /**
   * Decides when to notify the owner: now, or, beyond the quota, later in one e-mail with all events until then. An account
   * that was activated has its own quota. Others share the recipient's, because anyone can sign up many accounts with the
   * e-mail address of another person.
   */
  async function decideNotice(email: RequestedEmail<Notice>) {
    const user = await ownerOf(models, email)
    const to = email.parameters.to ?? user?.email
    if (!to) return 'unwanted'
    return database.transact(async t => {
      const activated = user && (user.active || user.unactivatedSeenAt === null)
      const wait = await (activated ? quotas.notice(user.id, to, t) : quotas.recipient(to, undefined, t))
      if (wait === 0) return admit(email, user, t)
      await emails.hold(email.id, wait, t)
      return 'held'
    })
  }

  return (email: RequestedEmail): Promise<ReadyEmail | 'unwanted' | 'held'> => {
    if (email.kind === 'recovery-key') return decideRecoveryKey(email)
    return email.kind === 'email-code' ? decideCode(email) : decideNotice(email)
  }
}

/** Creates the function that makes the e-mail of an entry, with a key if its kind has one. */
function createMake(models: Models, settings: Pick<Settings, 'recoveryEmail' | 'timeZone'>) {
  const { database, users, userData, administeredUsers, organizations, mailedKeys, emails } = models

  function write<K extends keyof Contents>(
    { id, createdAt, locale }: Email,
    users: readonly number[],
    to: string,
    kind: K,
    content: Contents[K],
    recipient?: Pick<User, 'email' | 'emailProved'>,
  ): Composed {
    const proved = recipient?.emailProved === true && emailKey(recipient.email ?? '') === emailKey(to)
    const written = writeEmail(kind, locale as Locale, content, settings.timeZone, proved)
    return { to, ...written, name: `auth.${id}.${createdAt.getTime()}`, users }
  }

  /**
   * Stores a key while its entry is in the queue. Returns false when the entry has been discarded. A transaction that
   * voids keys also discards entries. The row lock of the entry serializes both: the stored key is voided, or no key is
   * stored.
   */
  function storeKey({ id }: Email, store: (t: Transaction) => Promise<void>): Promise<boolean> {
    return database.transact(async t => {
      if (!(await emails.find(id, t))) return false
      await store(t)
      return true
    })
  }

  async function makeUsernames(entry: Email, to: string): Promise<Composed> {
    const owners = (await users.byProvedAddress(to)).filter(user => pass(user, 'recover by e-mail'))
    if (owners.length === 0) return 'unwanted'
    const content = { usernames: owners.map(({ username }) => username) }
    return write(
      entry,
      owners.map(({ id }) => id),
      to,
      'usernames',
      content,
      owners[0],
    )
  }

  async function makeRecoveryKey(entry: ReadyEmail<'recovery-key'>): Promise<Composed> {
    if ('usernamesOf' in entry.parameters) return makeUsernames(entry, entry.parameters.usernamesOf)
    const { userId, to } = entry.parameters
    const user = await users.byId(userId)
    if (!user || !pass(user, 'recover by e-mail')) return 'unwanted'
    // The address may have changed since the request.
    if (settings.recoveryEmail !== 'any' && emailKey(user.email ?? '') !== emailKey(to)) return 'unwanted'
    const answersSince = (await userData.answersSince(userId))?.toISOString()
    const key = newRecoveryKey()
    if (!(await storeKey(entry, t => mailedKeys.replace(userId, 'recovery', key, {}, t)))) return 'unwanted'
    return write(entry, [userId], to, 'recovery-key', { username: user.username, key, answersSince }, user)
  }

  async function makeCode(entry: ReadyEmail<'email-code'>): Promise<Composed> {
    const { userId, to, generation } = entry.parameters
    const user = await users.byId(userId)
    // A changed generation means that the requesting session has ended.
    if (!user || !pass(user, 'confirm an e-mail address') || user.tokenGeneration !== generation) return 'unwanted'
    const key = newRecoveryKey()
    if (!(await storeKey(entry, t => mailedKeys.confirm(user, key, to, t)))) return 'unwanted'
    return write(entry, [userId], to, 'email-code', { username: user.username, key }, user)
  }

  async function makeActivationKey(entry: ReadyEmail<'activation-key'>): Promise<Composed> {
    const { userId, organizationId } = entry.parameters
    const user = await users.byId(userId)
    if (!user || !pass(user, 'activate')) return 'unwanted'
    const key = randomUUID()
    let to: string | null = null
    const stored = await storeKey(entry, async t => {
      // A change of the address waits for this transaction, and voids the key; otherwise this reads the new one.
      to = await organizations.addressForKeys(organizationId, t)
      if (to) await mailedKeys.replace(userId, 'activation', key, { organizationId }, t)
    })
    if (!stored || !to) return 'unwanted'
    return write(entry, [userId], to, 'activation-key', { username: user.username, key })
  }

  async function makeNotice(entry: ReadyEmail<Notice>): Promise<Composed> {
    const { userId, to, ...content } = entry.parameters
    const user = await ownerOf(models, entry)
    const email = to ?? user?.email
    if (!user || !email) return 'unwanted'
    // A former address may be of another person: a telephone number isn't for it.
    const username = to !== undefined && readTelephone(user.username) ? `…${user.username.slice(-2)}` : user.username
    return write(entry, [userId], email, entry.kind, { username, ...content }, user)
  }

  async function makeAdministrationNotice(entry: ReadyEmail<'administration' | 'administered'>): Promise<Composed> {
    const { kind, parameters } = entry
    const { userId, subjectId, actor, actorId, ...content } = parameters
    const recipient = await users.byId(userId)
    const to = 'to' in parameters ? parameters.to : recipient?.email
    if (!to) return 'unwanted'
    // A deleted user still has a name; an erased one has none.
    const nameOf = async (id: number) => (await administeredUsers.find({ id }))?.username ?? ''
    const by = actorId === undefined ? { actor } : { actor: await nameOf(actorId), actorId }
    const change = { username: await nameOf(subjectId), id: subjectId, ...by, ...content }
    return write(entry, [userId, subjectId], to, kind, change, recipient)
  }

  async function makeOrganizationNotice(entry: ReadyEmail<'organization-email-changed'>): Promise<Composed> {
    const { organizationId, to, ...content } = entry.parameters
    const organization = await organizations.find(organizationId)
    if (!organization) return 'unwanted'
    return write(entry, [], to, entry.kind, { organization: organization.name, ...content })
  }

  return (email: ReadyEmail): Promise<Composed> => {
    switch (email.kind) {
      case 'recovery-key':
        return makeRecoveryKey(email)
      case 'email-code':
        return makeCode(email)
      case 'activation-key':
        return makeActivationKey(email)
      case 'organization-email-changed':
        return makeOrganizationNotice(email)
      case 'administration':
      case 'administered':
        return makeAdministrationNotice(email)
      default:
        return makeNotice(email)
    }
  }
}

/** The user of a notice. Only the notice of its deletion goes to a deleted user. */
async function ownerOf(
  { administeredUsers }: Models,
  { kind, parameters }: RequestedEmail<Notice> | ReadyEmail<Notice>,
) {
  const user = await administeredUsers.find({ id: parameters.userId })
  return kind === 'account-deleted' || !user?.deletedAt ? user : undefined
}
