// What grpc-js reads wrongly, corrected on the way in. It has no hook for this, so methods of its own are wrapped:
// test/calls/messages.test.ts fails if a new version changes them.
import type { IncomingHttpHeaders, ServerHttp2Stream } from 'node:http2'
import { type Server, type ServerInterceptor, status } from '@grpc/grpc-js'
import { readTimeout } from '../requests/grpc-timeout.js'

/** The longest timeout that grpc-js reads correctly: below 2^31 ms. Calls have far shorter deadlines. */
const longestTimeout = '2147483S'

type HandleStream = (interceptors: unknown, stream: ServerHttp2Stream, headers: IncomingHttpHeaders) => void

/**
 * Corrects how a server reads `grpc-timeout`: grpc-js takes one beyond 2^31 ms for one that has passed, reads malformed ones in
 * part, and answers the rest of them with INTERNAL. Call it before the server listens.
 */
export function correctTimeouts(server: Server): void {
  const internals = server as unknown as { _streamHandler: HandleStream }
  const handle = internals._streamHandler
  internals._streamHandler = (interceptors, stream, headers) => {
    const timeout = headers['grpc-timeout'] as string | undefined
    const ms = timeout === undefined ? 0 : readTimeout(timeout)
    if (ms !== undefined) {
      if (ms >= 2 ** 31) headers['grpc-timeout'] = longestTimeout
      handle.call(server, interceptors, stream, headers)
      return
    }
    stream.on('error', () => {})
    const trailers = { 'grpc-status': status.INVALID_ARGUMENT, 'grpc-message': 'grpc-timeout is malformed.' }
    stream.respond({ ':status': 200, 'content-type': 'application/grpc', ...trailers }, { endStream: true })
  }
}

type Decompress = (message: Buffer, encoding: string) => Buffer | Promise<Buffer>

/** Bytes that are no message of any type: a field has a number. */
const noMessage = Buffer.of(0)

/** Passes on a message that can't be decompressed as one that can't be decoded; grpc-js answers it with INTERNAL. */
export const decompressLater: ServerInterceptor = (_method, call) => {
  const internals = call as unknown as { decompressMessage: Decompress }
  const decompress = internals.decompressMessage.bind(call)
  internals.decompressMessage = async (message, encoding) => {
    try {
      return await decompress(message, encoding)
    } catch (error) {
      if ((error as { code?: number }).code === status.INTERNAL) return noMessage
      throw error
    }
  }
  return call as ReturnType<ServerInterceptor>
}
