import { randomUUID } from 'node:crypto'
import type { Log } from '../log.js'
import type { Letter } from '../models/letter.js'
import { newRecoveryKey } from '../models/mailedkey.js'
import { emailKey } from '../names.js'
import type { Registry } from '../registry.js'
import type { Settings } from '../settings.js'
import { type Locale, writeLetter } from './texts.js'
import { createMailTransport } from './transport.js'
import { type Composed, createMailWorker, type MailWorker } from './worker.js'

/** What becomes of each kind of letter when it is its turn. */
type Composers = {
  [K in Letter['kind']]: (letter: Extract<Letter, { kind: K }>, locale: Locale) => Promise<Composed>
}

/** Starts to work off the queue of letters. Keys are made here, when a letter goes out, and stored as digests only. */
export function startMail(
  registry: Pick<Registry, 'users' | 'organizations' | 'mailedKeys' | 'letters'>,
  settings: Pick<Settings, 'smtpUrl' | 'mailFrom' | 'dataDir' | 'recoveryEmail'>,
  log: Log,
): MailWorker {
  const { users, organizations, mailedKeys, letters } = registry

  const tellOwner =
    <K extends 'password-changed' | 'recovery-login'>(kind: K) =>
    async (
      { parameters: { userId, at, address } }: { parameters: { userId: number; at: string; address: string } },
      locale: Locale,
    ) => {
      const person = await users.byId(userId)
      if (!person?.email) return 'unwanted'
      return { to: person.email, ...writeLetter(kind, locale, { username: person.username, at, address }) }
    }

  const composers: Composers = {
    async 'recovery-request'(letter) {
      const { usernameKey, email, address, requestId } = letter.parameters
      const person = await users.byUsername(usernameKey)
      if (!person || person.suspended) return 'unwanted'
      const registered = person.email !== null && emailKey(person.email) === emailKey(email)
      if (!registered && settings.recoveryEmail !== 'any') return 'unwanted'
      const to = registered ? person.email! : email
      const event = { action: 'recovery.send-key', outcome: 'ok', actor: 'anonymous', subject_id: person.id } as const
      const admitted = await letters.admit(letter, person.id, to, { ...event, address, request_id: requestId })
      return admitted ? 'requeued' : 'unwanted'
    },
    async 'recovery-key'({ parameters: { userId, to } }, locale) {
      const person = await users.byId(userId)
      if (!person || person.suspended) return 'unwanted'
      const key = newRecoveryKey()
      await mailedKeys.replace(userId, 'recovery', key)
      return { to, ...writeLetter('recovery-key', locale, { username: person.username, key }) }
    },
    async 'activation-key'({ parameters: { userId, organizationId } }, locale) {
      const person = await users.byId(userId)
      const organization = await organizations.table.findByPk(organizationId)
      if (!person || person.suspended || !organization?.active || !organization.email) return 'unwanted'
      const key = randomUUID()
      await mailedKeys.replace(userId, 'activation', key, organizationId)
      return { to: organization.email, ...writeLetter('activation-key', locale, { username: person.username, key }) }
    },
    'password-changed': tellOwner('password-changed'),
    'recovery-login': tellOwner('recovery-login'),
  }

  return createMailWorker<Letter>({
    queue: letters,
    compose: letter => composers[letter.kind](letter as never, letter.locale as Locale),
    transport: createMailTransport(settings),
    log,
  })
}
