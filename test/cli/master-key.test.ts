/** `auth-admin master-key`: the registry gets a new master key. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import pg from 'pg'
import { installedRegistry, keys, openTerminal, runCli } from '../_helpers/cli.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

const next = Buffer.alloc(32, 9).toString('base64')

test('rotate wraps the data keys with the new master key, voids the old one, and is recorded in the audit log', async t => {
  const env = await installedRegistry(t)
  const folder = await temporaryFolder(t)
  const file = join(folder, 'key')
  await writeFile(file, `${next}\n`)
  const { code, stdout, stderr } = await runCli(env, ['master-key', 'rotate', '--new-key-file', file, '--json'])
  const { pathname, host } = new URL(env.DATABASE_URL)
  const database = `the database ${pathname.slice(1)} at ${host}`
  t.deepEqual([code, stderr, JSON.parse(stdout)], [0, '', { database, rotated: true }])
  const before = await runCli(env, ['keys', 'list'])
  t.deepEqual(
    [before.code, before.stderr],
    [1, 'error: AUTH_MASTER_KEY is not the key that this database was set up with.\n'],
  )
  const after = { ...env, AUTH_MASTER_KEY: next }
  t.is((await runCli(after, ['keys', 'list'])).code, 0)
  const { events } = JSON.parse((await runCli(after, ['audit', 'list', '--json', '--action', 'master-key.*'])).stdout)
  t.is(events.length, 1)
  t.is((await runCli(after, ['audit', 'verify'])).code, 0)
  // And back, from standard input.
  const args = ['master-key', 'rotate', '--new-key-file', '-', '--json']
  t.like(JSON.parse((await runCli(after, args, env.AUTH_MASTER_KEY)).stdout), { rotated: true })
  t.is((await runCli(env, ['keys', 'list'])).code, 0)
})

test('rotate changes nothing if the new key is invalid or missing, or its event can’t be written', async t => {
  const env = await installedRegistry(t)
  const client = new pg.Client({ connectionString: env.DATABASE_URL })
  await client.connect()
  t.teardown(() => client.end())
  const wrapped = async () => (await client.query('SELECT name, wrapped FROM data_keys ORDER BY name')).rows
  const before = await wrapped()
  const short = await runCli(env, ['master-key', 'rotate', '--new-key-file', '-'], 'secret')
  t.is(short.code, 1)
  t.regex(short.stderr, /^error: The new master key can’t be used: expected at least 32 bytes[^\n]*\n$/)
  t.notRegex(short.stderr, /secret/)
  t.is((await runCli(env, ['master-key', 'rotate'])).code, 2)
  t.regex((await runCli(env, ['master-key', 'rotate', '--new-key-file', '/none'])).stderr, /can’t be read \(ENOENT\)/)
  await client.query('ALTER TABLE audit_staged ADD CONSTRAINT closed CHECK (seq < 0) NOT VALID')
  t.is((await runCli(env, ['master-key', 'rotate', '--new-key-file', '-'], next)).code, 1)
  t.deepEqual(await wrapped(), before)
})

test('at a terminal, rotate asks for the key twice, without echo', async t => {
  const env = await installedRegistry(t)
  const terminal = openTerminal(env, ['master-key', 'rotate'])
  await terminal.shows(`Rotating the master key of the database ${new URL(env.DATABASE_URL).pathname.slice(1)} at `)
  await terminal.shows('Rotate?')
  terminal.type(`n${keys.enter}`)
  t.is(await terminal.ended, 1)
  t.notRegex(terminal.screen(), /New master key/)
  t.is((await runCli(env, ['keys', 'list'])).code, 0)
  const again = openTerminal(env, ['master-key', 'rotate', '--yes'])
  await again.shows('New master key')
  again.type(next + keys.enter)
  await again.shows('Repeat the master key')
  again.type(next + keys.enter)
  t.is(await again.ended, 0)
  t.false(again.screen().includes(next))
  t.is((await runCli({ ...env, AUTH_MASTER_KEY: next }, ['keys', 'list'])).code, 0)
})
