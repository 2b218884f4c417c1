/** A killed import continues with the same command: no row is lost, none is applied twice. */
import { once } from 'node:events'
import { open, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { installedRegistry, spawnCli, startCli } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

test('an import that is killed repeatedly and resumed applies each row once and reports each rejected row', async t => {
  const env = await installedRegistry(t)
  const folder = await temporaryFolder(t)
  const [source, report] = [join(folder, 'users.csv'), join(folder, 'report.csv')]
  const total = 20_000
  const lines = ['username,state,city,role,termsofusage']
  for (let number = 0; number < total; number++)
    lines.push(`kill-${number},${number % 100 === 7 ? 'SPX' : 'SP'},Bauru,ROLE_CLIENT,1`)
  await writeFile(source, lines.join('\n'))
  const args = ['users', 'import', source, '--report', report]
  const judged = async () =>
    Number((await ask(env.DATABASE_URL, 'SELECT coalesce(max(next_row), 0)::int AS n FROM imports'))[0]!.n)
  for (const goal of [1, 5_000, 12_000]) {
    const child = startCli(env, args)
    const ended = once(child, 'exit')
    while ((await judged()) < goal) await sleep(20)
    child.kill('SIGKILL')
    await ended
  }
  const before = await judged()
  t.true(before < total, `${before}`)
  const { code, stdout, stderr } = await spawnCli(env, args)
  t.is(code, 6, stderr)
  t.true(stderr.includes(`\nImport 1 is resumed: ${before} of ${total} rows are done.\n`), stderr)
  t.true(stdout.startsWith('Import 1 is finished: 19800 created, 0 updated, 0 unchanged, 200 rejected.\n'), stdout)
  t.deepEqual(await ask(env.DATABASE_URL, `SELECT count(*)::int AS n FROM users WHERE username LIKE 'kill-%'`), [
    { n: 19_800 },
  ])
  t.is((await readFile(report, 'utf8')).split('\n').length, 202)
  const events = await ask(env.DATABASE_URL, `SELECT count(*)::int AS n FROM audit_events WHERE action = 'user.import'`)
  const batches = await ask(env.DATABASE_URL, 'SELECT count(*)::int AS n FROM import_batches')
  t.deepEqual(events, batches)
})

test('a line of 560 MB is refused with its number, in little memory', async t => {
  const env = await installedRegistry(t)
  const folder = await temporaryFolder(t)
  for (const [name, start, filling] of [
    ['lines.jsonl', '{"name":"A"}\n{"name":"', 'x'],
    ['cell.csv', 'name\n"', 'x'],
    ['separators.csv', 'name\nA', ','],
  ] as const) {
    const path = join(folder, name)
    await writeFile(path, start)
    const file = await open(path, 'a')
    for (let times = 0; times < 35; times++) await file.write(Buffer.alloc(16 * 1024 * 1024, filling))
    await file.close()
    const little = { ...env, NODE_OPTIONS: '--max-old-space-size=96' }
    const { code, stderr } = await spawnCli(little, ['organizations', 'import', path])
    t.is(code, 1, stderr)
    t.true(stderr.startsWith(`error: ${path}, line 2: The line is longer than 262,144 characters.`), stderr)
    await rm(path)
  }
})
