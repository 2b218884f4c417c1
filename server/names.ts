// How names, questions, answers and addresses compare: two texts are the same when their keys are equal.
// Keys are for comparing and look-up only; what users see stays as they wrote it.
import { isIPv4, isIPv6 } from 'node:net'
import { domainToASCII } from 'node:url'

/** Area codes of the Brazilian numbering plan (Anatel). */
const areaCodes = new Set(
  ['11-19', '21 22 24 27 28', '31-35 37 38', '41-49', '51 53-55', '61-69', '71 73-75 77 79', '81-89', '91-99']
    .flatMap(row => row.split(' '))
    .flatMap(range => {
      const [first = 0, last = first] = range.split('-').map(Number)
      return Array.from({ length: last - first + 1 }, (_, index) => String(first + index))
    }),
)

/**
 * Key of a username: case (full folding, so `ß` is `ss`), compatibility forms (NFKC), invisible characters, and space
 * around or doubled don't matter. A text that is wholly a Brazilian telephone number becomes `tel:+55…` (RFC 3966)
 * in all its spellings; `+55` needs its plus sign, as 55 is an area code too. Empty when nothing visible is left.
 */
export function usernameKey(text: string): string {
  const key = nicknameKey(text)
  return phoneKey(key) ?? key
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
    'sendadminkeybyemailpartner',
    '{username}',
    '1.0.0',
    '1.0.2',
    '.',
    '..',
  ].map(usernameKey),
)

/** Whether nobody may have this username, in any spelling, because a path means something else by it. */
export function isReservedUsername(text: string): boolean {
  return reserved.has(usernameKey(text))
}

/**
 * Whether the text is a mailbox in the form of RFC 5321 (4.1.2), at most 254 octets: a dotted or quoted local part of
 * at most 64 octets, then a domain or an address literal. The local part is ASCII, as not every mail server takes
 * others (RFC 6531); an internationalized domain is judged by its ASCII form (RFC 5891). Space around it is not part of an address.
 */
export function isEmailAddress(text: string): boolean {
  const { local, domain } = splitAddress(text)
  return (
    /^(?:[\w!#$%&'*+/=?^`{|}~-]+(?:\.[\w!#$%&'*+/=?^`{|}~-]+)*|"(?:[ !#-[\]-~]|\\[ -~])*")$/.test(local) &&
    local.length <= 64 &&
    isMailDomain(domain) &&
    local.length + 1 + domain.length <= 254
  )
}

/** Key of an e-mail address: case and space around it don't matter, and a domain equals its ASCII form. */
export function emailKey(text: string): string {
  const { local, domain } = splitAddress(text.trim())
  return domain === '' ? local.toLowerCase() : `${local}@${domain}`.toLowerCase()
}

/** A text that is a telephone number in a username's key, as `tel:+55` and the national number; else undefined. */
function phoneKey(key: string): string | undefined {
  const match = /^(?:(?:tel:)?\+55)?(?:\((\d\d)\)|(\d\d))(9\d{8}|[2-9]\d{7})$/.exec(key.replace(/[ .\p{Pd}]/gu, ''))
  const area = match?.[1] ?? match?.[2]
  return area && areaCodes.has(area) ? `tel:+55${area}${match?.[3]}` : undefined
}

function splitAddress(text: string): { local: string; domain: string } {
  const at = text.lastIndexOf('@')
  if (at < 0) return { local: text, domain: '' }
  const domain = text.slice(at + 1)
  // Only letters of other scripts are handed on: the URL standard's function also rewrites ASCII it should refuse.
  const international = /^[\p{L}\p{M}\p{N}.·-]+$/u.test(domain)
  return { local: text.slice(0, at), domain: /[^ -~]/.test(domain) && international ? domainToASCII(domain) : domain }
}

function isMailDomain(domain: string): boolean {
  const literal = /^\[(?:(?<v4>[\d.]+)|IPv6:(?<v6>[\da-f:.]+))\]$/i.exec(domain)?.groups
  if (literal) return isIPv4(literal.v4 ?? '') || isIPv6(literal.v6 ?? '')
  return domain.split('.').every(label => /^[a-z\d](?:[a-z\d-]{0,61}[a-z\d])?$/i.test(label))
}

function visible(text: string): string {
  return text.replace(/[\0\p{Default_Ignorable_Code_Point}]/gu, '')
}

/** Case folded, and white space trimmed and collapsed. Down, up and down again so that `ẞ`, `ß` and `SS` meet. */
function fold(text: string): string {
  return text.toLowerCase().toUpperCase().toLowerCase().trim().replace(/\s+/g, ' ')
}
