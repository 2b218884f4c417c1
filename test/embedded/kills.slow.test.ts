/** The embedded database when its processes are killed. */
import { existsSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import { ask } from '../_helpers/database.js'
import { ended, spawnMember, start, urlFrom } from '../_helpers/members.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

async function postmaster(dataDir: string): Promise<number> {
  return Number.parseInt(await readFile(join(dataDir, 'postgres/postmaster.pid'), 'utf8'), 10)
}

async function drafts(dataDir: string): Promise<string[]> {
  return (await readdir(dataDir)).filter(name => name.startsWith('postgres.new-'))
}

/** Its response, once it responds. */
const answer = (url: string, sql: string) => waitFor(() => ask(url, sql).catch(() => undefined))

test.serial('committed data survives the SIGKILL of every process', async t => {
  const dataDir = await temporaryFolder(t)
  const first = spawnMember(t, dataDir)
  const url = await urlFrom(first)
  await ask(url, 'CREATE TABLE kept AS SELECT 7 AS n')
  first.kill('SIGKILL')
  await ended(first)
  const orphan = await postmaster(dataDir)

  const joined = spawnMember(t, dataDir)
  t.is(await urlFrom(joined), url, 'the orphan is joined')
  t.is(await postmaster(dataDir), orphan)
  joined.kill('SIGKILL')
  process.kill(orphan, 'SIGKILL')
  await ended(joined)

  const again = await start(dataDir)
  t.deepEqual(await ask(again.url, 'SELECT n FROM kept'), [{ n: 7 }])
  await again.stop()
})

test.serial('a database that dies while it is in use restarts at the same URL', async t => {
  const dataDir = await temporaryFolder(t)
  const embedded = await start(dataDir)
  process.kill(await postmaster(dataDir), 'SIGKILL')
  t.deepEqual(await answer(embedded.url, 'SELECT 7 AS n'), [{ n: 7 }])
  await embedded.stop()
  t.false(existsSync(join(dataDir, 'postgres/postmaster.pid')))
})

test.serial('an interrupted set-up doesn’t prevent the next one', async t => {
  const dataDir = await temporaryFolder(t)
  const member = spawnMember(t, dataDir)
  await waitForValue(
    () => drafts(dataDir),
    value => value.length > 0,
  )
  member.kill('SIGKILL')
  await ended(member)
  t.false(existsSync(join(dataDir, 'postgres')))
  const embedded = await start(dataDir)
  t.deepEqual(await ask(embedded.url, 'SELECT 7 AS n'), [{ n: 7 }])
  await embedded.stop()
  t.deepEqual(await drafts(dataDir), [])
})
