/** `auth-admin audit`: events can be listed, and tampering is detected. */
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import test, { type ExecutionContext } from 'ava'
import type { AuditEvent } from '../../server/models/audit.js'
import { assertRefusals, documentsOf, installedRegistry, jsonLines, startCli } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'
import { openModels } from '../_helpers/models.js'

/** A registry in which a user signed in. */
async function eventful(t: ExecutionContext) {
  const env = await installedRegistry(t)
  const { audit } = await openModels(t, env.DATABASE_URL)
  const stage = (action: string, more: object = {}) =>
    audit.append({ action, outcome: 'ok', actor: 'user', address: '192.0.2.7', ...more } as AuditEvent)
  const append = async (action: string, more?: object) => {
    await stage(action, more)
    await audit.seal()
  }
  for (const outcome of ['ok', 'refused', 'ok']) await append('session.login', { outcome, subject_id: 1 })
  const sql = (statement: string) => ask(env.DATABASE_URL, statement)
  return { env, audit, sql, stage, append, ...documentsOf({ env }, 'audit') }
}

test('list filters by user, action, outcome and time', async t => {
  const { run, json, append, sql } = await eventful(t)
  for (const hours of [1.5, 36]) {
    await append(`old.${hours}`)
    await sql(`UPDATE audit_events SET at = now() - interval '${hours} hours' WHERE action = 'old.${hours}'`)
  }
  for (const [count, ...args] of [
    [3, '--action', 'session.login'],
    [1, '--action', 'session.*', '--outcome', 'refused'],
    [3, '--action', 'session.*', '--user', 'ADMIN'],
    [0, '--action', 'session.*', '--user', '#7'],
    [0, '--since', '2999-01-01'],
    [0, '--until', '2020-01-01'],
    [0, '--action', 'old.*', '--since', '4000s'],
    [1, '--action', 'old.*', '--since', '7000s'],
    [0, '--action', 'old.*', '--since', '70m'],
    [1, '--action', 'old.*', '--since', '110m'],
    [0, '--action', 'old.*', '--since', '1h'],
    [1, '--action', 'old.*', '--since', '2h'],
    [1, '--action', 'old.*', '--since', '1d'],
    [2, '--action', 'old.*', '--since', '2d'],
  ] as const) {
    const { events } = await json('list', ...args)
    t.is(events.length, count, args.join(' '))
    const lines = (await run('list', '--all', '--jsonl', ...args)).stdout
    t.deepEqual(lines === '' ? [] : jsonLines(lines), events)
  }
  await assertRefusals(t, run, [
    [/--since/, 2, 'list', '--since', 'yesterday'],
    [/--outcome/, 2, 'list', '--outcome', 'bad'],
    [/no such action.* user\.\*, or one of these with its verb\.\n$/, 2, 'list', '--action', 'nonsense'],
    [/--limit/, 2, 'list', '--limit', '0'],
    [/^error: There is no user 7\. For an erased user, use #7\.\n$/, 3, 'list', '--user', '7'],
  ])
})

test('an event shows existing users by id and username, and erased users by id only', async t => {
  const { run, json, append } = await eventful(t)
  await append('user.set-role', { actor: 'user', actor_id: 1, subject_id: 7, object: 'role:ROLE_CLIENT->ROLE_ADMIN' })
  const { events } = await json('list', '--user', '#7')
  t.like(events, [{ actor: 'user', actorId: 1, actorUsername: 'admin', subjectId: 7 }])
  t.false('subjectUsername' in events[0])
  const { stdout } = await run('list', '--limit', '1')
  t.regex(
    stdout,
    /^\d+ +\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ +user\.set-role .* admin #1 +#7 role:ROLE_CLIENT->ROLE_ADMIN +192\.0\.2\.7\n$/m,
  )
})

test('list ends without an error when its output is closed, as in `audit list | head -1`', async t => {
  const { env } = await eventful(t)
  const child = startCli(env, ['audit', 'list'])
  child.stdout.destroy()
  const stderr = text(child.stderr)
  const [code] = await once(child, 'close')
  t.deepEqual([code, await stderr], [0, ''])
})

test('list shows unsealed events first and without an id, and verify counts them', async t => {
  const { run, json, stage, audit } = await eventful(t)
  const newest = async () => {
    const [{ id, action }] = (await json('list', '--limit', '1')).events
    return [id, action]
  }
  // A command seals staged events when it ends, because possibly no service runs.
  for (const action of ['session.last', 'session.first']) {
    await stage(action)
    t.deepEqual(await newest(), [undefined, action])
  }
  await stage('session.last')
  t.regex((await run('list')).stdout, /^- .*session\.last/m)
  await stage('session.last')
  t.regex((await run('verify')).stdout, /^\d+ events of the database \w+ at \S+, 1 not sealed yet, all intact\./)
  await audit.seal()
  t.regex((await run('verify')).stdout, /^\d+ events of the database \w+ at \S+, all intact\./)
})

test('verify says which event is broken, and compares with the link of an earlier check', async t => {
  const { run, json, append, stage, sql } = await eventful(t)
  const { newest } = await json('verify')
  const [id] = newest.split(':')
  await append('session.more')
  t.is((await run('verify', '--known', newest)).code, 0)
  t.is((await run('verify', '--known', `${id}:${'0'.repeat(64)}`)).code, 1)
  await sql(`DELETE FROM audit_events WHERE id >= ${id};
    UPDATE audit_head SET (id, hash) = (SELECT id, hash FROM audit_events WHERE id = ${id} - 1)`)
  t.is((await run('verify')).code, 0)
  t.regex((await run('verify', '--known', newest)).stderr, new RegExp(`broken at event ${id} `))
  await stage('session.last')
  await sql(`UPDATE audit_staged SET address = '192.0.2.8'`)
  await assertRefusals(t, run, [[/broken at the unsealed event \d+ /, 1, 'verify']])
})
