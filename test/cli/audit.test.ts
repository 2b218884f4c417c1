/** `auth-admin audit`: events can be listed and followed, and tampering is detected. */
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import type { AuditEvent } from '../../server/models/audit.js'
import { runCli, startCli } from '../_helpers/cli.js'
import { freshDatabase } from '../_helpers/database.js'
import { openModels } from '../_helpers/models.js'
import { password } from '../_helpers/service.js'

/** A registry in which a user signed in. */
async function eventful(t: ExecutionContext) {
  const env = { DATABASE_URL: await freshDatabase(t), AUTH_MASTER_KEY: Buffer.alloc(32, 7).toString('base64') }
  const models = await openModels(t, env.DATABASE_URL)
  const client = new pg.Client({ connectionString: env.DATABASE_URL })
  await client.connect()
  t.teardown(() => client.end())
  const stage = (action: string, more: object = {}) =>
    models.audit.append({ action, outcome: 'ok', actor: 'user', address: '192.0.2.7', ...more } as AuditEvent)
  const append = async (action: string, more?: object) => {
    await stage(action, more)
    await models.audit.seal()
  }
  for (const outcome of ['ok', 'refused', 'ok']) await append('session.login', { outcome, subject_id: 1 })
  return { env, models, client, stage, append, audit: (...args: string[]) => runCli(env, ['audit', ...args]) }
}

test('list filters by user, action, outcome and time, and shows the newest', async t => {
  const { env, audit } = await eventful(t)
  await runCli({ ...env, AUTH_ADMIN_PASSWORD: password }, ['install'])
  const list = async (...args: string[]) => JSON.parse((await audit('list', '--json', ...args)).stdout).events
  const all = await list()
  t.deepEqual(
    all.map(({ id }: { id: number }) => id),
    all.map((_: unknown, index: number) => all.length - index),
  )
  t.is((await list('--action', 'session.login')).length, 3)
  t.is((await list('--action', 'session.*', '--outcome', 'refused')).length, 1)
  t.true((await list('--user', 'ADMIN')).length >= 3)
  const { events, nextPageToken } = JSON.parse((await audit('list', '--limit', '2', '--json')).stdout)
  t.deepEqual(events, all.slice(0, 2))
  t.deepEqual(await list('--all', '--page-token', nextPageToken), all.slice(2))
  t.deepEqual(await list('--since', '5m'), all)
  t.deepEqual(await list('--since', '2999-01-01'), [])
  t.true(all.every((event: object) => !Object.values(event).includes(null)))
  const { stdout } = await audit('list')
  // In a pipe, an event is a line.
  t.is(stdout.trimEnd().split('\n').length, all.length + 1)
  for (const args of [
    ['--since', 'yesterday'],
    ['--outcome', 'bad'],
    ['--limit', '0'],
  ]) {
    const { code, stderr } = await audit('list', ...args)
    t.is(code, 2)
    t.regex(stderr, /^error: [^\n]+\n$/)
  }
})

