import { randomUUID } from 'node:crypto'
import type { Log } from '../log.js'
import type { Registry } from '../models/definemodels.js'
import type { Email } from '../models/email.js'
import { newRecoveryKey } from '../models/mailedkey.js'
import { emailKey } from '../names.js'
import type { Settings } from '../settings.js'
import { type Composed, createMailWorker, type MailWorker } from './sender.js'
import { type Locale, writeEmail } from './texts.js'
import { createMailTransport } from './transport.js'

/** What becomes of each kind of e-mail when it is its turn. */
type Composers = {
  [K in Email['kind']]: (entry: Extract<Email, { kind: K }>, locale: Locale) => Promise<Composed>
}

/** Starts to work off the queue of e-mails. Keys are made here, when an e-mail goes out, and stored as digests only. */
export function startMail(
  registry: Pick<Registry, 'users' | 'organizations' | 'mailedKeys' | 'emails'>,
  settings: Pick<Settings, 'smtpUrl' | 'mailFrom' | 'dataDir' | 'recoveryEmail'>,
  log: Log,
): MailWorker {
  const { users, organizations, mailedKeys, emails } = registry

  const tellOwner =
    <K extends 'password-changed' | 'recovery-login'>(kind: K) =>
    async (
      { parameters: { userId, at, address } }: { parameters: { userId: number; at: string; address: string } },
      locale: Locale,
    ) => {
      const user = await users.byId(userId)
      if (!user?.email) return 'unwanted'
      return { to: user.email, ...writeEmail(kind, locale, { username: user.username, at, address }) }
    }

  const composers: Composers = {
    async 'recovery-request'(entry) {
      const { usernameKey, email, address, requestId } = entry.parameters
      const user = await users.byUsername(usernameKey)
      if (!user || user.suspended) return 'unwanted'
      const registered = user.email !== null && emailKey(user.email) === emailKey(email)
      if (!registered && settings.recoveryEmail !== 'any') return 'unwanted'
      const to = registered ? user.email! : email
      const event = { action: 'recovery.send-key', outcome: 'ok', actor: 'anonymous', subject_id: user.id } as const
      const admitted = await emails.admit(entry, user.id, to, { ...event, address, request_id: requestId })
      return admitted ? 'requeued' : 'unwanted'
    },
    async 'recovery-key'({ parameters: { userId, to } }, locale) {
      const user = await users.byId(userId)
      if (!user || user.suspended) return 'unwanted'
      const key = newRecoveryKey()
      await mailedKeys.replace(userId, 'recovery', key)
      return { to, ...writeEmail('recovery-key', locale, { username: user.username, key }) }
    },
    async 'activation-key'({ parameters: { userId, organizationId } }, locale) {
      const user = await users.byId(userId)
      const organization = await organizations.table.findByPk(organizationId)
      if (!user || user.suspended || !organization?.active || !organization.email) return 'unwanted'
      const key = randomUUID()
      await mailedKeys.replace(userId, 'activation', key, organizationId)
      return { to: organization.email, ...writeEmail('activation-key', locale, { username: user.username, key }) }
    },
    'password-changed': tellOwner('password-changed'),
    'recovery-login': tellOwner('recovery-login'),
  }

  return createMailWorker<Email>({
    queue: emails,
    compose: entry => composers[entry.kind](entry as never, entry.locale as Locale),
    transport: createMailTransport(settings),
    log,
  })
}
