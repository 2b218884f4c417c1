/**
 * Returns the text of a secret or setting without what editors, shells and tools add to it: a byte order mark, and one line end.
 */
export function plainText(text: string): string {
  return text.replace(/^\uFEFF/, '').replace(/\r\n$|[\r\n]$/, '')
}

/** The text within a pair of quotation marks that surrounds it; undefined without one. */
export function unquoted(text: string): string | undefined {
  return /^(["'])(.*)\1$/s.exec(text)?.[2]
}

/** Returns the plain text of a file. Throws an Error that completes "the file …" when it isn't in UTF-8. */
export function decodePlainText(content: Buffer): string {
  const isUtf16 = content.includes(0) || /^(?:fffe|feff)/.test(content.toString('hex', 0, 2))
  if (isUtf16) throw new Error('is in UTF-16, or isn’t text: save it in UTF-8')
  try {
    return plainText(new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(content))
  } catch {
    throw new Error('isn’t in UTF-8: save it in UTF-8')
  }
}
