// Spans of database calls. A span is named after the statement, or Sequelize's operation and table. It never contains SQL,
// which can contain values.
import type { Sequelize } from 'sequelize'
import { activeContext, inSpan, SpanKind, spanSince } from '../observability/tracing.js'

const attributes = (name: string) => ({ 'db.system.name': 'postgresql', 'db.query.summary': name })

/** Runs a statement in a span with its name. */
export function inStatementSpan<T>(name: string, work: () => Promise<T>): Promise<T> {
  return inSpan({ name: `SQL ${name}`, kind: SpanKind.CLIENT, attributes: attributes(name) }, work)
}

/** Sequelize's description of a query. */
interface Query {
  readonly type?: string
  readonly model?: { readonly tableName?: string }
  readonly instance?: { readonly constructor: { readonly tableName?: string } }
}

/** Creates spans for the queries of Sequelize. */
export function traceSequelize(sequelize: Sequelize): void {
  const begun = new WeakMap<object, number>()
  sequelize.addHook('beforeQuery', (query: object) => void begun.set(query, performance.now()))
  sequelize.addHook('afterQuery', (query: object) => {
    const since = begun.get(query)
    if (since === undefined) return
    const { type, model, instance } = query as Query
    const table = model?.tableName ?? instance?.constructor.tableName
    const name = table ? `${type} ${table}`.toLowerCase() : 'transaction'
    spanSince(since, { name: `SQL ${name}`, kind: SpanKind.CLIENT, attributes: attributes(name) }, activeContext())
  })
}
