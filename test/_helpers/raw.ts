/** Raw bytes over a connection, which an HTTP client would correct or refuse to send. */
import { once } from 'node:events'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { connect as connectTls } from 'node:tls'

/** The response over a raw connection. */
export interface RawAnswer {
  readonly text: string
  /** Whether the other side closed the connection. */
  readonly closed: boolean
  /** Milliseconds from the first byte to the end. */
  readonly ms: number
  /** Status of each answer, in order. */
  readonly statuses: readonly number[]
}

/** Milliseconds between two checks for received bytes. */
const pause = 50

/** Milliseconds of silence after which no response is expected. */
const dead = 60_000

/**
 * Sends pieces one after the other with a pause in between, and collects the response until the other side closes,
 * or is silent for `patience` ms after it answered. Without an answer it waits a minute, unless patience is given.
 * Silence is counted in checks, so that it lasts longer on a busy machine.
 */
export async function sendRaw(
  port: number,
  pieces: Iterable<string | Buffer>,
  options: { pause?: number; patience?: number } = {},
): Promise<RawAnswer> {
  const socket = connect(port, '127.0.0.1')
  const chunks: Buffer[] = []
  const closing = new AbortController()
  const closed = closing.signal
  socket.on('data', chunk => chunks.push(chunk))
  socket.on('error', () => {})
  socket.on('close', () => closing.abort())
  const startedAt = performance.now()
  for (const piece of pieces) {
    if (closed.aborted) break
    socket.write(piece as Buffer)
    if (options.pause) await sleep(options.pause)
  }
  let seen = -1
  for (let quiet = 0; !closed.aborted; quiet += pause) {
    if (chunks.length > seen) quiet = 0
    seen = chunks.length
    if (quiet >= (options.patience ?? (seen === 0 ? dead : 1500))) break
    await sleep(pause, undefined, { signal: closed }).catch(() => {})
  }
  const ms = performance.now() - startedAt
  const text = Buffer.concat(chunks).toString('latin1')
  const wasClosed = closed.aborted
  socket.destroy()
  const statuses = [...text.matchAll(/HTTP\/1\.1 (\d{3}) /g)].map(([, status]) => Number(status))
  return { text, closed: wasClosed, ms, statuses }
}

/** A connection that sends raw bytes, and whose response can be read meanwhile. */
export interface RawConnection {
  write(bytes: string | Buffer): void
  /** Stops reading, so that the other side can't write any more. */
  pause(): void
  resume(): void
  /** Everything received so far. */
  text(): string
  /** Whether the other side closed the connection. */
  closed(): boolean
  /** Waits until the received bytes match; throws if the other side closes before. */
  until(pattern: RegExp): Promise<RegExpExecArray>
  /** Waits until the other side closes. */
  end(): Promise<void>
  /** Ends the sending side, and still reads. */
  finish(): void
  destroy(): void
}

/**
 * Opens a connection to a port on this machine, optionally with TLS and from another local address. It stays half open
 * when the other side has ended, until `destroy`.
 */
export async function openRaw(
  port: number,
  within?: { readonly tls?: boolean; readonly from?: string },
): Promise<RawConnection> {
  const from = within?.from === undefined ? {} : { localAddress: within.from }
  const plain = connect({ port, host: '127.0.0.1', allowHalfOpen: true, ...from })
  await once(plain, 'connect')
  const tls = { socket: plain, rejectUnauthorized: false, ALPNProtocols: ['http/1.1'], allowHalfOpen: true }
  const socket = within?.tls ? connectTls(tls) : plain
  let text = ''
  let ended = false
  const waiting = new Set<() => void>()
  const wake = () => {
    for (const each of waiting) each()
  }
  socket.on('data', chunk => {
    text += chunk.toString('latin1')
    wake()
  })
  const onEnd = () => {
    ended = true
    wake()
  }
  socket.on('error', () => {})
  socket.on('end', onEnd)
  socket.on('close', onEnd)
  // A connection that is dropped in the handshake is reported as closed, like others.
  if (socket !== plain) await once(socket, 'secureConnect').catch(() => {})
  const wait = <T>(look: () => T | null | undefined) =>
    new Promise<T>((resolve, reject) => {
      const check = () => {
        const found = look()
        if (found == null && !ended) return
        waiting.delete(check)
        if (found == null) reject(new Error(`The connection was closed after: ${text}`))
        else resolve(found)
      }
      waiting.add(check)
      check()
    })
  return {
    write: bytes => void socket.write(bytes),
    pause: () => void socket.pause(),
    resume: () => void socket.resume(),
    text: () => text,
    closed: () => ended,
    until: pattern => wait(() => pattern.exec(text)),
    end: () => wait(() => undefined).catch(() => {}),
    finish: () => void socket.end(),
    destroy: () => void socket.destroy(),
  }
}
