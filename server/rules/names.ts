// This folder owns which texts are valid, and when two texts are equal, without database and settings. In this file:
// keys of names, questions, answers and e-mail addresses. Two texts are equal when their keys are; keys serve
// comparison and look-up only, and users see their texts as entered. A text that can't be stored (longer than sizes.ts
// allows, or with an unpaired surrogate; a name also with a control character) has the key '', which matches no stored key,
// and is never normalized.
import { isIPv4, isIPv6 } from 'node:net'
import { domainToASCII } from 'node:url'
import { maxLengths, tooLong } from './sizes.js'
import { readTelephone } from './telephone.js'

/**
 * Returns the key of a username. It ignores case (full case folding: `ß` equals `ss`), compatibility forms (NFKC),
 * invisible characters, and leading, trailing and repeated white space. The key of a Brazilian telephone number in any
 * spelling is `tel:+55…` (RFC 3966, see `readTelephone`). Empty when the text has no visible characters.
 */
export function usernameKey(text: string): string {
  const key = nicknameKey(text)
  return readTelephone(key) ?? key
}

/** Returns the key of a nickname: like that of a username, without the rule for telephone numbers. */
export function nicknameKey(text: string): string {
  return isOneLine(text) ? fold(visible(text).normalize('NFKC')).normalize('NFKC') : ''
}

/** Returns the key of a security question. It ignores case, accents, compatibility forms and extra white space. */
export function questionKey(text: string): string {
  return fold(visible(text).normalize('NFKD').replace(/\p{M}/gu, '')).normalize('NFKC')
}

/**
 * Returns the key of an answer to a security question, by the rules of questions. All apostrophes and accents that stand alone are
 * one, so are all hyphens and dashes, and full stops at the end don't count: telephones replace them while one types. Empty when
 * the text has no other characters. Saved answers are hashes of their keys: other rules need another scheme of hashes.
 */
export function answerKey(text: string): string {
  const unify = (typed: string) => typed.replace(/[‘’‛′`´ʹʻʼʽˈˊˋ＇｀]/g, "'").replace(/[\p{Pd}−⁃]/gu, '-')
  // Before, too: the compatibility form of an acute accent that stands alone is a space and a mark.
  return unify(questionKey(unify(text))).replace(/[. ]+$/, '')
}

/** Path segments under `/users`, where a user of that name couldn't be addressed. */
const reserved = new Set(
  (
    'me refresh login signup activate existsByUsername existsByNickname setemail confirmemail revokemytokens ' +
    'sendadminkeybyemailpartner {username} 1.0.0 1.0.2 . ..'
  )
    .split(' ')
    .map(usernameKey),
)

/**
 * Whether a username is reserved, in any spelling: for a path segment, or, as `#` and digits of any script, for the ids
 * that administrators enter.
 */
export function isReservedUsername(text: string): boolean {
  const key = usernameKey(text)
  return reserved.has(key) || /^#\p{Nd}+$/u.test(key)
}

/**
 * Whether a text is an e-mail address that all mail servers accept: a mailbox of RFC 5321 (4.1.2) of at most 254
 * octets, with a dot-string of at most 64 octets as local part, and a domain or an address literal. The local part is
 * ASCII (others need SMTPUTF8, RFC 6531) and not quoted; an internationalized domain counts by its ASCII form (RFC
 * 5891), and its last label isn't a number, as in an IP address. White space around the address makes it invalid.
 */
export function isEmailAddress(text: string): boolean {
  if (tooLong(text, 'email')) return false
  const { local, domain } = splitAddress(text)
  return (
    /^[\w!#$%&'*+/=?^`{|}~-]+(?:\.[\w!#$%&'*+/=?^`{|}~-]+)*$/.test(local) &&
    local.length <= 64 &&
    isMailDomain(domain) &&
    local.length + 1 + domain.length <= maxLengths.email
  )
}

/**
 * Whether an address can be set: one whose domain has a dot, or is an address literal. Others have a typing error, such as `ana@gmail`.
 * Where an address is only compared, `isEmailAddress` holds: records of former versions have such addresses.
 */
export function isNewAddress(text: string): boolean {
  return isEmailAddress(text) && /[.[]/.test(splitAddress(text).domain)
}

/** Returns the key of an e-mail address. It ignores case and white space around it; a domain equals its ASCII form. */
export function emailKey(text: string): string {
  if (!isStorable(text, 'email')) return ''
  const lower = text.trim().toLowerCase()
  const { local, domain } = splitAddress(lower)
  return domain === '' ? lower : `${local}@${domain}`
}

function splitAddress(text: string): { local: string; domain: string } {
  const at = text.lastIndexOf('@')
  if (at < 0) return { local: text, domain: '' }
  const domain = text.slice(at + 1)
  // domainToASCII corrects invalid domains instead of refusing them, so only letters, digits, dots and hyphens get
  // there. Versions of Node.js differ in the ASCII forms (xn--) that they accept and in the form of ẞ.
  const international = /[^\0-\x7f]/.test(domain) && /^(?!.*(?:[Xx][Nn]--|ẞ))[\p{L}\p{M}\p{N}.·-]+$/u.test(domain)
  return { local: text.slice(0, at), domain: international ? domainToASCII(domain) : domain }
}

function isMailDomain(domain: string): boolean {
  const literal = /^\[(?:(?<v4>[\d.]+)|IPv6:(?<v6>[\da-f:.]+))\]$/i.exec(domain)?.groups
  if (literal) return isIPv4(literal.v4 ?? '') || isIPv6(literal.v6 ?? '')
  const labels = domain.split('.')
  const isNumber = /^(?:\d+|0x[\da-f]*)$/i.test(labels.at(-1)!)
  return !isNumber && labels.every(label => /^[a-z\d](?:[a-z\d-]{0,61}[a-z\d])?$/i.test(label))
}

function isStorable(text: string, kind: 'text' | 'email'): boolean {
  return !tooLong(text, kind) && !/\p{Cs}/u.test(text)
}

/** Whether a text has no control characters, line or paragraph separators, and unpaired surrogates. */
export function isOneLine(text: string): boolean {
  return !/[\p{Cc}\p{Cs}\p{Zl}\p{Zp}]/u.test(text)
}

/** Returns a text without its invisible characters; empty when it can't be stored. */
export function visible(text: string): string {
  return isStorable(text, 'text') ? text.replace(/[\0\p{Default_Ignorable_Code_Point}]/gu, '') : ''
}

/**
 * Returns a text with case folded, and white space trimmed and collapsed. Lower, upper and lower case again are full
 * case folding: `ẞ`, `ß` and `SS` become `ss`.
 */
export function fold(text: string): string {
  return text.toLowerCase().toUpperCase().toLowerCase().trim().replace(/\s+/g, ' ')
}

/**
 * Returns a key or code as it was given out, from what a person copied or typed: only letters and digits count, in either case, full
 * width included, and no separators, punctuation and invisible characters.
 */
export function typedKey(text: string): string {
  return visible(text)
    .normalize('NFKC')
    .replace(/[^\p{L}\p{N}]/gu, '')
    .toUpperCase()
}

/** The same of a key in the form of a UUID. */
export function typedUuid(text: string): string {
  return typedKey(text)
    .toLowerCase()
    .replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5')
}

/** Whether a text is a UUID (RFC 9562), in either case. */
export function isUuid(text: string): boolean {
  return /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/i.test(text)
}
