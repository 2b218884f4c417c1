import fc from 'fast-check'

/** Every assigned character, except those for private use. */
export function* everyCharacter(): Iterable<string> {
  for (let point = 0; point <= 0x10ffff; point++) {
    const character = String.fromCodePoint(point)
    if (/(?!\p{Co})\p{Assigned}|\p{Default_Ignorable_Code_Point}/u.test(character)) yield character
  }
}

/** Any character, for strings. The `binary` of fast-check takes a second to start. */
export const anyCharacter = fc
  .nat(0x10ffff - 0x800)
  .map(point => String.fromCodePoint(point < 0xd800 ? point : point + 0x800))
