// Bulk transfer of tables by PostgreSQL's COPY (text format), as streams.
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type pg from 'pg'
import { from, to } from 'pg-copy-streams'

/** Returns the output of `COPY … TO STDOUT`. Calls `abandon` if it isn't read to the end: the connection is unusable then. */
export async function* copyOut(client: pg.Client, query: string, abandon: () => void): AsyncGenerator<Buffer> {
  let whole = false
  try {
    yield* client.query(to(query)) as AsyncIterable<Buffer>
    whole = true
  } finally {
    if (!whole) abandon()
  }
}

/** Writes rows to `COPY … FROM STDIN`, and returns their number. */
export async function copyIn(client: pg.Client, query: string, rows: AsyncIterable<Buffer>): Promise<number> {
  const stream = client.query(from(query))
  await pipeline(Readable.from(rows, { objectMode: false }), stream)
  return stream.rowCount
}
