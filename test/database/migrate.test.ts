/** Migrations: of an empty database, repeated, by concurrent processes, and beside other versions. */
import { spawnSync } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import test, { type ExecutionContext } from 'ava'
import { type Database, openDatabase } from '../../server/database/database.js'
import { migrate, readMigrations } from '../../server/database/migrate.js'
import { freshDatabase } from '../_helpers/database.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { migrations as names, root } from '../_helpers/versions.js'

async function empty(t: ExecutionContext): Promise<Database> {
  const database = openDatabase(await freshDatabase(t, { from: 'template0' }), 10)
  t.teardown(() => database.close())
  return database
}

/** A folder of migrations, by their names. */
async function folderOf(t: ExecutionContext, files: Record<string, string>): Promise<URL> {
  const folder = await temporaryFolder(t)
  for (const [name, text] of Object.entries(files)) await writeFile(join(folder, name), text)
  return pathToFileURL(`${folder}/`)
}

/** Allows `contract` migrations. */
const permit = async () => {}

const rows = async ({ sequelize }: Database, sql: string) => (await sequelize.query(sql))[0]
const ledger = (database: Database) => rows(database, 'SELECT * FROM migrations ORDER BY name')

/** Three versions: the second one only expands the schema of the first, and the third one contracts it. */
const first = { '0001-first.sql': '-- expand\nCREATE TABLE fruits (name text);' }
const second = { ...first, '0002-second.sql': '-- expand\nALTER TABLE fruits ADD COLUMN color text;' }
const third = { ...second, '0003-third.sql': '-- contract\nALTER TABLE fruits DROP COLUMN name;' }

test('a build refuses two migrations of one number, one without a number, and one whose first line doesn’t say whether the version before still works', async t => {
  const build = async (files: Record<string, string>) => {
    const program = join(root, 'deploy/build/migrations.mjs')
    const folders = [fileURLToPath(await folderOf(t, files)), join(await temporaryFolder(t), 'built')]
    const { status, stderr } = spawnSync(process.execPath, [program, ...folders], { encoding: 'utf8' })
    return status === 0 ? 'built' : /Error: (.*)/.exec(stderr)?.[1]
  }
  t.is(await build({ ...third, '0009-ninth.sql': '-- contract\n' }), 'built')
  t.regex(
    String(await build({ ...second, '0002-other.sql': '-- expand\n' })),
    /^0002-other\.sql and 0002-second\.sql have the same number/,
  )
  t.regex(
    String(await build({ ...second, 'third.sql': '-- expand\n' })),
    /^third\.sql: name a migration NNNN-name\.sql/,
  )
  t.regex(String(await build({ ...second, '0003-third.sql': 'SELECT 1;' })), /^0003-third\.sql: begin it with the line/)
})

