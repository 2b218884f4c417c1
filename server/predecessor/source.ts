// Reads the database of the older implementation, in one snapshot of a read-only transaction.
import { createHash } from 'node:crypto'
import { openDatabase } from '../database/database.js'
import { type Meaning, meaningOf } from '../database/failures.js'
import { type Query, sql } from '../database/sql.js'

type Texts<Field extends string> = Readonly<Record<Field, string | null>>

/** An organization there; all but the id is text. */
export type SourceOrganization = { readonly id: number } & Texts<
  | ('active' | 'name' | 'creation_date' | 'inep_code' | 'phone' | 'type')
  | ('website' | 'login' | 'address' | 'responsible' | 'activationkey')
>

/** A security question there. */
export type SourceQuestion = { readonly id: number; readonly active: number | null } & Texts<'question'>

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

/** A user there, with the rows of other tables that belong to it, each in the order of ids. */
export interface SourceUser
  extends Texts<
    | ('username' | 'nickname' | 'password' | 'dateofborn' | 'gender' | 'state' | 'city' | 'institutiontype')
    | ('institution' | 'securityquestion' | 'securityanswer' | 'avatar')
  > {
  readonly id: number
  readonly termsofusage: boolean | null
  readonly active: number | null
  /** Different ones. */
  readonly roles: readonly number[] | null
  readonly memberships: readonly Membership[] | null
  readonly keys: readonly { readonly id: number; readonly key: string }[] | null
  readonly answers: readonly { readonly question: number; readonly answer: string | null }[] | null
}

/** A snapshot. */
export type Source = Awaited<ReturnType<typeof openSource>>

/** Users of a batch. */
const batch = 1_000

/** The greatest id of a table, also of rows that are gone, if the role may read the sequence. */
const lastOf = (table: string) =>
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

/** What is wrong with the other database. */
const problems: { readonly [M in Meaning]?: string } = {
  'not installed': 'it has no schema `auth` with the tables of the older implementation',
  outdated: 'its tables aren’t those of the older implementation',
  'no rights': 'its user may not read the tables of schema `auth`',
}

/** An error of the other database, whose failures must not be taken for those of ours. */
class SourceError extends Error {
  override readonly name = 'Error'
  constructor(cause: unknown) {
    const meaning = meaningOf(cause)
    super(`The other database can’t be read: ${(meaning && problems[meaning]) ?? (cause as Error).message}.`, { cause })
  }
}

/** Opens a snapshot of the database at a URL for `work`. Throws an Error that says what is wrong with the database. */
export async function withSource<T>(url: string, work: (source: Source) => Promise<T>): Promise<T> {
  const failed = (error: unknown): never => {
    throw new SourceError(error)
  }
  // It throws for an invalid URL.
  const open = async () => openDatabase(url, 1)
  const database = await open().catch(failed)
  try {
    await database.run(sql`SELECT 1`).catch(failed)
    const read = async (t: Parameters<Parameters<typeof database.transact>[0]>[0]) =>
      work(await openSource(query => database.run<never>(query, t).catch(failed)))
    return await database.transact(read, { snapshot: true, unlimited: true })
  } finally {
    await database.close()
  }
}

async function openSource(all: <Row>(query: Query) => Promise<Row[]>) {
  await all(sql`SET TRANSACTION READ ONLY`)
  // A cursor is planned for its first rows otherwise.
  await all(sql`SET LOCAL cursor_tuple_fraction = 1`)
  await all(sql`SET LOCAL jit = off`)
  const here = sql`SELECT oid || ' ' || datname AS name, (SELECT count(*) FROM auth.users)::int AS "userCount"
    FROM pg_database WHERE datname = current_database()`
  const [found] = await all<{ name: string; userCount: number }>(here)
  const last = sql`SELECT ${lastOf('users')} AS users, ${lastOf('forgotpassword_questions')} AS questions,
    ${lastOf('users_provider_activationkey')} AS provider_keys,
    (SELECT greatest(coalesce(max(id), 0), 0) FROM auth.educemaden_organizations) AS organizations`
  const [lastIds] = await all<Record<'users' | 'organizations' | 'questions' | 'provider_keys', number>>(last)
  const organizations = sql`SELECT id, active, name, creation_date, inep_code, phone, type, website, login, address, responsible,
    activationkey::text AS activationkey FROM auth.educemaden_organizations ORDER BY id`
  const questions = sql`SELECT id, question, active FROM auth.forgotpassword_questions ORDER BY id`
  return {
    /** Digest of what distinguishes this database from others, in hexadecimal. */
    digest: createHash('sha256').update(found!.name).digest('hex'),
    userCount: found!.userCount,
    /** The greatest ids there, also of rows that are gone. */
    lastIds: lastIds!,
    organizations: await all<SourceOrganization>(organizations),
    questions: await all<SourceQuestion>(questions),

    /** Reads the names of users with these ids, or this username. */
    names: (ids: readonly number[], username?: string) =>
      all<Pick<SourceUser, 'id' | 'username' | 'nickname'>>(
        sql`SELECT id, username, nickname FROM auth.users WHERE id = ANY(${ids}::int[]) OR username = ${username} ORDER BY id`,
      ),

    /** Reads users with ids above `afterId`, in batches by id. */
    async *users(afterId: number): AsyncGenerator<readonly SourceUser[]> {
      const after = sql.text(Math.trunc(afterId))
      await all(sql`DECLARE moving NO SCROLL CURSOR FOR ${users} WHERE u.id > ${after} ORDER BY u.id`)
      try {
        for (;;) {
          const rows = await all<SourceUser>(sql`FETCH ${sql.text(batch)} FROM moving`)
          if (rows.length > 0) yield rows
          if (rows.length < batch) return
        }
      } finally {
        await all(sql`CLOSE moving`).catch(() => {})
      }
    },
  }
}
