import fc from 'fast-check'

/** Every character that rules may know: all but private ones and those that Unicode has left to the future. */
export function* everyCharacter(): Iterable<string> {
  for (let point = 0; point <= 0x10ffff; point++) {
    const character = String.fromCodePoint(point)
    if (/(?!\p{Co})\p{Assigned}|\p{Default_Ignorable_Code_Point}/u.test(character)) yield character
  }
}

/** Any character at all, for strings. fast-check's own (`binary`) takes a second to begin with. */
export const anyCharacter = fc
  .nat(0x10ffff - 0x800)
  .map(point => String.fromCodePoint(point < 0xd800 ? point : point + 0x800))
