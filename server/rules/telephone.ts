// Telephone numbers of the Brazilian numbering plan (Anatel), in their usual spellings.

/** The area codes. */
const area = '(?:1[1-9]|2[12478]|3[1-578]|4[1-9]|5[1345]|6[1-9]|7[134579]|8[1-9]|9[1-9])'

/**
 * Country code, trunk prefix, area code and subscriber number: 9 digits that begin with 9, or 8 digits that begin with
 * 2 to 9. `55` is a country code and an area code; the number of digits that follow determines which.
 */
const number = new RegExp(
  `^(?:(?:tel:)?\\+55|55)?(?:\\(0${area}\\)|(?:0|\\(0\\))?(?:${area}|\\(${area}\\)))(9\\d{8}|[2-9]\\d{7})$`,
)

/**
 * Parses a text that is a telephone number, and returns `tel:+55` with area code and subscriber number (RFC 3966);
 * undefined for other texts. Accepts the country code with and without plus sign, a trunk `0`, parentheses around the
 * area code, the `0` or both, spaces, dots and dashes anywhere, and the decimal digits of every script. Expects lower
 * case and NFKC.
 */
export function readTelephone(text: string): string | undefined {
  const plain = text.replace(/(?![0-9])\p{Nd}/gu, toAscii).replace(/[ .\p{Pd}]/gu, '')
  const subscriber = number.exec(plain)?.[1]
  if (subscriber === undefined) return undefined
  return `tel:+55${plain.replace(/\D/g, '').slice(-subscriber.length - 2)}`
}

/**
 * Whether a text is a number of 8 to 15 digits that a spreadsheet or a script took for an amount or a formula, such as
 * `5,51199E+12`, `11987654321,00`, `11,987,654,321` or `="11987654321"`. Dots between thousands are a spelling that
 * `readTelephone` accepts. Expects lower case and NFKC.
 */
export function isDamagedNumber(text: string): boolean {
  const plain = text.replace(/^(?:r\$|[='"+ ])+|[" ]+$/g, '').replace(/ /g, '')
  const { digits, exponent } = /^(?<digits>\d+)(?:[.,]\d+)?e\+?(?<exponent>\d{1,3})$/.exec(plain)?.groups ?? {}
  if (digits !== undefined) {
    const length = digits.length + Number(exponent)
    return length >= 8 && length <= 15
  }
  const isPlain = /^\d{8,15}$/.test(plain.replace(/(?:\.0+|,0*)$/, '').replace(/[.,](?=\d{3}(?!\d))/g, ''))
  return isPlain && (/,|^\d+\.0+$/.test(plain) || /^[='"]|^r\$/.test(text))
}

/**
 * The ASCII digit of a decimal digit. In Unicode the digits of a script are contiguous; some such ranges are adjacent.
 */
function toAscii(digit: string): string {
  let preceding = 0
  for (let point = digit.codePointAt(0)! - 1; /\p{Nd}/u.test(String.fromCodePoint(point)); point--) preceding++
  return String(preceding % 10)
}