test('an empty database gets the newest schema, and migrating again changes nothing', async t => {
  const database = await empty(t)
  t.deepEqual(await migrate(database), names)
  const before = await ledger(database)
  t.deepEqual(await migrate(database), [])
  t.deepEqual(await ledger(database), before)
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

test('a newer version runs its new migrations in order, and keeps the rows', async t => {
  const database = await empty(t)
  await migrate(database, { folder: await folderOf(t, first) })
  await rows(database, `INSERT INTO fruits (name) VALUES ('fig')`)
  const folder = await folderOf(t, third)
  t.deepEqual(await migrate(database, { folder, permit }), ['0002-second.sql', '0003-third.sql'])
  t.deepEqual(await rows(database, 'SELECT * FROM fruits'), [{ color: null }])
})

test('a `contract` runs only on request, and if that is refused nothing does', async t => {
  const database = await empty(t)
  await migrate(database, { folder: await folderOf(t, first) })
  const folder = await folderOf(t, third)
  const asked: string[] = []
  const refuse = async (contract: string) => {
    asked.push(contract)
    throw new Error('An older process runs.')
  }
  await t.throwsAsync(migrate(database, { folder, permit: refuse }), { message: 'An older process runs.' })
  t.deepEqual(asked, ['0003-third.sql'])
  t.is((await ledger(database)).length, 1)

  t.deepEqual(await migrate(database, { folder }), ['0002-second.sql'])
  t.deepEqual(await migrate(database, { folder }), [])
  t.deepEqual(await migrate(database, { folder, permit }), ['0003-third.sql'])
})

test('a migration doesn’t block calls while a long transaction holds its table, and runs once that has ended', async t => {
  const url = await freshDatabase(t, { from: 'template0' })
  const [database, other] = [openDatabase(url, 1), openDatabase(url, 2)]
  t.teardown(() => Promise.all([database.close(), other.close()]).then(() => {}))
  await migrate(database, { folder: await folderOf(t, first) })
  const reader = await other.sequelize.transaction()
  await other.sequelize.query('SELECT * FROM fruits', { transaction: reader })
  // From now on, blocked calls fail after 2 s.
  await other.prepareSessions()
  let attempts = 0
  const begun = Date.now()
  const migrated = migrate(database, { folder: await folderOf(t, second), onLocked: () => attempts++ })
  while (Date.now() < begun + 4_000 || attempts === 0) {
    await rows(other, 'SELECT * FROM fruits')
    await new Promise(resolve => setTimeout(resolve, 50))
  }
  // One every five seconds.
  t.true(attempts <= 1 + (Date.now() - begun) / 5_000, String(attempts))
  await reader.rollback()
  t.deepEqual(await migrated, ['0002-second.sql'])
})

test('an empty database gets all migrations at once', async t => {
  const database = await empty(t)
  t.deepEqual(await migrate(database, { folder: await folderOf(t, third) }), Object.keys(third))
})

test('an `expand` doesn’t run before a `contract` of an earlier version, and the error names both', async t => {
  const database = await empty(t)
  await migrate(database, { folder: await folderOf(t, first) })
  const skipped = { ...third, '0004-fourth.sql': '-- expand\nALTER TABLE fruits ADD COLUMN size text;' }
  const folder = await folderOf(t, skipped)
  await t.throwsAsync(migrate(database, { folder }), {
    message: /^0004-fourth\.sql needs 0003-third\.sql, .*`auth-admin migrate up --contract`/,
  })
  t.is((await ledger(database)).length, 1)
  t.is((await migrate(database, { folder, permit })).length, 3)
})

test('each migration commits by itself: calls wait for no table while a later one waits for its own', async t => {
  const url = await freshDatabase(t, { from: 'template0' })
  const [database, other] = [openDatabase(url, 1), openDatabase(url, 2)]
  t.teardown(() => Promise.all([database.close(), other.close()]).then(() => {}))
  const both = { ...first, '0001-first.sql': `${first['0001-first.sql']}\nCREATE TABLE nuts (name text);` }
  await migrate(database, { folder: await folderOf(t, both) })
  const reader = await other.sequelize.transaction()
  await other.sequelize.query('SELECT * FROM nuts', { transaction: reader })
  const folder = await folderOf(t, {
    ...both,
    '0002-second.sql': second['0002-second.sql'],
    '0003-third.sql': '-- expand\nALTER TABLE nuts ADD COLUMN color text;',
  })
  let seen: Promise<unknown> | undefined
  const onLocked = () => {
    seen ??= rows(other, 'SELECT color FROM fruits').finally(() => reader.rollback())
  }
  t.deepEqual(await migrate(database, { folder, onLocked }), ['0002-second.sql', '0003-third.sql'])
  t.deepEqual(await seen, [])
})

test('what a large registry makes before its upgrade, a column and its index, is kept by the migrations that make them', async t => {
  const database = await empty(t)
  await migrate(database, { folder: await folderOf(t, first) })
  await rows(database, 'ALTER TABLE fruits ADD COLUMN IF NOT EXISTS color text')
  await rows(database, 'CREATE INDEX CONCURRENTLY IF NOT EXISTS fruits_color ON fruits (color)')
  const files = {
    '0002-color.sql': '-- expand\nALTER TABLE fruits ADD COLUMN IF NOT EXISTS color text;',
    '0003-color-index.sql': '-- expand\nCREATE INDEX IF NOT EXISTS fruits_color ON fruits (color);',
  }
  t.deepEqual(await migrate(database, { folder: await folderOf(t, { ...first, ...files }) }), Object.keys(files))
})

test('a failed migration is rolled back alone, and runs once it is mended', async t => {
  const database = await empty(t)
  await migrate(database, { folder: await folderOf(t, first) })
  const broken = await folderOf(t, {
    ...second,
    '0003-third.sql': '-- expand\nALTER TABLE fruits ADD COLUMN size text; ALTER TABLE nuts ADD COLUMN color text;',
  })
  await t.throwsAsync(migrate(database, { folder: broken }), { message: /"nuts" does not exist/ })
  t.is((await ledger(database)).length, 2)
  await rows(database, `INSERT INTO fruits (name) VALUES ('fig')`)
  t.deepEqual(await rows(database, 'SELECT * FROM fruits'), [{ name: 'fig', color: null }])
  const mended = { ...second, '0003-third.sql': '-- expand\nALTER TABLE fruits ADD COLUMN size text;' }
  t.deepEqual(await migrate(database, { folder: await folderOf(t, mended) }), ['0003-third.sql'])
})

test('a version still works with the schema of a newer one that only expanded it', async t => {
  const database = await empty(t)
  await migrate(database, { folder: await folderOf(t, second) })
  const folder = await folderOf(t, first)
  t.deepEqual(await migrate(database, { folder }), [])
  const { done, pending, newer, different } = await readMigrations(database, undefined, folder)
  t.deepEqual([done.length, pending, different], [1, [], []])
  t.like(newer, [{ name: '0002-second.sql', kind: 'expand' }])
})

test('a version refuses the schema of a newer one that contracted it, and names the migration', async t => {
  for (const text of ['-- contract\nSELECT 1;', 'SELECT 1;']) {
    const database = await empty(t)
    await migrate(database, { folder: await folderOf(t, { ...second, '0003-third.sql': text }) })
    await t.throwsAsync(migrate(database, { folder: await folderOf(t, first) }), {
      message: /newer version .*\(0003-third\.sql\)/,
    })
    await t.throwsAsync(migrate(database, { folder: await folderOf(t, second) }), {
      message: /newer version .*\(0003-third\.sql\)/,
    })
  }
})

test('a schema made by different migration files is refused and left unchanged, even if they differ only by a comment', async t => {
  const comment = { ...second, '0002-second.sql': `${second['0002-second.sql']}\n-- Colors.` }
  const renamed = { ...first, '0002-other.sql': second['0002-second.sql'] }
  for (const other of [comment, renamed]) {
    const database = await empty(t)
    await migrate(database, { folder: await folderOf(t, other) })
    const before = await ledger(database)
    await t.throwsAsync(migrate(database, { folder: await folderOf(t, third) }), {
      message: /another baseline .*\(0002-\w+\.sql\): run /,
    })
    t.deepEqual(await ledger(database), before)
  }
})
