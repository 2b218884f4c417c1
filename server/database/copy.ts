// Tables in bulk, as PostgreSQL's COPY reads and writes them (text format), without ever holding one in memory.
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type pg from 'pg'
import { from, to } from 'pg-copy-streams'

/** What `COPY … TO STDOUT` gives. When it isn't read to its end, `abandon` is called: the connection is of no use then. */
export async function* copyOut(client: pg.Client, query: string, abandon: () => void): AsyncGenerator<Buffer> {
  let whole = false
  try {
    yield* client.query(to(query)) as AsyncIterable<Buffer>
    whole = true
  } finally {
    if (!whole) abandon()
  }
}

/** Gives `COPY … FROM STDIN` what it takes, and returns how many rows that were. */
export async function copyIn(client: pg.Client, query: string, rows: AsyncIterable<Buffer>): Promise<number> {
  const stream = client.query(from(query))
  await pipeline(Readable.from(rows, { objectMode: false }), stream)
  return stream.rowCount
}
