/** HTTP/2 over TLS, from any address of this machine. */
import { type EventEmitter, once } from 'node:events'
import { type ClientHttp2Session, type ClientHttp2Stream, connect, type IncomingHttpHeaders } from 'node:http2'
import { connect as connectTcp } from 'node:net'
import { text } from 'node:stream/consumers'
import { connect as connectTls, type TLSSocket } from 'node:tls'

/** The address of a proxy, and the authority of its certificate. */
export interface Place {
  readonly port: number
  readonly ca: Buffer
  readonly servername: string
}

/** An answer over HTTP/2. */
export interface Http2Answer {
  readonly status: number
  readonly headers: IncomingHttpHeaders
  readonly text: string
}

/** One connection. */
export interface Http2Client {
  readonly session: ClientHttp2Session
  ask(method: string, path: string, options?: Http2Options): Promise<Http2Answer>
  /** Sends the headers of a POST with a body of one byte, and never that byte; returns the stream. */
  hold(path: string, headers?: Record<string, string>): ClientHttp2Stream
  close(): void
}

/** The parts of a request. */
export interface Http2Options {
  readonly headers?: Record<string, string>
  /** Sent as JSON. */
  readonly body?: unknown
}

/** Dials over TLS from an address of this machine. */
export function dial({ port, ca, servername }: Place, protocol: string, from = '127.0.0.1'): TLSSocket {
  const socket = connectTcp({ port, host: '127.0.0.1', localAddress: from })
  socket.on('error', () => {})
  return connectTls({ socket, ALPNProtocols: [protocol], ca, servername })
}

/** Opens a connection; rejects if the server doesn't use HTTP/2, or refuses the connection. */
export async function openHttp2(place: Place, from?: string): Promise<Http2Client> {
  const session = connect(`https://${place.servername}`, { createConnection: () => dial(place, 'h2', from) })
  session.on('error', () => {})
  await Promise.all([first(session, 'connect'), first(session, 'remoteSettings')])
  const start = (method: string, path: string, headers: Record<string, string> = {}) =>
    session.request({ ':method': method, ':path': path, ...headers }, { endStream: method === 'GET' })
  return {
    session,
    async ask(method, path, { headers = {}, body } = {}) {
      const stream = start(method, path, {
        ...(body !== undefined && { 'content-type': 'application/json' }),
        ...headers,
      })
      if (method !== 'GET') stream.end(body === undefined ? '' : JSON.stringify(body))
      return readAnswer(stream)
    },
    hold: (path, headers) => start('POST', path, { 'content-length': '1', ...headers }),
    close: () => session.destroy(),
  }
}

async function readAnswer(stream: ClientHttp2Stream): Promise<Http2Answer> {
  // At once: a stream that closes after its answer keeps nothing for a later reader.
  const [[headers], body] = await Promise.all([first<[IncomingHttpHeaders]>(stream, 'response'), text(stream)])
  return { status: Number(headers[':status']), headers, text: body }
}

/** Waits for an event; rejects when the other side closes before. */
function first<T extends unknown[]>(emitter: EventEmitter, event: string): Promise<T> {
  const closed = once(emitter, 'close').then(() => {
    throw new Error(`closed before ${event}`)
  })
  return Promise.race([once(emitter, event) as Promise<T>, closed])
}
