import { readFileSync } from 'node:fs'

/** Reads a PEM file (RFC 7468) that must hold a block of this kind. Throws an Error that says what is wrong with the file. */
export function readPem(path: string, kind: 'CERTIFICATE' | 'PRIVATE KEY' | 'X509 CRL'): Buffer {
  let content: Buffer
  try {
    content = readFileSync(path)
  } catch (error) {
    throw new Error(`the file can’t be read (${(error as NodeJS.ErrnoException).code})`)
  }
  if (!content.includes(`${kind}-----`)) throw new Error(`the file holds no PEM block of a ${kind.toLowerCase()}`)
  return content
}
