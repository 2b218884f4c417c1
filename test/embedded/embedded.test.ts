import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { chmod, chown, lchown, mkdir, readdir, realpath, rename, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import ava from 'ava'
import { withFolderLock } from '../../server/embedded/folder-lock.js'
import { embeddedSecrets } from '../../server/embedded/secrets.js'
import { ask } from '../_helpers/database.js'
import { ended, spawnHolder, spawnMember, start, urlFrom } from '../_helpers/members.js'
import { createRequest } from '../_helpers/service.js'
import { launch, serviceEnv, spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { testWith } from '../_helpers/tools.js'
import { within } from '../_helpers/wait.js'

const test = ava.serial

test('simultaneous starts share one database, and the last process to end stops it', async t => {
  const dataDir = await temporaryFolder(t)
  const members = [spawnMember(t, dataDir), spawnMember(t, dataDir)] as const
  const [mine, theirs, others] = await Promise.all([start(dataDir), urlFrom(members[0]), urlFrom(members[1])])
  t.is(theirs, mine.url)
  t.is(others, mine.url)
  await ask(mine.url, 'CREATE TABLE kept AS SELECT 7 AS n')

  await mine.stop()
  for (const member of members) {
    t.deepEqual(await ask(theirs, 'SELECT n FROM kept'), [{ n: 7 }])
    member.stdin.end()
    t.is(await ended(member), 0)
  }
  t.false(existsSync(join(dataDir, 'postgres/postmaster.pid')))
  t.deepEqual((await readdir(dataDir)).sort(), ['database-password', 'master-key', 'postgres', 'postgres.log'])
})

test('a start that finds the database stopping starts it again', async t => {
  const dataDir = await temporaryFolder(t)
  let current = await start(dataDir)
  for (let round = 0; round < 5; round++) {
    const [, next] = await Promise.all([current.stop(), start(dataDir)])
    t.is((await ask(next.url, 'SELECT 1 AS n')).length, 1)
    current = next
  }
  await current.stop()
})

test('a start that is given up, at whatever step, ends what it launched, and the next one works', async t => {
  const holdsLock = async (dataDir: string) => {
    const holder = spawnHolder(t, dataDir)
    for await (const _ of holder.stdout) break
  }
  const steps: Record<string, (dataDir: string, giveUp: () => void) => Parameters<typeof start>[1] | Promise<void>> = {
    creation: (_, giveUp) => ({ log: { info: giveUp, warn() {} } }),
    launch: (_, onLaunch) => ({ onLaunch }),
    'wait for another start': async (dataDir, giveUp) => {
      await holdsLock(dataDir)
      setTimeout(giveUp, 100)
    },
  }
  for (const [step, stop] of Object.entries(steps)) {
    const dataDir = await temporaryFolder(t)
    const giving = new AbortController()
    const options = (await stop(dataDir, () => giving.abort())) ?? {}
    await t.throwsAsync(start(dataDir, { ...options, signal: giving.signal }), { any: true }, step)
    const left = await readdir(dataDir)
    t.deepEqual(
      left.filter(name => name.startsWith('postgres.new-')),
      [],
      step,
    )
    t.is(left.includes('postgres'), step === 'launch', step)
    t.false(existsSync(join(dataDir, 'postgres/postmaster.pid')), step)
    if (step.startsWith('wait')) continue
    const next = await start(dataDir)
    t.deepEqual(await ask(next.url, 'SELECT 7 AS n'), [{ n: 7 }], step)
    await next.stop()
  }
})

test('a leftover postmaster.pid with the id of another process doesn’t prevent a start', async t => {
  const dataDir = await temporaryFolder(t)
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

test('concurrent starts create the secrets once, and only their owner can read them', async t => {
  const dataDir = join(await temporaryFolder(t), 'data')
  const [first, ...more] = await Promise.all(Array.from({ length: 8 }, () => embeddedSecrets(dataDir)))
  for (const secrets of more) t.deepEqual(secrets, first)
  t.is(first!.masterKey.length, 32)
  t.deepEqual((await readdir(dataDir)).sort(), ['database-password', 'master-key'])
  t.is((await stat(join(dataDir, 'master-key'))).mode & 0o777, 0o600)
  t.is((await stat(dataDir)).mode & 0o777, 0o700)
})

test('neither PG… variables nor a socket of another user with the name of the lock prevents a start', async t => {
  const dataDir = await temporaryFolder(t)
  if (process.platform === 'linux') {
    const name = createHash('sha256')
      .update(await realpath(dataDir))
      .digest('hex')
    const server = createServer()
    await new Promise<void>(done => server.listen({ path: `\0auth-${name.slice(0, 32)}` }, done))
    t.teardown(() => server.close())
  }
  const service = await spawnService(t, {
    ...{ DATABASE_URL: '', AUTH_DATA_DIR: dataDir },
    ...{
      PGOPTIONS: '-c search_path=foo -c there_is_none=1',
      PGSSLMODE: 'require',
      PGCLIENTENCODING: 'there_is_none',
    },
    ...{ PGHOST: '203.0.113.1', PGPORT: '1', PGUSER: 'x', PGPASSWORD: 'x', PGDATABASE: 'x', PGAPPNAME: 'x' },
  })
  t.is((await createRequest(service.http)('GET', '/readyz')).status, 200)
  service.child.kill('SIGTERM')
  t.is(await service.ended, 0)
})

const spoiled: Record<string, (dataDir: string) => Promise<unknown>> = {
  'database-password is empty': dataDir => writeFile(join(dataDir, 'database-password'), ''),
  'database-password is missing': dataDir => rm(join(dataDir, 'database-password')),
  'database-password isn’t the password': dataDir => writeFile(join(dataDir, 'database-password'), 'other'),
  'master-key is empty': dataDir => writeFile(join(dataDir, 'master-key'), ' \n'),
  'master-key is missing': dataDir => rm(join(dataDir, 'master-key')),
}
test('a secret of the embedded database that is missing, empty or wrong is named at once, nothing is created, and no PostgreSQL stays', async t => {
  for (const [says, spoil] of Object.entries(spoiled)) {
    const dataDir = await temporaryFolder(t)
    await (await start(dataDir)).stop()
    await spoil(dataDir)
    const before = (await readdir(dataDir)).sort()
    const program = launch(t, await serviceEnv(t, { DATABASE_URL: '', AUTH_DATA_DIR: dataDir }))
    t.true(await within(20_000, program.ended), says)
    t.is(await program.ended, 1, says)
    t.true(program.output().includes(join(await realpath(dataDir), says)), program.output())
    t.false(program.output().includes('AUTH_MASTER_KEY'))
    t.deepEqual((await readdir(dataDir)).sort(), before, says)
    t.false(existsSync(join(dataDir, 'postgres/postmaster.pid')), says)
  }
})

test('one process at a time has the lock of a folder, whatever its path, also after another was killed with it', async t => {
  const parent = await temporaryFolder(t)
  const dataDir = join(parent, 'a'.repeat(200))
  await mkdir(dataDir)
  const [busy, overlaps] = [{ count: 0 }, { count: 0 }]
  const once = () =>
    withFolderLock(dataDir, async () => {
      if (++busy.count > 1) overlaps.count++
      await sleep(5)
      busy.count--
    })
  const holder = spawnHolder(t, dataDir)
  for await (const _ of holder.stdout) break
  const waiting = once()
  await sleep(200)
  t.is(await Promise.race([waiting.then(() => 'got it'), sleep(0, 'waits')]), 'waits')
  holder.kill('SIGKILL')
  await Promise.all([waiting, ...Array.from({ length: 12 }, once)])
  t.is(overlaps.count, 0)
  t.deepEqual(await readdir(dataDir), [], 'nothing is left behind')
})

const masterKey = Buffer.alloc(32).toString('base64')

/** A data folder with a master key. */
async function withKey(dataDir: string): Promise<string> {
  await mkdir(dataDir, { mode: 0o700 })
  await writeFile(join(dataDir, 'master-key'), masterKey)
  return join(dataDir, 'master-key')
}

const refusals: Record<string, (dataDir: string) => Promise<unknown>> = {
  'that another user owns': async dataDir => chown(dirname(await withKey(dataDir)), 12345, 12345),
  'that every user can write to': async dataDir => chmod(dirname(await withKey(dataDir)), 0o777),
  'with a master key of another user': async dataDir => chown(await withKey(dataDir), 12345, 12345),
  'with a master key that every user can write': async dataDir => chmod(await withKey(dataDir), 0o666),
  'with a link as master key': async dataDir => {
    await rename(await withKey(dataDir), `${dataDir}-key`)
    await symlink(`${dataDir}-key`, join(dataDir, 'master-key'))
  },
  'that a link of another user leads to': async dataDir => {
    await mkdir(`${dataDir}-target`, { mode: 0o700 })
    await symlink(`${dataDir}-target`, dataDir)
    await lchown(dataDir, 12345, 12345)
  },
  'that is a file': dataDir => writeFile(dataDir, ''),
  'below a file': async dataDir => {
    await rm(dirname(dataDir), { recursive: true })
    await writeFile(dirname(dataDir), '')
  },
  'that is a link to nothing': dataDir => symlink(`${dataDir}-none`, dataDir),
  'below a link to nothing': async dataDir => {
    await rm(dirname(dataDir), { recursive: true })
    await symlink(`${dirname(dataDir)}-none`, dirname(dataDir))
  },
}
test('a data folder in which another user may have planted something is refused with what to do, and nothing is written', async t => {
  for (const [what, make] of Object.entries(refusals)) {
    if (process.getuid?.() !== 0 && /another user/.test(what)) continue
    const dataDir = join(await temporaryFolder(t), 'in', 'data')
    await mkdir(dirname(dataDir))
    await make(dataDir)
    const list = async () => (await readdir(dataDir).catch(() => [])).sort()
    const before = await list()
    const { message } = (await t.throwsAsync(() => embeddedSecrets(dataDir), undefined, what))!
    t.true(message.includes(dataDir), message)
    t.regex(message, /^AUTH_DATA_DIR: .*(chown|chmod|Set it to)|: replace it|`ch(own|mod)/, what)
    t.deepEqual(await list(), before, what)
  }
  // Nothing can be created there, and the process can end.
  if (process.platform !== 'linux') return
  const { message } = (await t.throwsAsync(() => embeddedSecrets('/proc/there/is/none')))!
  t.regex(message, /^AUTH_DATA_DIR: \/proc\/there\/is\/none can’t be created \(ENOENT\)\. Set it to/)
})

testWith('root', process.getuid?.() === 0)(
  'a volume of root that a group may write to, as Kubernetes makes it, is used',
  async t => {
    const dataDir = await temporaryFolder(t)
    await chown(dataDir, 0, 2000)
    await chmod(dataDir, 0o2770)
    const secrets = await embeddedSecrets(dataDir)
    // So does Kubernetes at the next mount.
    for (const name of await readdir(dataDir)) {
      await chown(join(dataDir, name), 0, 2000)
      await chmod(join(dataDir, name), 0o660)
    }
    t.deepEqual(await embeddedSecrets(dataDir), secrets)
  },
)