test('list shows existing users by id and username, and erased users by id only', async t => {
  const { env, audit, append } = await eventful(t)
  await runCli({ ...env, AUTH_ADMIN_PASSWORD: password }, ['install'])
  await append('user.set-role', { actor: 'user', actor_id: 1, subject_id: 7, object: 'role:ROLE_CLIENT->ROLE_ADMIN' })
  const [event] = JSON.parse((await audit('list', '--action', 'user.set-role', '--json')).stdout).events
  t.like(event, { actor: 'user', actorId: 1, actorUsername: 'admin', subjectId: 7 })
  t.false('subjectUsername' in event)
  t.is(JSON.parse((await audit('list', '--user', '#7', '--json')).stdout).events.length, 1)
  const unsigned = await audit('list', '--user', '7')
  t.deepEqual([unsigned.code, unsigned.stderr], [3, 'error: There is no user 7. For an erased user, use #7.\n'])
  const { stdout } = await audit('list', '--limit', '1')
  t.regex(stdout, / admin #1 +#7 role:ROLE_CLIENT->ROLE_ADMIN +192\.0\.2\.7\n$/)
  t.regex(stdout, /^\d+ +\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ +user\.set-role /m)
})

test('show prints one event with ids and usernames, and fails for an unknown id', async t => {
  const { env, audit, append, stage } = await eventful(t)
  await runCli({ ...env, AUTH_ADMIN_PASSWORD: password }, ['install'])
  await append('user.set-role', { actor: 'user', actor_id: 1, subject_id: 7, object: 'role:ROLE_CLIENT->ROLE_ADMIN' })
  const { events } = JSON.parse((await audit('list', '--json')).stdout)
  for (const event of events) t.deepEqual(JSON.parse((await audit('show', `#${event.id}`, '--json')).stdout), event)
  const [{ id }] = events
  const { code, stdout } = await audit('show', String(id))
  t.is(code, 0)
  t.deepEqual(
    stdout
      .trimEnd()
      .split('\n')
      .map(line => line.split(/ {2,}/))
      .filter(([name]) => name !== 'time'),
    [
      ['id', String(id)],
      ['what', 'user.set-role'],
      ['outcome', 'ok'],
      ['by', 'admin #1'],
      ['whom', '#7 role:ROLE_CLIENT->ROLE_ADMIN'],
      ['from', '192.0.2.7'],
    ],
  )
  await stage('user.edit')
  for (const [given, exitCode] of [
    [String(id + 1), 3],
    ['1234567890123', 3],
    ['0', 2],
    ['ana', 2],
  ] as const) {
    const refused = await audit('show', given)
    t.deepEqual([refused.code, refused.stdout], [exitCode, ''], given)
    t.regex(refused.stderr, /^error: [^\n]+\n$/)
  }
})

test('`list --since` accepts seconds, minutes, hours and days', async t => {
  const { audit, client, append } = await eventful(t)
  for (const hours of [1.5, 36]) {
    await append(`old.${hours}`)
    await client.query(`UPDATE audit_events SET at = now() - interval '${hours} hours' WHERE action = 'old.${hours}'`)
  }
  const shown: Record<string, number> = {
    '4000s': 0,
    '7000s': 1,
    '70m': 0,
    '110m': 1,
    '1h': 0,
    '2h': 1,
    '1d': 1,
    '2d': 2,
  }
  for (const [since, count] of Object.entries(shown)) {
    const { events } = JSON.parse((await audit('list', '--since', since, '--action', 'old.*', '--json')).stdout)
    t.is(events.length, count, since)
  }
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
  const { audit, stage, models } = await eventful(t)
  await stage('session.last')
  const listed = JSON.parse((await audit('list', '--json')).stdout).events
  t.deepEqual(
    listed.map(({ id, action }: { id?: number; action: string }) => [id, action]),
    [[undefined, 'session.last'], ...[3, 2, 1].map(id => [id, 'session.login'])],
  )
  // A command seals staged events when it ends, because possibly no service runs.
  await stage('session.first')
  const newest = JSON.parse((await audit('list', '--json', '--limit', '1')).stdout).events
  t.deepEqual(
    newest.map(({ id, action }: { id?: number; action: string }) => [id, action]),
    [[undefined, 'session.first']],
  )
  await stage('session.last')
  t.regex((await audit('list')).stdout, /^- .*session\.last/m)
  await stage('session.last')
  t.regex((await audit('verify')).stdout, /^6 events, 1 not sealed yet, all intact\./)
  await models.audit.seal()
  t.regex((await audit('verify')).stdout, /^7 events, all intact\./)
})

test('verify compares with the link of an earlier check', async t => {
  const { audit, append, client } = await eventful(t)
  const { newest } = JSON.parse((await audit('verify', '--json')).stdout)
  await append('session.more')
  t.is((await audit('verify', '--known', newest)).code, 0)
  t.is((await audit('verify', '--known', `3:${'0'.repeat(64)}`)).code, 1)
  await client.query('DELETE FROM audit_events WHERE id > 2')
  await client.query('UPDATE audit_head SET (id, hash) = (SELECT id, hash FROM audit_events WHERE id = 2)')
  t.is((await audit('verify')).code, 0)
  t.regex((await audit('verify', '--known', newest)).stderr, /broken at event 3 /)
})

test('verify detects an event that was altered before it is sealed', async t => {
  const { audit, client, stage } = await eventful(t)
  await stage('session.last')
  await client.query(`UPDATE audit_staged SET address = '192.0.2.8'`)
  const { code, stderr } = await audit('verify')
  t.is(code, 1)
  t.regex(stderr, /broken at the unsealed event \d+ /)
})

test('export prints all matching events, newest first, one per line or as one document', async t => {
  const { env, audit, append } = await eventful(t)
  for (let each = 0; each < 3; each++) await append('user.edit', { actor_id: 7, subject_id: each })
  const all = JSON.parse((await audit('list', '--all', '--json')).stdout).events
  const lines = (await audit('export')).stdout
  t.deepEqual(
    lines
      .trimEnd()
      .split('\n')
      .map(each => JSON.parse(each)),
    all,
  )
  const own = await runCli(env, ['audit', 'export', '--action', 'user.*', '--json'])
  t.is(own.code, 0, own.stderr)
  t.deepEqual(
    JSON.parse(own.stdout).events,
    all.filter(({ action }: { action: string }) => action === 'user.edit'),
  )
  t.deepEqual(JSON.parse((await audit('export', '--until', '2020-01-01', '--json')).stdout), {
    events: [],
    nextPageToken: '',
  })
  t.is((await audit('export', '--until', '2020-01-01')).stdout, '')
})

test('tail prints each event once as it happens, until Ctrl-C', async t => {
  const { env, append } = await eventful(t)
  const child = startCli(env, ['audit', 'tail', '--action', 'session.*', '--limit', '1', '--jsonl'])
  t.teardown(() => void child.kill('SIGKILL'))
  const actions: string[] = []
  const lines = createInterface({ input: child.stdout })
  lines.on('line', line => actions.push(JSON.parse(line).action))
  await once(lines, 'line')
  await append('session.one')
  await append('user.other')
  await append('session.two')
  while (actions.length < 3) await once(lines, 'line')
  await append('session.three')
  await once(lines, 'line')
  t.deepEqual(actions, ['session.login', 'session.one', 'session.two', 'session.three'])
  child.kill('SIGINT')
  const [code] = await once(child, 'exit')
  t.is(code, 0)
})
