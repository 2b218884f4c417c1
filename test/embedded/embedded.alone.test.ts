import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { readdir, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import { openDatabase } from '../../server/database/connection.js'
import { embeddedSecrets } from '../../server/embedded/secrets.js'
import { ask } from '../_helpers/database.js'
import { ended, folder, spawnMember, start, urlFrom } from '../_helpers/members.js'

test.serial('simultaneous starts share one database, and the last process to end stops it', async t => {
  const dataDir = await folder(t)
  const members = [spawnMember(t, dataDir), spawnMember(t, dataDir)] as const
  const [mine, theirs, others] = await Promise.all([start(dataDir), urlFrom(members[0]), urlFrom(members[1])])
  t.is(theirs, mine.url)
  t.is(others, mine.url)
  await ask(mine.url, 'CREATE TABLE kept AS SELECT 7 AS n')

  await mine.stop()
  t.deepEqual(await ask(theirs, 'SELECT n FROM kept'), [{ n: 7 }])
  members[0].stdin.end()
  t.is(await ended(members[0]), 0)
  t.deepEqual(await ask(theirs, 'SELECT n FROM kept'), [{ n: 7 }])
  members[1].stdin.end()
  t.is(await ended(members[1]), 0)
  t.false(existsSync(join(dataDir, 'postgres/postmaster.pid')))
  t.deepEqual((await readdir(dataDir)).sort(), ['database-password', 'master-key', 'postgres', 'postgres.log'])
})

test.serial('a start that finds the database stopping starts it again', async t => {
  const dataDir = await folder(t)
  let current = await start(dataDir)
  for (let round = 0; round < 5; round++) {
    const [, next] = await Promise.all([current.stop(), start(dataDir)])
    t.is((await ask(next.url, 'SELECT 1 AS n')).length, 1)
    current = next
  }
  await current.stop()
})

test.serial('TLS settings in the environment for other databases don’t affect the embedded one', async t => {
  process.env.PGSSLMODE = 'require'
  t.teardown(() => void delete process.env.PGSSLMODE)
  const embedded = await start(await folder(t))
  const database = openDatabase(embedded.url, 1)
  t.deepEqual(await database.run({ name: 'seven', text: 'SELECT 7 AS n' }, []), [{ n: 7 }])
  await database.close()
  await embedded.stop()
})

test.serial('a leftover postmaster.pid with the id of another process doesn’t prevent a start', async t => {
  const dataDir = await folder(t)
  await (await start(dataDir)).stop()
  const { uid, gid } = await stat(join(dataDir, 'postgres'))
  const other = spawn('sleep', ['60'], process.getuid?.() === 0 ? { uid, gid } : {})
  t.teardown(() => other.kill())
  const lines = [other.pid, join(dataDir, 'postgres'), 1, 1, '', '127.0.0.1', '', 'ready']
  await writeFile(join(dataDir, 'postgres/postmaster.pid'), lines.join('\n'))
  const embedded = await start(dataDir)
  t.deepEqual(await ask(embedded.url, 'SELECT 7 AS n'), [{ n: 7 }])
  await embedded.stop()
})

test.serial('concurrent starts create the secrets once, and only their owner can read them', async t => {
  const dataDir = join(await folder(t), 'data')
  const [first, ...more] = await Promise.all(Array.from({ length: 8 }, () => embeddedSecrets(dataDir)))
  for (const secrets of more) t.deepEqual(secrets, first)
  t.is(first!.masterKey.length, 32)
  t.deepEqual((await readdir(dataDir)).sort(), ['database-password', 'master-key'])
  t.is((await stat(join(dataDir, 'master-key'))).mode & 0o777, 0o600)
  t.is((await stat(dataDir)).mode & 0o777, 0o700)
})
