/**
 * Generates server/rules/look-alikes.json from Unicode's list of confusables (UTS 39), published for each version of Unicode
 * as https://www.unicode.org/Public/security/17.0.0/confusables.txt:
 *
 *     node deploy/build/lookalikes.mjs < confusables.txt > server/rules/look-alikes.json
 *
 * The database stores skeletons that were computed with the table. With a new table, add a migration that sets them to NULL;
 * the next start of the service computes them again.
 */
import { readFileSync } from 'node:fs'

const list = readFileSync(0, 'utf8')
const version = /^# Version: (.+)$/m.exec(list)[1]
const copyright = /^# (©.+)$/m.exec(list)[1]

const fromHex = text =>
  text
    .trim()
    .split(/\s+/)
    .map(hex => String.fromCodePoint(Number.parseInt(hex, 16)))
    .join('')
const published = new Map(
  [...list.matchAll(/^\ufeff?([\dA-F]+)\s*;([\dA-F\s]+);\s*MA/gm)].map(([, from, to]) => [fromHex(from), fromHex(to)]),
)

const isAscii = text => /^[ -~]*$/.test(text)
const fold = text => text.toLowerCase().toUpperCase().toLowerCase()
const lookOf = character => fold(published.get(character) ?? character)

/** The target of a small letter. Names ignore case: if only the capital looks like ASCII, its target counts. */
function standsFor(small) {
  // Capital I looks like l.
  if (small === 'i') return 'l'
  const look = lookOf(small)
  const capital = lookOf(small.toUpperCase())
  return !isAscii(look) && isAscii(capital) ? capital : look
}

/** Follows a character to its small letter, to the target of that, and so on, until nothing changes. */
function skeletonOf(character) {
  const look = lookOf(character)
  let text = isAscii(look) ? look : fold(character)
  for (let last = ''; text !== last; ) {
    last = text
    text = [...text.normalize('NFKC').normalize('NFD')].map(standsFor).join('')
  }
  return text
}

/** Sources by target, code points in hexadecimal, those of a target joined by +. */
const groups = {}
const toHex = text => [...text].map(character => character.codePointAt(0).toString(16)).join('+')
for (let point = 0; point <= 0x10ffff; point++) {
  const character = String.fromCodePoint(point)
  // Other characters don't occur in the normalized form of names.
  if (/[\p{Cs}\p{Default_Ignorable_Code_Point}\s]/u.test(character)) continue
  if (character.normalize('NFKC').normalize('NFD') !== character) continue
  const skeleton = skeletonOf(character)
  if (skeleton === fold(character)) continue
  const target = toHex(skeleton)
  groups[target] = [...(groups[target] ?? []), toHex(character)]
}

const table = {
  source: `Made by deploy/build/lookalikes.mjs from Unicode's confusables.txt, version ${version}. Don't edit.`,
  license: [
    `${copyright} The list is used under the Unicode License v3:`,
    'Permission is hereby granted, free of charge, to any person obtaining a copy of data files and any associated documentation (the "Data Files") or software and any associated documentation (the "Software") to deal in the Data Files or Software without restriction, including without limitation the rights to use, copy, modify, merge, publish, distribute, and/or sell copies of the Data Files or Software, and to permit persons to whom the Data Files or Software are furnished to do so, provided that either (a) this copyright and permission notice appear with all copies of the Data Files or Software, or (b) this copyright and permission notice appear in associated Documentation.',
    'THE DATA FILES AND SOFTWARE ARE PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT OF THIRD PARTY RIGHTS. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR HOLDERS INCLUDED IN THIS NOTICE BE LIABLE FOR ANY CLAIM, OR ANY SPECIAL INDIRECT OR CONSEQUENTIAL DAMAGES, OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THE DATA FILES OR SOFTWARE. Except as contained in this notice, the name of a copyright holder shall not be used in advertising or otherwise to promote the sale, use or other dealings in these Data Files or Software without prior written authorization of the copyright holder.',
  ],
  prototypes: Object.fromEntries(Object.entries(groups).map(([target, sources]) => [target, sources.join(' ')])),
}
process.stdout.write(`${JSON.stringify(table, null, 2)}\n`)
