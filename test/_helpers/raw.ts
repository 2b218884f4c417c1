/** Bytes sent as they are, where every HTTP client would put them right. */
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

/** What came back over a raw connection. */
export interface RawAnswer {
  readonly text: string
  /** Whether the other side closed the connection. */
  readonly closed: boolean
  /** Milliseconds from the first byte to the end. */
  readonly ms: number
  /** Status of each answer, in order. */
  readonly statuses: readonly number[]
}

/**
 * Sends pieces one after the other with a pause in between, and collects what comes back until the other side closes
 * or `patience` ms have passed since the last piece.
 */
export async function sendRaw(
  port: number,
  pieces: Iterable<string | Buffer>,
  { pause = 0, patience = 1500 }: { pause?: number; patience?: number } = {},
): Promise<RawAnswer> {
  const socket = connect(port, '127.0.0.1')
  const chunks: Buffer[] = []
  let closed = false
  const end = new Promise<void>(resolve => {
    socket.on('data', chunk => chunks.push(chunk))
    socket.on('error', () => {})
    socket.on('close', () => {
      closed = true
      resolve()
    })
  })
  const startedAt = performance.now()
  for (const piece of pieces) {
    if (closed) break
    socket.write(piece as Buffer)
    if (pause > 0) await sleep(pause)
  }
  const timer = new AbortController()
  await Promise.race([end, sleep(patience, undefined, { signal: timer.signal }).catch(() => {})])
  timer.abort()
  const ms = performance.now() - startedAt
  const text = Buffer.concat(chunks).toString('latin1')
  const wasClosed = closed
  socket.destroy()
  const statuses = [...text.matchAll(/HTTP\/1\.1 (\d{3}) /g)].map(([, status]) => Number(status))
  return { text, closed: wasClosed, ms, statuses }
}
