// Reads the database of the older implementation, in one snapshot of a read-only transaction.
import { createHash } from 'node:crypto'
import { openDatabase, type Transaction } from '../database/connection.js'
import { type Meaning, meaningOf } from '../database/failures.js'
import { type Query, sql } from '../database/sql.js'

type Text = string | null

/** An organization there; all but the id is text. */
export type SourceOrganization = { readonly id: number } & Readonly<
  Record<
    | ('active' | 'name' | 'creation_date' | 'inep_code' | 'phone' | 'type')
    | ('website' | 'login' | 'address' | 'responsible' | 'activationkey'),
    Text
  >
>

/** A security question there. */
export interface SourceQuestion {
  readonly id: number
  readonly question: Text
  readonly active: number | null
}

/** A membership there. */
export interface Membership {
  readonly organization: number | null
  /** Whether that organization exists. */
  readonly exists: boolean
  /** The organization whose key, or whose provider's key, was used. */
  readonly keyOf: number | null
  /** The user whose provider key was used. */
  readonly provider: number | null
}

/** Fields of a user there. */
type UserText =
  | ('username' | 'nickname' | 'password' | 'dateofborn' | 'gender' | 'state' | 'city' | 'institutiontype')
  | ('institution' | 'securityquestion' | 'securityanswer' | 'avatar')

/** A user there, with the rows of other tables that belong to it, each in the order of ids. */
export interface SourceUser extends Readonly<Record<UserText, Text>> {
  readonly id: number
  readonly termsofusage: boolean | null
  readonly active: number | null
  /** Different ones. */
  readonly roles: readonly number[] | null
  readonly memberships: readonly Membership[] | null
  readonly keys: readonly { readonly id: number; readonly key: string }[] | null
  readonly answers: readonly { readonly question: number; readonly answer: Text }[] | null
}

/** A snapshot. */
export type Source = Awaited<ReturnType<typeof openSource>>

/** Users of a batch. */
const batch = 1_000

const last = (table: string) =>
  sql.text(`(SELECT greatest(coalesce(max(id), 0), coalesce(CASE
    WHEN has_sequence_privilege(pg_get_serial_sequence('auth.${table}', 'id'), 'USAGE, SELECT')
    THEN pg_sequence_last_value(pg_get_serial_sequence('auth.${table}', 'id')) END, 0))::int FROM auth.${table})`)

// Grouped before they are joined: those tables have no index by user. `char` columns come with their blanks.
const users = sql`SELECT u.id, u.username, u.nickname, u.password, u.dateofborn::text AS dateofborn, u.gender::text AS gender,
    u.state::text AS state, u.city, u.institutiontype::text AS institutiontype, u.institution, u.securityquestion,
    u.securityanswer, u.termsofusage, u.avatar, u.active, r.roles, m.memberships, k.keys, a.answers
  FROM auth.users u
  LEFT JOIN (
    SELECT users_id, array_agg(DISTINCT roles ORDER BY roles) AS roles FROM auth.users_roles GROUP BY users_id
  ) r ON r.users_id = u.id
  LEFT JOIN (
    SELECT users_id, jsonb_agg(jsonb_build_object('id', id, 'key', activationkey) ORDER BY id) AS keys
    FROM auth.users_provider_activationkey GROUP BY users_id
  ) k ON k.users_id = u.id
  LEFT JOIN (
    SELECT users_id, jsonb_agg(jsonb_build_object('question', forgotpassword_questions_id, 'answer', answer) ORDER BY id)
      AS answers
    FROM auth.forgotpassword_questions_users_answers GROUP BY users_id
  ) a ON a.users_id = u.id
  LEFT JOIN (
    SELECT given.users_id, jsonb_agg(jsonb_build_object('organization', given.educemaden_organizations_id,
        'exists', o.id IS NOT NULL, 'keyOf', coalesce(owner.id, provided.organization), 'provider', p.users_id)
        ORDER BY given.id) AS memberships
    FROM auth.users_educemaden_organizations given
    LEFT JOIN auth.educemaden_organizations o ON o.id = given.educemaden_organizations_id
    LEFT JOIN auth.educemaden_organizations owner ON owner.activationkey = given.activationkey
    LEFT JOIN auth.users_provider_activationkey p ON p.activationkey = given.activationkey
    LEFT JOIN (
      SELECT users_id, min(educemaden_organizations_id) AS organization
      FROM auth.users_educemaden_organizations JOIN auth.educemaden_organizations e ON e.id = educemaden_organizations_id
      GROUP BY users_id
    ) provided ON provided.users_id = p.users_id
    GROUP BY given.users_id
  ) m ON m.users_id = u.id`

