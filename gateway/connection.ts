/** A client connection as a stream for node:http. It delivers small chunks, up to the limit of pending requests. */
import { setMaxListeners } from 'node:events'
import { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { Duplex } from 'node:stream'

/** A request. */
export class Request extends IncomingMessage {
  /** Its connection; `socket` is the same. */
  declare from: Connection
  /** Callbacks of the gateway: `answered` when the response begins, `close` when it is sent or the client disconnects. */
  declare visit: { answered(): void; close(): void } | undefined
}

/** The response to a request. */
export class Response extends ServerResponse<Request> {
  override writeHead(status: number, ...rest: unknown[]): this {
    this.req.visit?.answered()
    return super.writeHead(status, ...(rest as []))
  }
}

/** Whether the client of a request has disconnected. */
export function isGone(request: Request): boolean {
  return request.from.destroyed
}

/** Maximum bytes of a chunk: node:http parses all requests of a chunk at once, regardless of backpressure. */
const chunkBytes = 1024

/** Buffered bytes above which reading pauses. Up to this limit it continues, which detects that the client disconnects. */
const bufferLimit = 16 * 1024

/** The end of the headers of a request. */
const blankLine = '\n\r\n'

/** A written chunk. */
type Chunk = { chunk: Buffer | string; encoding: BufferEncoding }

/** Pending requests at which parsing stops. */
const pendingLimit = 8

/**
 * Returns for how many milliseconds a client that is refused as overloaded has to wait: 1 to 2 seconds, at random, so that
 * clients that are refused together don't retry together.
 */
export function refusedPause(): number {
  return 1_000 + 1_000 * Math.random()
}

/**
 * A client connection, with or without TLS. Requests find it as `request.socket`. Times are those of `performance.now()`.
 */
export class Connection extends Duplex {
  readonly remoteAddress: string | undefined
  /** Requests whose responses aren't sent yet. */
  readonly pending = new Set<Request>()
  /** Number of pending requests that wait in the scheduler. */
  waiting = 0
  /** The newest request and its response. */
  request: Request | undefined
  response: Response | undefined
  /** Whether no byte has arrived yet. */
  silent = true
  /** When the first byte of an arriving request arrived; for a new connection, when it opened. */
  arrivingSince: number | undefined = performance.now()
  /** When the newest request with complete headers began to arrive. */
  requestedAt: number | undefined
  /** Time of the last activity. */
  activeAt = performance.now()
  /** When the write began that the client hasn't read yet. */
  unreadSince: number | undefined
  /** Received bytes that aren't passed on yet. */
  private buffered: Buffer | undefined
  private wanted = false
  private socketPaused = false
  private stopped = false
  private held = false
  private aborter: AbortController | undefined

  constructor(private readonly socket: Socket) {
    super({ decodeStrings: false, readableHighWaterMark: chunkBytes })
    this.remoteAddress = socket.remoteAddress
    socket.on('data', (bytes: Buffer) => {
      this.silent = false
      this.activeAt = performance.now()
      // Otherwise the bytes belong to the body of the newest request.
      if (this.request?.complete !== false) this.arrivingSince ??= this.activeAt
      if (this.stopped) return
      this.buffered = this.buffered ? Buffer.concat([this.buffered, bytes]) : bytes
      this.feed()
    })
    socket.on('end', () => {
      if (this.stopped) return
      // A half-closed client counts as disconnected: node:http sends it no more responses.
      this.stop()
      this.push(null)
    })
    socket.on('error', error => this.destroy(error))
    socket.on('close', () => this.destroy())
    // node:http emits no event for pipelined responses that are never sent.
    this.on('close', () => {
      for (const request of this.pending) this.release(request)
    })
  }

  /** Signals that the client disconnects. The requests of a connection share it, because a signal is expensive to create. */
  get signal(): AbortSignal {
    if (!this.aborter) {
      this.aborter = new AbortController()
      // Each request adds a listener.
      setMaxListeners(0, this.aborter.signal)
      if (this.destroyed) this.aborter.abort()
    }
    return this.aborter.signal
  }

  /** Passes on buffered bytes unless parsing is blocked. Call it when `parsingBlocked` may have changed. */
  feed(): void {
    while (this.wanted && this.buffered && !this.parsingBlocked) {
      const { buffered } = this
      const end = endOfChunk(buffered, pendingLimit - this.pending.size)
      this.buffered = end < buffered.length ? buffered.subarray(end) : undefined
      this.wanted = this.push(end < buffered.length ? buffered.subarray(0, end) : buffered)
    }
    const isFull = this.buffered !== undefined && this.buffered.length > bufferLimit
    if (isFull === this.socketPaused) return
    this.socketPaused = isFull
    if (isFull) this.socket.pause()
    else this.socket.resume()
  }

  /** Counts a request until `release`, or until the client disconnects. */
  begin(request: Request, response: Response): void {
    this.pending.add(request)
    this.request = request
    this.response = response
    // Undefined if a pipelined request arrived in one chunk with others.
    this.requestedAt = this.arrivingSince ?? performance.now()
    this.arrivingSince = undefined
  }

  /** Ends a request. Call it when its response is sent or the client disconnects. */
  release(request: Request): void {
    if (!this.pending.delete(request)) return
    this.activeAt = performance.now()
    request.visit?.close()
    this.feed()
  }

  /** Whether buffered bytes are withheld from node:http. The socket itself pauses only above `bufferLimit`. */
  get parsingBlocked(): boolean {
    return this.pending.size >= pendingLimit || this.waiting > 0 || this.held
  }

  /** Blocks parsing for a random time (see `refusedPause`) after a refusal, to slow the client down. */
  hold(): void {
    if (this.held) return
    this.held = true
    setTimeout(() => {
      this.held = false
      this.feed()
    }, refusedPause()).unref()
  }

  /** Discards all further bytes. */
  stop(): void {
    this.stopped = true
    this.buffered = undefined
    if (this.socketPaused) this.socket.resume()
    this.socketPaused = false
  }

  override _read(): void {
    this.wanted = true
    if (this.buffered) this.feed()
  }

  override _write(chunk: Buffer | string, encoding: BufferEncoding, callback: (error?: Error | null) => void): void {
    this.unreadSince = performance.now()
    this.socket.write(chunk, encoding, error => {
      this.unreadSince = undefined
      callback(error)
    })
  }

  override _writev(chunks: Chunk[], callback: (error?: Error | null) => void): void {
    // A response ends with an empty chunk.
    const parts = chunks.filter(({ chunk }) => chunk.length > 0)
    const last = parts.pop() ?? { chunk: '', encoding: 'latin1' }
    this.socket.cork()
    for (const { chunk, encoding } of parts) this.socket.write(chunk, encoding)
    this._write(last.chunk, last.encoding, callback)
    this.socket.uncork()
  }

  override _final(callback: () => void): void {
    this.socket.destroySoon()
    callback()
  }

  override _destroy(error: Error | null, callback: (error: Error | null) => void): void {
    this.buffered = undefined
    this.socket.destroy()
    this.aborter?.abort()
    callback(error)
  }
}

/** Returns the length of the next chunk: at most `chunkBytes`, with at most the given number of requests. */
function endOfChunk(bytes: Buffer, requests: number): number {
  let end = 0
  for (let count = 0; count < requests; count++) {
    const at = bytes.indexOf(blankLine, end)
    if (at < 0 || at >= chunkBytes) return Math.min(bytes.length, chunkBytes)
    end = at + blankLine.length
  }
  return end
}
