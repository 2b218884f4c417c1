/** Every character that rules may know: all but private ones and those that Unicode has left to the future. */
export function* everyCharacter(): Iterable<string> {
  for (let point = 0; point <= 0x10ffff; point++) {
    const character = String.fromCodePoint(point)
    if (/(?!\p{Co})\p{Assigned}|\p{Default_Ignorable_Code_Point}/u.test(character)) yield character
  }
}
