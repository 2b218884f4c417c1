import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

/** Requests of a connection that may be in progress at one time, once some were answered. */
const pipelineLimit = 32

/** The same on a new connection: many new ones at once must not stop everything else. Each answer allows one more. */
const firstLimit = 12

/** Requests for which there must be room before more is read: for fewer, a line at a time would be parsed. */
const leastRoom = 8

/** The requests of one connection. */
export interface Pipeline {
  /** Responses that aren't out yet, in the order of their requests. */
  readonly pending: ReadonlySet<ServerResponse>
  /** Must be told of every response when its request comes. */
  begin(response: ServerResponse): void
  /** Throws away whatever still arrives. */
  stop(): void
}

/**
 * Keeps a connection from having more than `pipelineLimit` requests under way: what its client sends ahead stays
 * unread until answers have gone out. Call it once the server's own listener has the socket.
 *
 * Node's parser takes all that one read brings, up to 64 KiB or 3,600 requests. So it gets them in pieces, by way of
 * JavaScript: 2 to 4 µs more for a request of which reading a user takes 90.
 */
export function limitPipeline(socket: Socket): Pipeline {
  const [parse] = socket.listeners('data') as [(bytes: Buffer) => void]
  const pending = new Set<ServerResponse>()
  let limit = firstLimit
  const room = () => limit - pending.size
  let held = false
  let stopped = false

  function feed(bytes: Buffer) {
    // Of a destroyed socket, as after CONNECT, Node has given the parser back.
    for (let rest = bytes; rest.length > 0 && !stopped && !socket.destroyed; ) {
      // Node itself pauses the socket, and its parser with it, when answers aren't taken; it also resumes it then.
      if (socket.isPaused() || room() < leastRoom) {
        held ||= !socket.isPaused()
        socket.pause()
        socket.unshift(rest)
        return
      }
      const piece = pieceFor(room(), rest)
      parse.call(socket, piece)
      rest = rest.subarray(piece.length)
    }
  }

  function resume() {
    if (!held || room() < leastRoom) return
    held = false
    socket.resume()
  }

  socket.off('data', parse).on('data', feed)
  return {
    pending,
    begin(response) {
      pending.add(response)
      response.once('close', () => {
        pending.delete(response)
        limit = Math.min(pipelineLimit, limit + 1)
        resume()
      })
    },
    stop() {
      stopped = true
    },
  }
}

/** The longest beginning in which no more than `room` requests can end: each has two lines at least. */
function pieceFor(room: number, bytes: Buffer): Buffer {
  let end = -1
  for (let lines = 2 * room; lines > 0; lines--) {
    end = bytes.indexOf('\n', end + 1)
    if (end < 0) return bytes
  }
  return bytes.subarray(0, end)
}
