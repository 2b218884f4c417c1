// Rules own what a text may be, and when two texts are the same; they read no database and no settings. Here: how names, questions, answers and addresses compare: two texts are the same when their keys are equal.
// Keys are for comparing and look-up only; what users see stays as they wrote it. A text that can't be stored (longer
// than server/rules/sizes.ts allows, or with half a surrogate pair) has the key '', which nobody has, and is never normalized.
import { isIPv4, isIPv6 } from 'node:net'
import { domainToASCII } from 'node:url'
import { limits, tooLong } from './sizes.js'
import { readTelephone } from './telephone.js'

/**
 * Key of a username: case (full folding, so `ß` is `ss`), compatibility forms (NFKC), invisible characters, and space
 * around or doubled don't matter. A text that is wholly a Brazilian telephone number becomes `tel:+55…` (RFC 3966)
 * in all its spellings, see `readTelephone`. Empty when nothing visible is left.
 */
export function usernameKey(text: string): string {
  const key = nicknameKey(text)
  return readTelephone(key) ?? key
}

/** Key of a nickname: like that of a username, but a telephone number is a text like any other. */
export function nicknameKey(text: string): string {
  return fold(visible(text).normalize('NFKC')).normalize('NFKC')
}

/** Key of a security question: case, accents, compatibility forms and extra space don't matter. */
export function questionKey(text: string): string {
  return fold(visible(text).normalize('NFKD').replace(/\p{M}/gu, '')).normalize('NFKC')
}

/** Key of an answer to a security question: compares as questions do. Empty when nothing is left to compare. */
export function answerKey(text: string): string {
  return questionKey(text)
}

/** Words of the paths under `/users`, which would hide a user of that name. */
const reserved = new Set(
  [
    'me',
    'refresh',
    'login',
    'signup',
    'activate',
    'existsByUsername',
    'existsByNickname',
    'setemail',
    'confirmemail',
    'revokemytokens',
    'sendadminkeybyemailpartner',
    '{username}',
    '1.0.0',
    '1.0.2',
    '.',
    '..',
  ].map(usernameKey),
)

/**
 * Whether no user may have this username, in any spelling: a path means something else by it, or, with `#` and digits of
 * any script, administrators mean an id.
 */
export function isReservedUsername(text: string): boolean {
  const key = usernameKey(text)
  return reserved.has(key) || /^#\p{Nd}+$/u.test(key)
}

/**
 * Whether e-mail can be sent to a text: a mailbox in the form of RFC 5321 (4.1.2), at most 254 octets, that any mail
 * server takes: a dotted local part of at most 64 octets, then a domain or an address literal. The local part is ASCII
 * (others need SMTPUTF8, RFC 6531) and isn't quoted; an internationalized domain counts by its ASCII form (RFC 5891).
 * A last label that is a number would make the domain an IP address. Space around it is not part of an address.
 */
export function isEmailAddress(text: string): boolean {
  if (tooLong(text, 'email')) return false
  const { local, domain } = splitAddress(text)
  return (
    /^[\w!#$%&'*+/=?^`{|}~-]+(?:\.[\w!#$%&'*+/=?^`{|}~-]+)*$/.test(local) &&
    local.length <= 64 &&
    isMailDomain(domain) &&
    local.length + 1 + domain.length <= limits.email
  )
}

/** Key of an e-mail address: case and space around it don't matter, and a domain equals its ASCII form. */
export function emailKey(text: string): string {
  if (!isStorable(text, 'email')) return ''
  const { local, domain } = splitAddress(text.trim())
  return domain === '' ? local.toLowerCase() : `${local}@${domain}`.toLowerCase()
}

function splitAddress(text: string): { local: string; domain: string } {
  const at = text.lastIndexOf('@')
  if (at < 0) return { local: text, domain: '' }
  const domain = text.slice(at + 1)
  // Only names of other scripts are handed on: the URL standard's function repairs what it should refuse. Versions of
  // Node.js differ in which ASCII forms (xn--) they take and in what becomes of ẞ.
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

/** Whether a text is one line: without control characters, line breaks of Unicode, and halves of characters. */
export function isOneLine(text: string): boolean {
  return !/[\p{Cc}\p{Cs}\p{Zl}\p{Zp}]/u.test(text)
}

/** A text without its invisible characters; empty when it can't be stored. */
export function visible(text: string): string {
  return isStorable(text, 'text') ? text.replace(/[\0\p{Default_Ignorable_Code_Point}]/gu, '') : ''
}

/** Case folded, and white space trimmed and collapsed. Down, up and down again so that `ẞ`, `ß` and `SS` meet. */
export function fold(text: string): string {
  return text.toLowerCase().toUpperCase().toLowerCase().trim().replace(/\s+/g, ' ')
}

/** Whether a text is a UUID (RFC 9562), in either case. */
export function isUuid(text: string): boolean {
  return /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/i.test(text)
}
