/** Reads the body of a request of any operation: size, media type, encoding, syntax. */
import type { Request } from './connection.js'
import { HttpError } from './problem.js'

/** Maximum number of bytes of a body. */
export const bodyLimit = 64 * 1024

/** Maximum depth of JSON. */
const depthLimit = 32

/** A decoded body. */
export type Body = { readonly form: string } | { readonly json: unknown }

/** Decodes UTF-8 strictly (RFC 8259 allows no other encoding) and drops a byte order mark. */
const utf8 = new TextDecoder('utf-8', { fatal: true })

/**
 * Reads the whole body of a request; undefined if it is empty.
 *
 * @throws HttpError PAYLOAD_TOO_LARGE as soon as the size is known; the rest stays unread
 * @throws HttpError UNSUPPORTED_MEDIA_TYPE if it is neither JSON nor a form, or not in UTF-8
 * @throws HttpError MALFORMED_REQUEST if it doesn't match its media type
 */
export async function readBody(request: Request): Promise<Body | undefined> {
  if (!mayHaveBody(request)) return undefined
  const bytes = await readBytes(request)
  if (bytes.length === 0) return undefined
  const { 'content-type': type = '', 'content-encoding': encoding = 'identity' } = request.headers
  const isForm = isFormType(type)
  if (encoding.toLowerCase() !== 'identity') {
    const accepted = { 'accept-encoding': 'identity' }
    throw new HttpError('UNSUPPORTED_MEDIA_TYPE', 'Send the body without compression.', accepted)
  }
  return isForm ? { form: decodeText(bytes) } : { json: parseJson(decodeText(bytes)) }
}

/** Decodes UTF-8. Throws `HttpError` if it is invalid. */
export function decodeText(bytes: Buffer): string {
  try {
    return utf8.decode(bytes)
  } catch {
    throw new HttpError('MALFORMED_REQUEST', 'The body is not valid UTF-8.')
  }
}

/** Whether a request has a body that hasn't fully arrived. */
export function isArriving(request: Request): boolean {
  return !request.complete && mayHaveBody(request)
}

/** Whether the headers announce a body over `bodyLimit`. */
export function announcesTooMuch({ headers }: Request): boolean {
  return Number(headers['content-length']) > bodyLimit
}

/** Decides by the headers only. */
function mayHaveBody(request: Request): boolean {
  const { 'content-length': length = '0', 'transfer-encoding': coding } = request.headers
  return length !== '0' || coding !== undefined
}

/**
 * Reads the bytes of a body.
 *
 * @throws HttpError PAYLOAD_TOO_LARGE as soon as the size is known; the rest stays unread
 */
export function readBytes(request: Request): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const tooLarge = () => reject(bodyTooLarge())
    if (announcesTooMuch(request)) return tooLarge()
    const cut = () => reject(endsEarly())
    if (request.destroyed) return cut()
    const chunks: Buffer[] = []
    let size = 0
    function onData(chunk: Buffer) {
      size += chunk.length
      if (size > bodyLimit) {
        request.off('data', onData)
        request.pause()
        return tooLarge()
      }
      chunks.push(chunk)
    }
    request.on('data', onData)
    request.once('end', () => resolve(chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks)))
    request.once('error', cut)
    request.once('close', cut)
  })
}

/** The refusal of a body over `bodyLimit`. */
export function bodyTooLarge(): HttpError {
  return new HttpError('PAYLOAD_TOO_LARGE', `The body has more than ${bodyLimit} bytes.`)
}

function endsEarly(): HttpError {
  return new HttpError('MALFORMED_REQUEST', 'The body ends early.')
}

/** Whether the media type is that of a form. Refuses types that are neither a form nor JSON. */
function isFormType(header: string): boolean {
  const [type = '', ...parameters] = header.split(';').map(part => part.trim().toLowerCase())
  const isForm = type === 'application/x-www-form-urlencoded'
  if (!isForm && type !== 'application/json' && !/^application\/[\w.-]+\+json$/.test(type)) {
    throw new HttpError('UNSUPPORTED_MEDIA_TYPE', 'Send the body as application/json.')
  }
  const charset = parameters.find(parameter => parameter.startsWith('charset='))
  if (charset && !/^charset="?utf-?8"?$/.test(charset)) {
    throw new HttpError('UNSUPPORTED_MEDIA_TYPE', 'Send the body in UTF-8.')
  }
  return isForm
}

/** Parses JSON. Throws `HttpError` if it is invalid, nested too deeply, or has text that UTF-8 can't encode. */
export function parseJson(text: string): unknown {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    throw new HttpError('MALFORMED_REQUEST', 'The body is not valid JSON.')
  }
  check(value, depthLimit)
  return value
}

/** Refuses values that are nested too deeply, and text that UTF-8 can't encode: unpaired surrogates, written as `\ud800`. */
function check(value: unknown, depth: number): void {
  if (typeof value === 'string') {
    if (/\p{Surrogate}/u.test(value))
      throw new HttpError('MALFORMED_REQUEST', 'The body contains an unpaired surrogate.')
  } else if (typeof value === 'object' && value !== null) {
    if (depth === 0) throw new HttpError('MALFORMED_REQUEST', 'The body is nested too deeply.')
    for (const inner of Object.values(value)) check(inner, depth - 1)
  }
}
