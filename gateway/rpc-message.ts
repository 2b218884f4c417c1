/** Reads the message of a call over Connect or gRPC-Web from the body of its request. */
import { gunzipSync } from 'node:zlib'
import { create, type DescMessage, type JsonValue, type Message } from '@bufbuild/protobuf'
import { Code, ConnectError } from '@connectrpc/connect'
import { costOfInput, readBinary } from '../server/requests/input.js'
import { bodyLimit, bodyTooLarge, costOfBody, decodeText, parseJson, readBytes } from './body.js'
import type { Request } from './connection.js'
import type { Exchange } from './exchange.js'
import { HttpError } from './problem.js'
import { encodeMalformed, type Malformed, readObject } from './translate.js'

/** The message of a call. */
interface ReadMessage {
  readonly message: Message
  /** Whether the body is no message of this type: `message` is then empty. */
  readonly undecodable?: boolean
  /** The fields of JSON with a wrong type, and lists that are too long (see `Translated`), which make it undecodable, too. */
  readonly malformed?: string | undefined
}

/** Flags of a frame of gRPC-Web: the message is compressed, and the frame has trailers and no message. */
const compressedFlag = 0x01
const trailersFlag = 0x80

const isFramed = ({ headers }: Request) => /^application\/grpc-web/i.test(headers['content-type'] ?? '')
const isJson = ({ headers }: Request) => /^application\/(?:grpc-web\+)?json/i.test(headers['content-type'] ?? '')

/** Whether the value of a header is the encoding gzip. */
export const isGzip = (encoding: string | string[] | null | undefined) => String(encoding).toLowerCase() === 'gzip'

/** A body with an empty message in the media type of a request. */
export async function* emptyBody(request: Request): AsyncGenerator<Uint8Array> {
  const message = Buffer.from(isJson(request) ? '{}' : '')
  if (!isFramed(request)) yield message
  else yield Buffer.concat([Buffer.of(0, 0, 0, 0, message.length), message])
}

/**
 * Reads the message of a request, and charges its turn for what it reads. Others take their turns while it arrives.
 *
 * @throws HttpError PAYLOAD_TOO_LARGE if the body is too large, also without compression
 * @throws ConnectError UNIMPLEMENTED unless there is exactly one message
 */
export async function readMessage(exchange: Exchange, schema: DescMessage): Promise<ReadMessage> {
  const { request, turn } = exchange
  const malformed: Malformed = new Map()
  const bytes = await readBytes(exchange).catch(error => {
    // Discards the rest, so that the connection can be used further.
    request.resume()
    throw error
  })
  try {
    const { 'content-encoding': encoding, 'grpc-encoding': frameEncoding } = request.headers
    const plain = isFramed(request) ? unframe(bytes, isGzip(frameEncoding)) : isGzip(encoding) ? gunzip(bytes) : bytes
    turn.charge(Math.max(0, costOfInput(plain.length) - costOfBody(request.headers)))
    if (!isJson(request)) {
      const { message, values, undecodable = false, malformed: lists = [] } = readBinary(schema, plain)
      turn.charge(costOfInput(0, values))
      for (const { field, message } of lists) malformed.set(field, message)
      if (!undecodable) return { message }
    } else {
      const message = readObject(schema, parseJson(decodeText(plain), turn) as JsonValue, malformed)
      if (malformed.size === 0) return { message }
    }
  } catch (error) {
    if (error instanceof ConnectError || (error instanceof HttpError && error.reason === 'PAYLOAD_TOO_LARGE'))
      throw error
  }
  return { message: create(schema), undecodable: true, malformed: encodeMalformed(malformed) }
}

/** The only message in the frames of gRPC-Web (PROTOCOL-WEB). */
function unframe(bytes: Buffer, gzip: boolean): Buffer {
  let message: Buffer | undefined
  for (let at = 0; at < bytes.length; ) {
    const flags = bytes[at]!
    const end = at + 5 + bytes.readUInt32BE(at + 1)
    if (end > bytes.length || (flags & ~(compressedFlag | trailersFlag)) !== 0) throw new Error('no frame')
    const content = bytes.subarray(at + 5, end)
    if ((flags & trailersFlag) === 0) {
      if (message) throw notOne()
      message = flags === compressedFlag && gzip ? gunzip(content) : content
    }
    at = end
  }
  if (!message) throw notOne()
  return message
}

function notOne(): ConnectError {
  return new ConnectError('The request must have exactly one message.', Code.Unimplemented)
}

/** Decompresses at most `bodyLimit` bytes. */
function gunzip(bytes: Buffer): Buffer {
  if (bytes.length === 0) return bytes
  try {
    return gunzipSync(bytes, { maxOutputLength: bodyLimit })
  } catch (error) {
    throw (error as NodeJS.ErrnoException).code === 'ERR_BUFFER_TOO_LARGE' ? bodyTooLarge() : error
  }
}
