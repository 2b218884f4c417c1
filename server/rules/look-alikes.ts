// Look-alike names (confusables of Unicode Security Mechanisms, UTS 39): names with the same skeleton and without a
// common script, or that differ only in marks that don't show. `аdmin` with a Cyrillic letter looks like `admin`, and so does
// `admi̇n` with a dot above its i; `maria1` and `marial` share a script, so they don't look alike here, and `joão` and `joao`
// have different skeletons.
import table from './look-alikes.json' with { type: 'json' }
import { fold, nicknameKey, visible } from './names.js'
import { readTelephone } from './telephone.js'

const read = (points: string) => String.fromCodePoint(...points.split('+').map(point => Number.parseInt(point, 16)))

/** The prototype (UTS 39) of each confusable character. */
const prototypes = new Map(
  Object.entries(table.prototypes).flatMap(([target, sources]) =>
    sources.split(' ').map((source): [string, string] => [read(source), read(target)]),
  ),
)

/** The recommended scripts (UAX 31, table 5), and those that are written together (UTS 39, 5.1). */
const scripts = [
  // Latin without phonetic letters, many of which look like ASCII letters. Accents are separate marks here (NFD).
  '[a-z\\u00df-\\u017f]|(?![\\p{L}\\p{S}])\\p{scx=Latn}',
  ...'Arab Armn Beng Cyrl Deva Ethi Geor Grek Gujr Guru Hebr Khmr Knda Laoo Mlym Mymr Orya Sinh Taml Telu Thaa Thai Tibt'
    .split(' ')
    .map(script => `\\p{scx=${script}}`),
  '[\\p{scx=Hani}\\p{scx=Hira}\\p{scx=Kana}]',
  '[\\p{scx=Hani}\\p{scx=Bopo}]',
  '[\\p{scx=Hani}\\p{scx=Hang}]',
]

/** Returns the skeleton of a nickname (UTS 39, 4). It only serves to compare with other skeletons. */
export function nicknameSkeleton(text: string): string {
  const characters = [...visible(text).normalize('NFKC').normalize('NFD')]
  const skeleton = fold(characters.map(each => prototypes.get(each) ?? each).join(''))
  return shown(skeleton, dottedSkeleton).normalize('NFC')
}

/**
 * Returns the skeleton of a username: like that of a nickname; a text that looks like a telephone number has its key.
 */
export function usernameSkeleton(text: string): string {
  const skeleton = nicknameSkeleton(text)
  const digits = skeleton.replaceAll('l', '1').replaceAll('o', '0')
  return readTelephone(nicknameKey(text)) ?? readTelephone(digits) ?? skeleton
}

/** Whether two names, given by their different keys, look alike if they have the same skeleton. */
export function lookAlike(one: string, other: string): boolean {
  return !shareScript(one, other) || shown(one, dotted) === shown(other, dotted)
}

/** The last dot above a letter that has a dot (Unicode Soft_Dotted, such as i and j), or that lacks it; the key of ı is i. */
const dotted = /([\p{Soft_Dotted}\u0237])(\p{M}*)\u0307(?!\p{M})/gu

/** The same in skeletons, where i is l. */
const dottedSkeleton = /([\p{Soft_Dotted}\u0237l])(\p{M}*)\u0307(?!\p{M})/gu

/**
 * Returns a text in NFD without the marks that don't show: a dot above a letter that has one, unless another mark above
 * replaces the letter's own dot; and a mark that repeats the one before it (UTS 39, 5.4).
 */
function shown(text: string, dots: RegExp): string {
  return text
    .normalize('NFD')
    .replace(/(\p{Mn})\1+/gu, '$1')
    .replace(dots, (all, letter, marks) =>
      [...marks].every(isBelow) ? (letter === '\u0237' ? 'j' : letter) + marks : all,
    )
}

/** Whether a mark isn't above its letter: canonical order moves it before one that is (UAX 15). */
function isBelow(mark: string): boolean {
  return `a\u0307${mark}`.normalize('NFD')[1] !== '\u0307'
}

/**
 * Whether two keys of names are both written in one and the same script, so that no letter imitates one of another
 * script.
 */
export function shareScript(one: string, other: string): boolean {
  const [a, b] = [one.normalize('NFD'), other.normalize('NFD')]
  return scripts.some(letters => {
    // Digits, punctuation and marks belong to every script; symbols don't, as some look like letters.
    const script = new RegExp(`^(?:[ -\`{-~]|(?!\\p{S})[\\p{scx=Zyyy}\\p{scx=Zinh}]|${letters})*$`, 'u')
    return script.test(a) && script.test(b)
  })
}
