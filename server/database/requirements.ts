// What a database must have: a version, an encoding, and the rights of the role. Statements in errors have their real names.
import type { Database, Transaction } from './database.js'
import { ConnectionError, causeOf } from './failures.js'
import { sql } from './sql.js'

/** The oldest supported version of PostgreSQL. */
const oldest = 14

interface DatabaseFacts {
  readonly version: number
  readonly shownVersion: string
  readonly encoding: string
  /** Identifiers, quoted if necessary. */
  readonly database: string
  readonly role: string
  /** The first schema of the search path that the role may use; null without one. */
  readonly schema: string | null
  readonly creates: boolean
  readonly path: string
  /** The first schema that the search path names; null without one. */
  readonly named: string | null
  /** The owner of the tables; null without tables, and if the role may act as their owner. */
  readonly owner: string | null
  /** Whether the role may read and write every table. */
  readonly writes: boolean
}

const where = sql`
  SELECT current_setting('server_version_num')::int / 10000 AS version,
  current_setting('server_version') AS "shownVersion", current_setting('server_encoding') AS encoding,
  quote_ident(current_database()) AS database, quote_ident(current_user) AS role,
  quote_ident(current_schema()) AS schema, current_setting('search_path') AS path,
  coalesce(has_schema_privilege(current_schema(), 'CREATE'), false) AS creates,
  (SELECT trim(each) FROM unnest(string_to_array(current_setting('search_path'), ',')) WITH ORDINALITY AS p (each, n)
    WHERE trim(each) NOT IN ('', '""', '"$user"') ORDER BY n LIMIT 1) AS named,
  (SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class
    WHERE oid = to_regclass(quote_ident(current_schema()) || '.users') AND NOT pg_has_role(relowner, 'USAGE')) AS owner,
  (SELECT coalesce(bool_and(has_table_privilege(oid, each)), false)
    FROM pg_class, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS each
    WHERE relnamespace = to_regnamespace(quote_ident(current_schema())) AND relkind = 'r') AS writes`

/** Throws an Error that says what to do when a database can't have the tables, or when the role may not create them. */
export async function checkRequirements(database: Database, transaction: Transaction): Promise<void> {
  const [place] = await database.run<DatabaseFacts>(where, transaction)
  const { version, shownVersion, encoding, database: name, role, schema, creates, path, named, owner } = place!
  if (version < oldest)
    throw new Error(`The server of DATABASE_URL is PostgreSQL ${shownVersion}: use version ${oldest} or newer.`)
  if (encoding !== 'UTF8')
    throw new Error(
      `The database ${name} of DATABASE_URL has the encoding ${encoding}, which can’t hold all names: make another with \`CREATE DATABASE ${name}_utf8 ENCODING 'UTF8' TEMPLATE template0\`, and name it in DATABASE_URL.`,
    )
  if (schema === null)
    throw new Error(
      `The role of DATABASE_URL may use no schema of its search_path (${path}): create the schema if it is missing, and have its owner run \`GRANT USAGE, CREATE ON SCHEMA ${named ?? 'public'} TO ${role}\` in the database ${name}.`,
    )
  if (!creates && owner !== null) throw new Error(ownerOnly(owner))
  if (!creates)
    throw new Error(
      `The role of DATABASE_URL may not create tables: have the owner of the schema run \`GRANT CREATE ON SCHEMA ${schema} TO ${role}\` in the database ${name}.`,
    )
}

function ownerOnly(owner: string): string {
  return `Only the role that owns the tables may do this: set DATABASE_URL to the URL of ${owner}.`
}

/** Runs `work`; replaces the error of a role without rights on the tables by one that says how to grant them. */
export async function explainingRights<T>(database: Database, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    const { cause } = error as Error
    // A refusal by an RPC has the error of the database as its cause.
    if (error instanceof ConnectionError || ![error, cause].some(each => each && causeOf(each).code === '42501'))
      throw error
    const [place] = await database.run<DatabaseFacts>(where)
    const { database: name, role, schema, owner, writes } = place!
    const mustOwn = writes || [error, cause].some(each => /^must be owner /.test(String(each && causeOf(each).message)))
    if (owner !== null && mustOwn) throw new Error(ownerOnly(owner))
    const to = (what: string) => `ON ALL ${what} IN SCHEMA ${schema ?? 'public'} TO ${role}`
    throw new Error(
      `The role of DATABASE_URL lacks the rights for this: have the owner of the tables run \`GRANT SELECT, INSERT, UPDATE, DELETE ${to('TABLES')}\` and \`GRANT USAGE ${to('SEQUENCES')}\` in the database ${name}.`,
    )
  }
}

/** Replaces the error of a name that another application uses. */
export function explainTaken(error: unknown): unknown {
  // A table, a function, another object.
  if (!['42P07', '42723', '42710'].includes(String(causeOf(error).code))) return error
  return new Error(
    'The schema of DATABASE_URL already has a table or function of another application whose name this service needs: use an empty database, or a schema of its own, which `ALTER ROLE … IN DATABASE … SET search_path` selects.',
  )
}
