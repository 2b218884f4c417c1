// Writes e-mails: plain text in Brazilian Portuguese and English. Subjects are fixed, so no user input gets into a header.
import { visible } from '../rules/names.js'
import { type Catalogue, type Contents, withId } from './catalogue.js'
import { english } from './english.js'
import { portuguese } from './portuguese.js'

/** Languages of the e-mails. */
export type Locale = 'pt-BR' | 'en'

/** Chooses the language for a value of `Accept-Language` (RFC 9110). */
export type ChooseLocale = (acceptLanguage: string | undefined) => Locale

const catalogues: Record<Locale, Catalogue> = { 'pt-BR': portuguese, en: english }

/** Returns the subject and body of an e-mail. User input appears only in the body, without links and addresses. */
export function writeEmail<K extends keyof Contents>(
  kind: K,
  locale: Locale,
  content: Contents[K],
): { subject: string; text: string } {
  const when = (at: string) => {
    const format = new Intl.DateTimeFormat(locale, { dateStyle: 'long', timeStyle: 'short', timeZone: 'UTC' })
    return `${format.format(new Date(at))} (UTC)`
  }
  const { subject, text } = catalogues[locale][kind]
  const shown =
    'organization' in content
      ? { ...content, organization: shownUsername(content.organization) }
      : { ...content, username: shownUsername(content.username) }
  if ('actor' in shown) {
    const { actor, actorId, reason } = shown
    Object.assign(shown, {
      actor:
        actorId === undefined ? plain(actor.replace(/^cli:(.*)@/, '$1, '), ',') : withId(shownUsername(actor), actorId),
      ...(reason !== undefined && { reason: plain(reason, ',;:!?') }),
    })
  }
  return { subject, text: `${text(shown, when)}\n` }
}

/** Maximum characters of a username in an e-mail. */
const maxShown = 40

/**
 * Returns a username as e-mails show it, at most 40 characters long. Anyone can choose a username, so `·` replaces
 * characters other than letters, digits, spaces and the punctuation of names and telephone numbers: without them there
 * are no links or addresses.
 */
export function shownUsername(username: string): string {
  const shown = plain(username)
  const characters = [...shown]
  return characters.length <= maxShown ? shown : `${characters.slice(0, maxShown - 1).join('')}…`
}

/** Replaces characters that a link or address needs. `more` lists further punctuation to keep. */
function plain(text: string, more = ''): string {
  return visible(text)
    .normalize('NFKC')
    .replace(new RegExp(`[^\\p{L}\\p{M}\\p{N} ()+'’_\\p{Pd}${more}]+`, 'gu'), '·')
}

/**
 * Chooses the language for an `Accept-Language` header: lookup (RFC 4647, 3.4) among the languages of the e-mails, by
 * quality. Any Portuguese matches pt-BR. Returns `fallback` without a header or match, and when `*` matches.
 */
export function chooseLocale(acceptLanguage: string | undefined, fallback: Locale): Locale {
  const ranges = (acceptLanguage ?? '')
    .slice(0, 1000)
    .split(',')
    .map(range => /^\s*([a-z]{1,8}|\*)(?:-[a-z0-9-]*)?\s*(?:;\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*)?$/i.exec(range))
    .filter(range => range !== null)
    .map(([, language, quality = '1']) => ({ language: language!.toLowerCase(), quality: Number(quality) }))
    .filter(({ quality }) => quality > 0)
    .sort((a, b) => b.quality - a.quality)
  for (const { language } of ranges) {
    if (language === 'pt') return 'pt-BR'
    if (language === 'en') return 'en'
    if (language === '*') return fallback
  }
  return fallback
}
