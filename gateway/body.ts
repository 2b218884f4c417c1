/** Reads the body of a request of any operation: size, media type, encoding, syntax. */
import type { IncomingHttpHeaders } from 'node:http'
import type { Turn } from '../server/requests/call.js'
import { costOfInput, maxValues } from '../server/requests/input.js'
import type { Request } from './connection.js'
import type { Exchange } from './exchange.js'
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
 * Reads the whole body of a request; undefined if it is empty. Others take their turns while it arrives.
 *
 * @throws HttpError PAYLOAD_TOO_LARGE as soon as the size is known; the rest stays unread
 * @throws HttpError UNSUPPORTED_MEDIA_TYPE if it is neither JSON nor a form, or not in UTF-8
 * @throws HttpError MALFORMED_REQUEST if it doesn't match its media type
 */
export async function readBody(exchange: Exchange): Promise<Body | undefined> {
  const { request, turn } = exchange
  if (!mayHaveBody(request)) return undefined
  const bytes = await readBytes(exchange)
  if (bytes.length === 0) return undefined
  const { 'content-type': type = '', 'content-encoding': encoding = 'identity' } = request.headers
  const isForm = isFormType(type)
  if (encoding.toLowerCase() !== 'identity') {
    const accepted = { 'accept-encoding': 'identity' }
    throw new HttpError('UNSUPPORTED_MEDIA_TYPE', 'Send the body without compression.', accepted)
  }
  return isForm ? { form: decodeText(bytes) } : { json: parseJson(decodeText(bytes), turn) }
}

/** Decodes UTF-8. Throws `HttpError` if it is invalid. */
export function decodeText(bytes: Buffer): string {
  try {
    return utf8.decode(bytes)
  } catch {
    throw new HttpError('MALFORMED_REQUEST', 'The body is not valid UTF-8.')
  }
}

/** Cost of a body in ms, by its announced length; a body without a length costs as much as the longest. */
export function costOfBody({ 'content-length': length, 'transfer-encoding': coding }: IncomingHttpHeaders): number {
  if (length === undefined && coding === undefined) return 0
  return costOfInput(Math.min(Number(length ?? bodyLimit), bodyLimit))
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
 * Reads the bytes of a body. Others take their turns while it arrives.
 *
 * @throws HttpError PAYLOAD_TOO_LARGE as soon as the size is known; the rest stays unread
 */
export function readBytes({ request, turn }: Exchange): Promise<Buffer> {
  const isArriving = !request.complete && mayHaveBody(request)
  return isArriving ? turn.pause(() => receive(request)) : receive(request)
}

function receive(request: Request): Promise<Buffer> {
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

/**
 * Parses JSON, and charges the turn for its values. Throws `HttpError` if it is invalid, nested too deeply, has too many
 * values, or text that UTF-8 can't encode.
 */
export function parseJson(text: string, turn: Turn): unknown {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    throw new HttpError('MALFORMED_REQUEST', 'The body is not valid JSON.')
  }
  turn.charge(costOfInput(0, check(value, depthLimit, 0)))
  return value
}

/**
 * Counts the values, added to `count`. Refuses too many, values that are nested too deeply, and text that UTF-8 can't encode:
 * unpaired surrogates, written as `\ud800`.
 */
function check(value: unknown, depth: number, count: number): number {
  let counted = count + 1
  // Before it looks at the items of a list.
  if (counted + (Array.isArray(value) ? value.length : 0) > maxValues)
    throw new HttpError('MALFORMED_REQUEST', `The body has more than ${maxValues} values.`)
  if (typeof value === 'string') {
    if (/\p{Surrogate}/u.test(value))
      throw new HttpError('MALFORMED_REQUEST', 'The body contains an unpaired surrogate.')
  } else if (typeof value === 'object' && value !== null) {
    if (depth === 0) throw new HttpError('MALFORMED_REQUEST', 'The body is nested too deeply.')
    for (const item of Object.values(value)) counted = check(item, depth - 1, counted)
  }
  return counted
}
