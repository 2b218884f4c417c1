/** Migrations: from nothing, again, by several at once, and from every earlier version. */
import { readdir, readFile } from 'node:fs/promises'
import test, { type ExecutionContext } from 'ava'
import { type Database, openDatabase } from '../../server/database/connection.js'
import { migrate, readMigrations } from '../../server/database/migrate.js'
import { freshDatabase } from '../_helpers/database.js'

const folder = new URL('../../../server/database/migrations', import.meta.url)
const names = (await readdir(folder)).filter(name => name.endsWith('.sql')).sort()
const last = Number(names.at(-1)!.slice(0, 4))

async function empty(t: ExecutionContext): Promise<Database> {
  const database = openDatabase(await freshDatabase(t, { from: 'template0' }), 10)
  t.teardown(() => database.close())
  return database
}

/** Every column, constraint, index and function of the schema, as PostgreSQL describes them. */
async function schema({ sequelize }: Database): Promise<unknown> {
  const [rows] = await sequelize.query(`
    SELECT 'column' AS kind, table_name || '.' || column_name AS name,
      concat_ws(' ', data_type, is_nullable, column_default, identity_generation) AS text
    FROM information_schema.columns WHERE table_schema = 'public'
    UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(oid) FROM pg_constraint
      WHERE connamespace = 'public'::regnamespace
    UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT 'function', proname, pg_get_functiondef(oid) FROM pg_proc
      WHERE pronamespace = 'public'::regnamespace
    ORDER BY 1, 2`)
  return rows
}

test('migrations are numbered from 1 without a gap', t => {
  t.deepEqual(
    names.map(name => Number(name.slice(0, 4))),
    names.map((_, index) => index + 1),
  )
  for (const name of names) t.regex(name, /^\d{4}-[a-z-]+\.sql$/)
})

test('every migration says at its head whether the version before goes on', async t => {
  for (const name of names) {
    const text = await readFile(new URL(`${folder}/${name}`), 'utf8')
    t.regex(text, /^-- (expand|contract)\n/, name)
    // What a version that knows nothing of it can't go on with.
    const breaks =
      /\b(DROP (?!NOT NULL|DEFAULT|CONSTRAINT|INDEX)|RENAME )|ADD COLUMN (?![^;,]*\bDEFAULT\b)[^;,]*NOT NULL/i
    if (breaks.test(text.replace(/--.*/g, ''))) t.regex(text, /^-- contract\n/, name)
  }
})

test('an empty database becomes the newest version, and doing it again changes nothing', async t => {
  const database = await empty(t)
  t.deepEqual(await migrate(database), names)
  const first = await schema(database)
  t.deepEqual(await migrate(database), [])
  t.deepEqual(await schema(database), first)
})

test('of 8 processes that start at once one migrates, and none fails', async t => {
  const url = await freshDatabase(t, { from: 'template0' })
  const databases = Array.from({ length: 8 }, () => openDatabase(url, 1))
  t.teardown(async () => {
    await Promise.all(databases.map(database => database.close()))
  })
  const done = await Promise.all(databases.map(database => migrate(database)))
  t.deepEqual(
    done.filter(list => list.length > 0),
    [names],
  )
})

for (const version of names.slice(0, -1).map(name => Number(name.slice(0, 4)))) {
  test(`version ${version} with rows in every table becomes the newest, which is the same as from nothing`, async t => {
    const [old, fresh] = [await empty(t), await empty(t)]
    const isOld = (name: string) => Number(name.slice(0, 4)) <= version
    t.deepEqual(await migrate(old, version), names.filter(isOld))
    await fill(old)
    t.deepEqual(
      await migrate(old),
      names.filter(name => !isOld(name)),
    )
    await migrate(fresh)
    t.deepEqual(await schema(old), await schema(fresh))
    const [rows] = await old.sequelize.query('SELECT username FROM users')
    t.deepEqual(rows, [{ username: 'Ana' }])
  })
}

/** Rows that each version could hold. */
async function fill({ sequelize }: Database) {
  await sequelize.query(`
    INSERT INTO organizations (name, name_key, activation_key_digest, activation_key_sealed) VALUES ('Escola', 'escola', '', '');
    INSERT INTO users (username, username_key, nickname, nickname_key, password_hash, state, city, terms_of_usage, role,
      organization_id) VALUES ('Ana', 'ana', 'Ana', 'ana', 'x', 'SP', 'Campinas', true, 'ROLE_CLIENT', 1);
    INSERT INTO provider_keys (user_id, key_digest, key_sealed) VALUES (1, '', '');
    INSERT INTO questions (question, question_key) VALUES ('Cor?', 'cor?');
    INSERT INTO answers (user_id, question_id, answer_hash) VALUES (1, 1, 'x')`)
}

test('a migration that fails leaves the version before it whole', async t => {
  const database = await empty(t)
  await migrate(database, 1)
  const before = await schema(database)
  // Stands in the way of a later migration.
  await database.sequelize.query('CREATE TABLE letters ()')
  await t.throwsAsync(migrate(database))
  await database.sequelize.query('DROP TABLE letters')
  t.deepEqual(await schema(database), before)
  t.deepEqual(await migrate(database), names.slice(1))
})

test('a ledger from before migrations had kinds learns them, and rights to read it are all that a look needs', async t => {
  const database = await empty(t)
  await migrate(database, last - 1)
  await database.sequelize.query('ALTER TABLE migrations DROP COLUMN kind')
  t.is((await readMigrations(database)).pending.length, 1)
  await migrate(database)
  const [rows] = await database.sequelize.query('SELECT name, kind FROM migrations ORDER BY name')
  const { done } = await readMigrations(database)
  t.deepEqual(
    rows,
    done.map(({ name, kind }) => ({ name, kind })),
  )
  t.deepEqual(new Set(done.map(({ kind }) => kind)), new Set(['expand', 'contract'] as const))
})

test('a database of a newer version is left alone, unless that only expanded it', async t => {
  const database = await empty(t)
  await migrate(database)
  await database.sequelize.query("INSERT INTO migrations (name) VALUES ('9999-from-the-future.sql')")
  await t.throwsAsync(migrate(database), { message: /newer version .*\(9999-from-the-future\.sql\)/ })
  await database.sequelize.query("UPDATE migrations SET kind = 'expand' WHERE name LIKE '9999%'")
  t.deepEqual(await migrate(database), [])
})
