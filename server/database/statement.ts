import { tracing } from '../observability/tracing.js'
import type { Client } from './connections.js'
import { inStatementSpan } from './spans.js'
import type { Statement } from './sql.js'

/** Runs a statement on a connection: prepared under its name, where prepared statements persist. */
export function runOn<Row>(client: Client, { name, text, values }: Statement): Promise<Row[]> {
  const query = { text, values: values as unknown[], name: client.prepares ? name : undefined }
  const work = async () => (await client.query(query)).rows as Row[]
  return tracing ? inStatementSpan(name || 'unnamed', work) : work()
}
