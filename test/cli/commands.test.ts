/** Every command of `auth-admin` as the program that users start; and each change with its event, or not at all. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir, userInfo } from 'node:os'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { createProgram } from '../../cli/program.js'
import { openDatabase } from '../../server/database/connection.js'
import { createSubjects } from '../../server/models/attempt.js'
import { createStoredKeys } from '../../server/models/datakey.js'
import { installedRegistry, leaves, runCli, spawnCli } from '../_helpers/cli.js'

interface Run {
  readonly args: readonly string[]
  /** The event that it leaves when it changes something. */
  readonly action?: string
  /** Whether it finds nothing to change the second time. */
  readonly once?: true
}

const newPassword = 'uma girafa bem alta 7'

/** Every command but `audit tail`, `keys retire` and `master-key rotate`, in an order in which each change finds something to do. */
const commands: Record<string, readonly Run[]> = {
  install: [{ args: [] }],
  migrate: [{ args: [] }],
  issuer: [
    { args: ['show'] },
    { args: ['set', '--issuer', 'https://b.example', '--audience', 'b'], action: 'registry.set-issuer', once: true },
  ],
  organizations: [
    { args: ['add', '--name', 'Escola Azul'], action: 'organization.add' },
    { args: ['edit', 'Escola Azul', '--phone', '7'], action: 'organization.edit', once: true },
    { args: ['rotate-key', 'Escola Azul'], action: 'organization.rotate-key' },
    { args: ['deactivate', 'Escola Azul'], action: 'organization.deactivate', once: true },
    { args: ['activate', 'Escola Azul'], action: 'organization.activate', once: true },
    { args: ['list'] },
    { args: ['show', 'Escola Azul'] },
  ],
  questions: [
    { args: ['add', '--question', 'Qual é a cor do mar?'], action: 'question.add' },
    { args: ['edit', '1', '--question', 'Qual era?'], action: 'question.edit', once: true },
    { args: ['retire', '1'], action: 'question.retire', once: true },
    { args: ['restore', '1'], action: 'question.restore', once: true },
    { args: ['list'] },
  ],
  users: [
    { args: ['why-locked', 'admin'] },
    { args: ['unlock', 'admin'], action: 'user.unlock', once: true },
    { args: ['activate', 'admin'], action: 'user.activate', once: true },
    { args: ['suspend', 'admin'], action: 'user.suspend', once: true },
    { args: ['resume', 'admin'], action: 'user.resume', once: true },
    { args: ['set-email', 'admin', 'ana@example.org'], action: 'user.set-email', once: true },
    { args: ['set-password', 'admin', '--password-file', '-'], action: 'user.set-password' },
    { args: ['revoke-tokens', 'admin'], action: 'user.revoke-tokens' },
    { args: ['list'] },
    { args: ['show', 'admin'] },
  ],
  keys: [{ args: ['rotate'], action: 'signing-key.rotate' }, { args: ['list'] }],
  audit: [{ args: ['list'] }, { args: ['verify'] }],
}

/** An installed registry whose administrator waits to be activated and unlocked. */
async function installed(t: ExecutionContext) {
  const env = await installedRegistry(t)
  const client = new pg.Client({ connectionString: env.DATABASE_URL })
  await client.connect()
  t.teardown(() => client.end())
  const ask = async (sql: string, values?: unknown[]) => (await client.query(sql, values)).rows
  const database = openDatabase(env.DATABASE_URL, 1)
  const masterKey = createStoredKeys(database, Buffer.from(env.AUTH_MASTER_KEY, 'base64'))
  await masterKey.load()
  await database.close()
  const subject = createSubjects(masterKey).account('admin')
  await ask('UPDATE users SET active = false')
  await ask(`INSERT INTO attempts (subject, count, window_ends) VALUES ($1, 10, now() + interval '1 hour')`, [subject])
  return { env, ask }
}

test('every command is run below', t => {
  const run = Object.entries(commands).flatMap(([noun, runs]) => runs.map(({ args }) => [noun, ...args.slice(0, 1)]))
  const all = leaves(createProgram()).map(({ path }) => path)
  t.deepEqual(
    [...run.map(words => words.join(' ')), 'audit tail', 'keys retire', 'master-key rotate'].sort(),
    all.sort(),
  )
})

for (const [noun, runs] of Object.entries(commands)) {
  test(`${noun} prints one JSON document; each change leaves one event, and none when nothing is left to do`, async t => {
    const { env, ask } = await installed(t)
    const newest = async () => (await ask('SELECT max(id)::int AS id FROM audit_events'))[0]!.id as number
    for (const { args, action, once } of runs) {
      const before = await newest()
      const { code, stdout, stderr } = await spawnCli(env, [noun, ...args, '--json'], newPassword)
      t.deepEqual([code, stderr], [0, ''], args.join(' '))
      t.is(typeof JSON.parse(stdout), 'object')
      const left = await ask('SELECT action, outcome, actor FROM audit_events WHERE id > $1', [before])
      const expected = action === undefined ? [] : [{ action, outcome: 'ok', actor: `cli:${userInfo().username}` }]
      t.deepEqual(left, expected, args.join(' '))
      if (!once) continue
      t.is((await runCli(env, [noun, ...args])).code, 0)
      t.is(await newest(), before + 1, args.join(' '))
    }
  })
}

test('a change whose event can’t be written doesn’t happen', async t => {
  const { env, ask } = await installed(t)
  const folder = await mkdtemp(join(tmpdir(), 'auth-test-'))
  t.teardown(() => rm(folder, { recursive: true, force: true }))
  const file = join(folder, 'password')
  await writeFile(file, newPassword)
  const tables = await ask("SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
  const contents = tables.map(({ name }) => `SELECT '${name}' AS name, t::text FROM ${name} t`).join(' UNION ALL ')
  const rows = () => ask(`${contents} ORDER BY 1, 2`)
  const changes = Object.entries(commands).flatMap(([noun, runs]) =>
    runs.filter(({ action }) => action).map(({ args }) => [noun, ...args.map(word => (word === '-' ? file : word))]),
  )
  for (const command of changes) {
    await ask('ALTER TABLE audit_staged ADD CONSTRAINT closed CHECK (seq < 0) NOT VALID')
    const before = await rows()
    const { code, stdout } = await runCli(env, command)
    t.deepEqual([code, stdout], [1, ''], command.join(' '))
    t.deepEqual(await rows(), before, command.join(' '))
    await ask('ALTER TABLE audit_staged DROP CONSTRAINT closed')
    // Now it happens, and the next one has something to do.
    t.is((await runCli(env, command)).code, 0, command.join(' '))
    t.notDeepEqual(await rows(), before, command.join(' '))
  }
})
