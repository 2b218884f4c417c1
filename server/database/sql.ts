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

/** The text of a query: pieces around the values, one more than these, joined when first needed. */
interface Form {
  readonly pieces: readonly string[]
  /** The queries that are parts of it. */
  readonly parts: readonly Query[]
  text?: string
}

/** Forms of statements with names by their templates: joining the text of a look-up takes 7 µs. */
const forms = new WeakMap<readonly string[], Form>()

/** A statement, or a part of one. */
export class Query implements Statement {
  constructor(
    private readonly form: Form,
    readonly values: readonly unknown[],
    readonly name = '',
  ) {}

  /** The text, with the numbers of the parameters. */
  get text(): string {
    const { form } = this
    form.text ??= form.pieces.reduce((text, piece, number) => `${text}$${number}${piece}`)
    return form.text
  }

  /** Composes a query of a template, whose values may be parts. */
  static of(name: string, texts: readonly string[], given: readonly unknown[]): Query {
    const known = forms.get(texts)
    const parts: Query[] = []
    const values: unknown[] = []
    let isKnown = known !== undefined
    for (const value of given) {
      if (value instanceof Query) {
        isKnown &&= known!.parts[parts.length] === value
        parts.push(value)
        values.push(...value.values)
      } else values.push(value)
    }
    if (isKnown && known!.parts.length === parts.length) return new Query(known!, values, name)
    const pieces = [texts[0]!]
    const append = (text: string) => (pieces[pieces.length - 1] += text)
    given.forEach((value, at) => {
      const inner = value instanceof Query ? value.form.pieces : ['', '']
      append(inner[0]!)
      pieces.push(...inner.slice(1))
      append(texts[at + 1]!)
    })
    const form = { pieces, parts }
    if (name) forms.set(texts, form)
    return new Query(form, values, name)
  }
}

function create(first: string | readonly string[], ...given: readonly unknown[]) {
  if (typeof first !== 'string') return Query.of('', first, given)
  return (texts: readonly string[], ...given: readonly unknown[]) => Query.of(first, texts, given)
}

export const sql: Sql = Object.assign(create as Sql, {
  text: (text: string | number) => new Query({ pieces: [String(text)], parts: [] }, []),
  all: (...conditions: readonly (Query | undefined | false)[]) =>
    conditions.reduce<Query>((all, condition) => (condition ? sql`${all} AND ${condition}` : all), sql`true`),
})

/** Returns the first of the rows; undefined without one. */
export const first = <Row>(rows: Promise<Row[]>): Promise<Row | undefined> => rows.then(([row]) => row)
