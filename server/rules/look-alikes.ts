// Which names look like others (Unicode Security Mechanisms, UTS 39): those with the same skeleton and without a script
// in common. So `аdmin` with a Cyrillic letter looks like `admin`, while `maria1` and `marial` are two names, as are
// `joão` and `joao`.

import { table } from './look-alikes-table.js'
import { fold, nicknameKey, visible } from './names.js'
import { readTelephone } from './telephone.js'

/** What a character looks like. */
const standsFor = readTable(table)

/** The scripts in everyday use (UAX 31, table 5), and those that are written together (UTS 39, 5.1). */
const scripts = [
  // Latin without what is made for phonetics, much of which looks like the alphabet. Accents are marks by themselves here.
  '[a-z\\u00df-\\u017f]|(?![\\p{L}\\p{S}])\\p{scx=Latn}',
  ...'Arab Armn Beng Cyrl Deva Ethi Geor Grek Gujr Guru Hebr Khmr Knda Laoo Mlym Mymr Orya Sinh Taml Telu Thaa Thai Tibt'
    .split(' ')
    .map(script => `\\p{scx=${script}}`),
  '[\\p{scx=Hani}\\p{scx=Hira}\\p{scx=Kana}]',
  '[\\p{scx=Hani}\\p{scx=Bopo}]',
  '[\\p{scx=Hani}\\p{scx=Hang}]',
]

/** What a nickname looks like, in a form of its own: for comparing with other skeletons and nothing else. */
export function nicknameSkeleton(text: string): string {
  const characters = [...visible(text).normalize('NFKC').normalize('NFD')]
  return fold(characters.map(each => standsFor.get(each) ?? each).join('')).normalize('NFC')
}

/** What a username looks like: the same, but what looks like a telephone number has that number's skeleton. */
export function usernameSkeleton(text: string): string {
  const skeleton = nicknameSkeleton(text)
  const digits = skeleton.replaceAll('l', '1').replaceAll('o', '0')
  return readTelephone(nicknameKey(text)) ?? readTelephone(digits) ?? skeleton
}

/** Whether two keys of names are written in one script, both in the same: then no letter stands in for another. */
export function shareScript(one: string, other: string): boolean {
  const [a, b] = [one.normalize('NFD'), other.normalize('NFD')]
  return scripts.some(letters => {
    // Digits, punctuation and marks go with every script; symbols don't, as some look like letters.
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
