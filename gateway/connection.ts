/** A client connection as a stream for node:http, with one request in progress: what its client sends meanwhile waits. */
import { setMaxListeners } from 'node:events'
import { IncomingMessage, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { Duplex } from 'node:stream'

/** A request. */
export class Request extends IncomingMessage {
  /** Its connection; `socket` is the same. */
  declare from: Connection
  /** When it began, by `performance.now()`. */
  declare begunAt: number
  /** For the metrics: its path in the table of routes, or `RPC`. */
  declare route: string | undefined
  /** Whether a page of a client sent it; absent where these pages may not read the answer. */
  declare isOfClient: boolean | undefined
}

/** The response to a request. */
export type Response = ServerResponse<Request>

/** Whether the client of a request has disconnected. */
export function isGone(request: Request): boolean {
  return request.from.destroyed
}

/** Maximum bytes of a slice: node:http parses all requests of a chunk at once, regardless of backpressure. */
const sliceBytes = 1024

/** Unparsed bytes above which reading pauses. Up to this limit it continues, which detects that the client disconnects. */
const bufferLimit = 16 * 1024

/** The end of the headers of a request. */
const blankLine = '\n\r\n'

/** Called when bytes are written, or can't be. */
type Callback = (error?: Error | null) => void

/**
 * Returns for how many milliseconds a client that is refused as overloaded has to wait: 1 to 2 seconds, at random, so that
 * clients that are refused together don't retry together.
 */
export function refusedPause(): number {
  return 1_000 + 1_000 * Math.random()
}

/**
 * A client connection, with or without TLS, with one request in progress. Requests find it as `request.socket`. Times are
 * those of `performance.now()`. node:http enforces its timeouts: it parses, and so times, no request that waits.
 */
export class Connection extends Duplex {
  readonly remoteAddress: string | undefined
  /** The response to the request in progress, until it is sent. */
  response: Response | undefined
  /** Whether no byte has arrived yet. */
  silent = true
  /** Time of the last activity. */
  activeAt = performance.now()
  /** Received bytes that aren't parsed yet. */
  private buffered: Buffer | undefined
  /** The response to a request whose headers came in one slice with the end of the request in progress. */
  private next: Response | undefined
  /** Whether node:http wants no more bytes for now, because it has more of a body than is read. */
  private paused = false
  /** When the socket got the first of the bytes that it hasn't sent yet. */
  private writingSince = 0
  /** Called when a response is sent. */
  private flushed: Callback | undefined
  private socketPaused = false
  private stopped = false
  private held = false
  private aborter: AbortController | undefined

  constructor(
    private readonly socket: Socket,
    private readonly onRequest: (request: Request, response: Response) => void,
    private readonly onEnd: (response: Response) => void,
  ) {
    super({ decodeStrings: false, readableHighWaterMark: sliceBytes })
    this.remoteAddress = socket.remoteAddress
    socket.on('data', (bytes: Buffer) => {
      this.silent = false
      this.activeAt = performance.now()
      if (this.stopped) return
      this.buffered = this.buffered ? Buffer.concat([this.buffered, bytes]) : bytes
      this.feed()
    })
    socket.on('end', () => {
      if (this.stopped) return
      // A half-closed client counts as disconnected: node:http sends it no more responses.
      this.stop()
      if (this.response?.req.complete && !this.response.headersSent) this.destroy()
      else this.emit('end')
    })
    socket.on('drain', () => this.emit('drain'))
    socket.on('timeout', () => this.emit('timeout'))
    socket.on('error', error => this.destroy(error))
    socket.on('close', () => this.destroy())
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

  /** For how many milliseconds there have been bytes that the client doesn't read. */
  get unreadFor(): number {
    return this.socket.writableLength > 0 ? performance.now() - this.writingSince : 0
  }

  /** Begins a parsed request, or keeps it until the one in progress is answered. */
  arrive(response: Response): void {
    if (this.isWaiting) this.next = response
    else this.begin(response)
  }

  /** Whether received bytes wait: for the response to a request that has arrived, or for the end of a pause. */
  private get isWaiting(): boolean {
    return this.held || this.response?.req.complete === true
  }

  private begin(response: Response): void {
    this.response = response
    response.req.begunAt = performance.now()
    response.once('close', () => {
      this.onEnd(response)
      this.response = undefined
      this.activeAt = performance.now()
      this.proceed()
    })
    this.onRequest(response.req, response)
  }

  /** Begins the next request, unless one is in progress, or has node:http parse further bytes. */
  private proceed(): void {
    // A connection whose last response is sent has ended.
    if (this.response || this.held || this.writableEnded || this.destroyed) return
    const { next } = this
    this.next = undefined
    if (next) this.begin(next)
    this.feed()
  }

  /**
   * Has node:http parse buffered bytes, slice by slice, until it pauses or they must wait. `push` would keep slices in the
   * stream, where they can't wait.
   */
  private feed(): void {
    while (this.buffered && !this.paused && !this.isWaiting) {
      const { buffered } = this
      const end = endOfSlice(buffered)
      this.buffered = end < buffered.length ? buffered.subarray(end) : undefined
      this.emit('data', end < buffered.length ? buffered.subarray(0, end) : buffered)
    }
    const isFull = this.buffered !== undefined && this.buffered.length > bufferLimit
    if (isFull === this.socketPaused) return
    this.socketPaused = isFull
    if (isFull) this.socket.pause()
    else this.socket.resume()
  }

  /** Pauses after a refusal for a random time (see `refusedPause`), to slow the client down. */
  hold(): void {
    if (this.held) return
    this.held = true
    setTimeout(() => {
      this.held = false
      this.proceed()
    }, refusedPause()).unref()
  }

  /**
   * Parses nothing more, and calls `respond` when the request in progress is answered. One with an incomplete body gets only
   * that response; if its own has begun, the connection closes.
   */
  refuse(respond: () => void): void {
    this.stop()
    if (!this.response) respond()
    else if (this.response.req.complete) this.response.once('close', respond)
    else if (this.response.headersSent) this.destroy()
    else respond()
  }

  /** Discards all further bytes. */
  private stop(): void {
    this.stopped = true
    this.buffered = undefined
    this.next = undefined
    if (this.socketPaused) this.socket.resume()
    this.socketPaused = false
  }

  override pause(): this {
    this.paused = true
    return this
  }

  override resume(): this {
    if (!this.paused) return this
    this.paused = false
    // node:http may be in the middle of a slice.
    process.nextTick(() => this.feed())
    return this
  }

  override _read(): void {}

  /** node:http calls it for the timeout of idle connections. */
  setTimeout(ms: number): this {
    this.socket.setTimeout(ms)
    return this
  }

  /** Passes responses to the socket at once: the buffer of another stream would only take time. */
  override write(chunk: Buffer | string, encoding?: unknown, callback?: Callback): boolean {
    // node:http ends a response with an empty chunk, which would make two chunks of most.
    if (chunk.length === 0 && callback) {
      this.flushed = callback
      return true
    }
    if (this.socket.writableLength === 0) this.writingSince = performance.now()
    return this.socket.write(chunk, encoding as BufferEncoding, callback)
  }

  override cork(): void {
    this.socket.cork()
  }

  override uncork(): void {
    this.socket.uncork()
    const { flushed } = this
    if (!flushed) return
    this.flushed = undefined
    if (this.socket.writableLength === 0) process.nextTick(flushed)
    else this.socket.write('', flushed)
  }

  /** Called for the chunk of `end` only. */
  override _write(chunk: Buffer | string, encoding: BufferEncoding, callback: Callback): void {
    this.socket.write(chunk, encoding, callback)
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

/** Returns the length of the next slice: up to the end of headers, if the bytes have one, and at most `sliceBytes`. */
function endOfSlice(bytes: Buffer): number {
  const at = bytes.indexOf(blankLine)
  return Math.min(bytes.length, sliceBytes, at < 0 ? bytes.length : at + blankLine.length)
}