/** Opens a snapshot of the database at a URL for `work`. Throws an Error that says what is wrong with the database. */
export async function withSource<T>(url: string, work: (source: Source) => Promise<T>): Promise<T> {
  const database = openDatabase(url, 1)
  const reader =
    (t?: Transaction) =>
    <Row>(query: Query): Promise<Row[]> =>
      database.run<Row>(query, t).catch(refuse)
  try {
    await reader()(sql`SELECT 1`)
    return await database.transact(async t => work(await openSource(reader(t))), { snapshot: true, unlimited: true })
  } finally {
    await database.close()
  }
}

/** An error of the other database, whose failures must not be taken for those of ours. */
class SourceError extends Error {
  override readonly name = 'Error'
}

/** What is wrong with the other database. */
const problems: { readonly [M in Meaning]?: string } = {
  'not installed': 'it has no schema `auth` with the tables of the older implementation',
  outdated: 'its tables aren’t those of the older implementation',
  'no rights': 'its user may not read the tables of schema `auth`',
}

function refuse(error: unknown): never {
  const meaning = meaningOf(error)
  const problem = (meaning && problems[meaning]) ?? (error as Error).message
  throw new SourceError(`The other database can’t be read: ${problem}.`, { cause: error })
}

async function openSource(all: <Row>(query: Query) => Promise<Row[]>) {
  await all(sql`SET TRANSACTION READ ONLY`)
  // A cursor is planned for its first rows otherwise.
  await all(sql`SET LOCAL cursor_tuple_fraction = 1`)
  await all(sql`SET LOCAL jit = off`)
  const [database] = await all<{ oid: string; name: string }>(
    sql`SELECT oid::text AS oid, datname AS name FROM pg_database WHERE datname = current_database()`,
  )
  const [lastIds] = await all<
    Record<'users' | 'organizations' | 'questions' | 'provider_keys', number>
  >(sql`SELECT ${last('users')} AS users,
    ${last('forgotpassword_questions')} AS questions, ${last('users_provider_activationkey')} AS provider_keys,
    (SELECT greatest(coalesce(max(id), 0), 0) FROM auth.educemaden_organizations) AS organizations`)
  const [counted] = await all<{ count: number }>(sql`SELECT count(*)::int AS count FROM auth.users`)
  return {
    /** Digest of what distinguishes this database from others, in hexadecimal. */
    digest: createHash('sha256').update(`${database!.oid} ${database!.name}`).digest('hex'),
    /** The greatest ids there, also of rows that are gone. */
    lastIds: lastIds!,
    organizations: await all<SourceOrganization>(sql`SELECT id, active, name, creation_date, inep_code, phone, type,
      website, login, address, responsible, activationkey::text AS activationkey
      FROM auth.educemaden_organizations ORDER BY id`),
    questions: await all<SourceQuestion>(
      sql`SELECT id, question, active FROM auth.forgotpassword_questions ORDER BY id`,
    ),
    /** Number of users. */
    userCount: counted!.count,

    /** Reads the names of users. */
    names: (ids: readonly number[]) =>
      all<Pick<SourceUser, 'id' | 'username' | 'nickname'>>(
        sql`SELECT id, username, nickname FROM auth.users WHERE id = ANY(${ids}::int[]) ORDER BY id`,
      ),

    /** Reads users with ids above `afterId`, in batches by id. */
    async *users(afterId: number): AsyncGenerator<readonly SourceUser[]> {
      const after = sql.text(String(Math.trunc(afterId)))
      await all(sql`DECLARE moving NO SCROLL CURSOR FOR ${users} WHERE u.id > ${after} ORDER BY u.id`)
      try {
        for (;;) {
          const rows = await all<SourceUser>(sql`FETCH ${sql.text(String(batch))} FROM moving`)
          if (rows.length > 0) yield rows
          if (rows.length < batch) return
        }
      } finally {
        await all(sql`CLOSE moving`).catch(() => {})
      }
    },
  }
}
