// Telephone numbers of the Brazilian numbering plan (Anatel) in the ways in which they are written.

const area = '(?:1[1-9]|2[12478]|3[1-578]|4[1-9]|5[1345]|6[1-9]|7[134579]|8[1-9]|9[1-9])'

/**
 * Country code, trunk prefix, area code, and the subscriber's number: 9 digits that begin with 9, or 8 that begin with
 * 2 to 9. `55` is an area code too, but no number is complete as both: with a country code it has two digits more.
 */
const number = new RegExp(
  `^(?:(?:tel:)?\\+55|55)?(?:\\(0${area}\\)|(?:0|\\(0\\))?(?:${area}|\\(${area}\\)))(9\\d{8}|[2-9]\\d{7})$`,
)

/**
 * The number that a text wholly is, as `tel:+55`, area code and subscriber's number (RFC 3966); undefined when it is
 * none. Known are the country code with and without plus sign, a trunk `0`, brackets around the area code or the `0`,
 * spaces, dots and dashes anywhere, and the decimal digits of every script. The text is in small letters and NFKC.
 */
export function readTelephone(text: string): string | undefined {
  const plain = text.replace(/(?![0-9])\p{Nd}/gu, toAscii).replace(/[ .\p{Pd}]/gu, '')
  const subscriber = number.exec(plain)?.[1]
  if (subscriber === undefined) return undefined
  return `tel:+55${plain.replace(/\D/g, '').slice(-subscriber.length - 2)}`
}

/** Unicode keeps the ten digits of a script together, from zero to nine; some such tens follow upon each other. */
function toAscii(digit: string): string {
  let before = 0
  for (let point = digit.codePointAt(0)! - 1; /\p{Nd}/u.test(String.fromCodePoint(point)); point--) before++
  return String(before % 10)
}
