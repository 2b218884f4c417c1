/** A statement that PostgreSQL prepares once on each connection, under its name. */
export interface Statement {
  readonly name: string
  readonly text: string
}
