/**
 * Writes e-mails: plain text in Brazilian Portuguese and English. Subjects are fixed, so no user input gets into a header.
 * portuguese.json and english.json have the texts, with values of `Content` in braces.
 */

import type { Administered, Notice } from '../models/email.js'
import { daysUntilErasure } from '../models/erasure.js'
import type { Locale } from '../requests/locale.js'
import { visible } from '../rules/names.js'
import english from './english.json' with { type: 'json' }
import portuguese from './portuguese.json' with { type: 'json' }

/** What e-mails say. */
interface Content {
  readonly username: string
  /** The usernames of the owner of an address. */
  readonly usernames: readonly string[]
  readonly organization: string
  readonly key: string
  /** When the earliest answer to a security question was saved (ISO 8601); absent if there are none. */
  readonly answersSince?: string
  /** Number of events, with time (ISO 8601) and client address of the last. */
  readonly times?: number
  readonly at: string
  readonly address: string
  /** A change to the user with this id, and the role that it gave. */
  readonly id: number
  readonly action: Administered
  readonly role?: string
  /** With `actorId` a username, otherwise the actor of the audit log. */
  readonly actor: string
  readonly actorId?: number
  readonly reason?: string
}

/** The content of each kind of e-mail. */
export type Contents = Record<'usernames', Pick<Content, 'usernames'>> &
  Record<'email-code' | 'activation-key', Pick<Content, 'username' | 'key'>> &
  Record<'recovery-key', Pick<Content, 'username' | 'key' | 'answersSince'>> &
  Record<Notice, Pick<Content, 'username' | 'times' | 'at' | 'address'>> &
  Record<'organization-email-changed', Pick<Content, 'organization' | 'at' | 'address'>> &
  Record<
    'administration' | 'administered',
    Pick<Content, 'username' | 'id' | 'action' | 'role' | 'actor' | 'actorId' | 'at' | 'reason'>
  >

/** The texts in a language. */
interface Texts {
  /** A line of a reason or a time of answers that isn't given is left out. */
  readonly emails: Record<keyof Contents, { readonly subject: string; readonly text: readonly string[] }>
  /** Stands behind a username of which characters were replaced. */
  readonly masked: string
  /** Stands before the time of the last of several events. */
  readonly times: string
  /** Predicates of a sentence that begins with the user. */
  readonly changes: Record<Administered, string>
}

const texts: Record<Locale, Texts> = { 'pt-BR': portuguese, en: english }

/**
 * Returns the subject and body of an e-mail, with times in a time zone. User input appears only in the body: without links and
 * addresses, but for usernames in an e-mail to a `proved` address, where they can be copied.
 */
export function writeEmail<K extends keyof Contents>(
  kind: K,
  locale: Locale,
  content: Contents[K],
  timeZone: string,
  proved = false,
): { subject: string; text: string } {
  const { emails, masked, times, changes } = texts[locale]
  const given: Partial<Content> = content
  const { organization, action, role, actor = '', actorId, reason } = given
  const shown = (name: string) => shownUsername(name, proved)
  const username = shown(given.username ?? '')
  const format = new Intl.DateTimeFormat(locale, { dateStyle: 'long', timeStyle: 'short', timeZone })
  const named = new Intl.DateTimeFormat(locale, { timeZone, timeZoneName: 'long' })
  /** The time of the last event, or days after it. */
  const when = (days = 0, from = given.at) => {
    if (!from) return undefined
    const time = Date.parse(from) + days * 86_400_000
    const zone = named.formatToParts(time).find(({ type }) => type === 'timeZoneName')!.value
    return `${format.format(time)} (${zone})`
  }
  const values: Readonly<Record<string, string | undefined>> = {
    username,
    usernames: given.usernames?.map(shown).join('\n'),
    masked: username === given.username ? '' : masked,
    user: given.id === undefined ? undefined : withId(username, given.id),
    organization: organization && shownUsername(organization),
    key: given.key,
    answersSince: when(0, given.answersSince),
    times: (given.times ?? 1) === 1 ? '' : times.replace('{times}', String(given.times)),
    at: when(),
    countsAt: when(1),
    erasedAt: when(daysUntilErasure),
    address: given.address,
    change: action && `${changes[action]}${role ? `: ${role}` : ''}`,
    actor: actorId === undefined ? plain(actor.replace(/^cli:(.*)@/, '$1, '), ',') : withId(shown(actor), actorId),
    reason: reason && plain(reason, ',;:!?'),
  }
  const optional = ['reason', 'answersSince']
  const { subject, text } = emails[kind]
  const lines = text
    .filter(line => optional.every(name => !line.includes(`{${name}}`) || values[name]))
    .map(line => line.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? ''))
  return { subject, text: `${lines.join('\n')}\n` }
}

/** A username with the id. The username of an erased user is empty. */
const withId = (username: string, id: number) => (username === '' ? `(id ${id})` : `${username} (id ${id})`)

/** Maximum characters of a username in an e-mail. */
const maxShown = 40

/**
 * Returns a username as e-mails show it, at most 40 characters long: as it is to a proved address, which has the account by
 * right. Anyone can choose a username, so to other addresses `·` replaces characters other than letters, digits, spaces and the
 * punctuation of names and telephone numbers: without them there are no links or addresses.
 */
export function shownUsername(username: string, proved = false): string {
  const shown = proved ? username : plain(username)
  const characters = [...shown]
  return characters.length <= maxShown ? shown : `${characters.slice(0, maxShown - 1).join('')}…`
}

/** Replaces characters that a link or address needs. `more` lists further punctuation to keep. */
function plain(text: string, more = ''): string {
  return visible(text)
    .normalize('NFKC')
    .replace(new RegExp(`[^\\p{L}\\p{M}\\p{N} ()+'’_\\p{Pd}${more}]+`, 'gu'), '·')
}
