/**
 * Statements of SQL, written as templates where they run:
 *
 *     const [found] = await database.run<User>(sql('user-of-id')`SELECT ${columns} FROM users u WHERE u.id = ${id}`, t)
 *
 * - `${value}` is a parameter, and never part of the text. `undefined` is NULL. Where PostgreSQL can't infer its type, add one:
 *   `${limit}::int`.
 * - `` ${sql`…`} `` is a part of the text, with its own parameters. `sql.text(…)` is a part that only the program determines, such
 *   as the columns of an attribute table.
 * - A statement with a name is prepared once on each connection. A name has one text: parts may not depend on values. A
 *   statement without a name is planned for its values: use it for what runs rarely, or with a choice of conditions.
 * - `sql.all(…)` joins the conditions that are given: it filters a page.
 *
 * `database.run` runs a statement on the pool or in a transaction, `database.read` on a connection that reads share.
 */
interface Sql {
  /** Creates a statement without a name, or a part of another. */
  (parts: readonly string[], ...given: readonly unknown[]): Query
  /** Creates a statement that is prepared under a name. */
  (name: string): (parts: readonly string[], ...given: readonly unknown[]) => Query
  /** Creates a part from a text, or a number, of the program. Never pass a value. */
  text(text: string | number): Query
  /** Returns the condition that all of these hold. Leaves out those that aren't given: `age !== undefined && sql`…``. */
  all(...conditions: readonly (Query | undefined | false)[]): Query
}

/** A statement, prepared under its name if it has one. */
export interface Statement {
  readonly name?: string
  readonly text: string
  readonly values: readonly unknown[]
}

/** A statement, or a part of one. */
export class Query implements Statement {
  /** @param parts the texts around the values, one more than these */
  constructor(
    private readonly parts: readonly string[],
    readonly values: readonly unknown[],
    readonly name = '',
  ) {}

  /** The text, with the numbers of the parameters. */
  get text(): string {
    return this.parts.reduce((text, part, number) => `${text}$${number}${part}`)
  }

  /** Composes a query of a template, whose values may be parts. */
  static of(name: string, texts: readonly string[], given: readonly unknown[]): Query {
    const parts = [texts[0]!]
    const values: unknown[] = []
    const append = (text: string) => (parts[parts.length - 1] += text)
    given.forEach((value, at) => {
      if (value instanceof Query) {
        append(value.parts[0]!)
        parts.push(...value.parts.slice(1))
        values.push(...value.values)
      } else {
        parts.push('')
        values.push(value)
      }
      append(texts[at + 1]!)
    })
    return new Query(parts, values, name)
  }
}

function create(first: string | readonly string[], ...given: readonly unknown[]) {
  if (typeof first !== 'string') return Query.of('', first, given)
  return (texts: readonly string[], ...given: readonly unknown[]) => Query.of(first, texts, given)
}

export const sql: Sql = Object.assign(create as Sql, {
  text: (text: string | number) => new Query([String(text)], []),
  all: (...conditions: readonly (Query | undefined | false)[]) =>
    conditions.reduce<Query>((all, condition) => (condition ? sql`${all} AND ${condition}` : all), sql`true`),
})

/** Returns the first of the rows; undefined without one. */
export const first = <Row>(rows: Promise<Row[]>): Promise<Row | undefined> => rows.then(([row]) => row)
