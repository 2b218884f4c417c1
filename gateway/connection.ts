/** A connection of a client as node:http gets it: in small pieces, and none while enough of its requests are in progress. */
import { setMaxListeners } from 'node:events'
import { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { Duplex } from 'node:stream'

/** A request. */
export class Request extends IncomingMessage {
  /** Where it came in; `socket` is the same. */
  declare from: Connection
  /** The request on its way through the gateway: answered, then closed when its answer is out, or its client has left. */
  declare visit: { answered(): void; close(): void } | undefined
}

/** The response to a request. */
export class Response extends ServerResponse<Request> {
  override writeHead(status: number, ...rest: unknown[]): this {
    this.req.visit?.answered()
    return super.writeHead(status, ...(rest as []))
  }
}

/** Whether the client of a request has left. */
export function isGone(request: Request): boolean {
  return request.from.destroyed
}

/** Bytes that are handed over at a time. What node:http gets at once becomes requests at once, whatever stands against it. */
const pieceBytes = 1024

/** Bytes that are read ahead. Where they are fewer, it shows when the client leaves. */
const aheadLimit = 16 * 1024

/** Where the headers of a request end. */
const blankLine = '\n\r\n'

/** What is written. */
type Chunk = { chunk: Buffer | string; encoding: BufferEncoding }

/** Requests in progress while which nothing more is handed over. */
const pendingLimit = 8

/**
 * Milliseconds for which nothing is handed over after a request was refused for lack of capacity: at least, and at most, so
 * that those refused together don't come back together.
 */
const refusedPause = { least: 1_000, most: 2_000 }

/**
 * A client's connection, with or without TLS in it. Its state is kept here, as a request finds it by `request.socket`. Times
 * are those of `performance.now()`.
 */
export class Connection extends Duplex {
  readonly remoteAddress: string | undefined
  /** Requests whose answers aren't out. */
  readonly pending = new Set<Request>()
  /** Those of them that wait in the scheduler. */
  waiting = 0
  /** The newest request and the response to it. */
  request: Request | undefined
  response: Response | undefined
  /** Whether no byte has come yet. */
  silent = true
  /** Since when a request has been arriving; a new connection is to send one. */
  arrivingSince: number | undefined = performance.now()
  /** The same of the newest request whose headers are there. */
  requestedAt: number | undefined
  /** When something last came or went. */
  activeAt = performance.now()
  /** Since when an answer has waited to be read. */
  unreadSince: number | undefined
  /** What has come and isn't handed over. */
  private rest: Buffer | undefined
  private wanted = false
  private paused = false
  private stopped = false
  private held = false
  private gone: AbortController | undefined

  constructor(private readonly socket: Socket) {
    super({ decodeStrings: false, readableHighWaterMark: pieceBytes })
    this.remoteAddress = socket.remoteAddress
    socket.on('data', (bytes: Buffer) => {
      this.silent = false
      this.activeAt = performance.now()
      // Otherwise it belongs to the body of the newest request.
      if (this.request?.complete !== false) this.arrivingSince ??= this.activeAt
      if (this.stopped) return
      this.rest = this.rest ? Buffer.concat([this.rest, bytes]) : bytes
      this.feed()
    })
    socket.on('end', () => {
      if (this.stopped) return
      // It has left, as far as anybody can tell: node:http gives it no more answers.
      this.stop()
      this.push(null)
    })
    socket.on('error', error => this.destroy(error))
    socket.on('close', () => this.destroy())
    // Of answers that wait behind another, node:http doesn't say that they will never be out.
    this.on('close', () => {
      for (const request of this.pending) this.release(request)
    })
  }

  /** Aborted when the client has gone. Requests of a connection share it: making one costs as much as the rest. */
  get signal(): AbortSignal {
    if (!this.gone) {
      this.gone = new AbortController()
      // One listener for each of its requests.
      setMaxListeners(0, this.gone.signal)
      if (this.destroyed) this.gone.abort()
    }
    return this.gone.signal
  }

  /** Hands over what there is to hand over, where that may be. To be called when a request was answered, or begins. */
  feed(): void {
    while (this.wanted && this.rest && !this.blocked) {
      const { rest } = this
      const end = endOfPiece(rest, pendingLimit - this.pending.size)
      this.rest = end < rest.length ? rest.subarray(end) : undefined
      this.wanted = this.push(end < rest.length ? rest.subarray(0, end) : rest)
    }
    const isFull = this.rest !== undefined && this.rest.length > aheadLimit
    if (isFull === this.paused) return
    this.paused = isFull
    if (isFull) this.socket.pause()
    else this.socket.resume()
  }

  /** Counts a request until `release`, or until the client leaves. */
  begin(request: Request, response: Response): void {
    this.pending.add(request)
    this.request = request
    this.response = response
    // One that was sent ahead may have come with others.
    this.requestedAt = this.arrivingSince ?? performance.now()
    this.arrivingSince = undefined
  }

  /** Says that the answer to a request is out, or that nobody takes it. */
  release(request: Request): void {
    if (!this.pending.delete(request)) return
    this.activeAt = performance.now()
    request.visit?.close()
    this.feed()
  }

  /** Whether nothing is handed over, whatever comes. */
  get blocked(): boolean {
    return this.pending.size >= pendingLimit || this.waiting > 0 || this.held
  }

  /** Hands over nothing for a while: a client that is refused is not to send more. */
  hold(): void {
    if (this.held) return
    this.held = true
    const { least, most } = refusedPause
    setTimeout(
      () => {
        this.held = false
        this.feed()
      },
      least + Math.random() * (most - least),
    ).unref()
  }

  /** Throws away whatever still arrives. */
  stop(): void {
    this.stopped = true
    this.rest = undefined
    if (this.paused) this.socket.resume()
    this.paused = false
  }

  override _read(): void {
    this.wanted = true
    if (this.rest) this.feed()
  }

  override _write(chunk: Buffer | string, encoding: BufferEncoding, callback: (error?: Error | null) => void): void {
    this.unreadSince = performance.now()
    this.socket.write(chunk, encoding, error => {
      this.unreadSince = undefined
      callback(error)
    })
  }

  override _writev(chunks: Chunk[], callback: (error?: Error | null) => void): void {
    // An answer comes with an empty chunk at its end.
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
    this.rest = undefined
    this.socket.destroy()
    this.gone?.abort()
    callback(error)
  }
}

/** How many bytes are handed over at once: no more than a piece, in which no more than so many requests begin. */
function endOfPiece(bytes: Buffer, requests: number): number {
  let end = 0
  for (let count = 0; count < requests; count++) {
    const at = bytes.indexOf(blankLine, end)
    if (at < 0 || at >= pieceBytes) return Math.min(bytes.length, pieceBytes)
    end = at + blankLine.length
  }
  return end
}
