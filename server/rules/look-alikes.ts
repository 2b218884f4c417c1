// Look-alike names (confusables of Unicode Security Mechanisms, UTS 39): names with the same skeleton and without a
// common script. `аdmin` with a Cyrillic letter looks like `admin`; `maria1` and `marial` share a script, so they don't
// look alike here, and `joão` and `joao` have different skeletons.
import { table } from './look-alikes-table.js'
import { fold, nicknameKey, visible } from './names.js'
import { readTelephone } from './telephone.js'

/** The prototype (UTS 39) of each confusable character. */
const prototypes = readTable(table)

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
  return fold(characters.map(each => prototypes.get(each) ?? each).join('')).normalize('NFC')
}

/**
 * Returns the skeleton of a username: like that of a nickname; a text that looks like a telephone number has its key.
 */
export function usernameSkeleton(text: string): string {
  const skeleton = nicknameSkeleton(text)
  const digits = skeleton.replaceAll('l', '1').replaceAll('o', '0')
  return readTelephone(nicknameKey(text)) ?? readTelephone(digits) ?? skeleton
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

function readTable(text: string): Map<string, string> {
  const read = (points: string) => String.fromCodePoint(...points.split('+').map(point => Number.parseInt(point, 16)))
  return new Map(
    [...text.matchAll(/([^=;\n]+)=([^;]+);/g)].flatMap(([, target = '', sources = '']) =>
      sources.split(' ').map((source): [string, string] => [read(source), read(target)]),
    ),
  )
}
