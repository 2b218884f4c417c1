/** The audit log: it records every operation and no secret, and detects alterations by an insider. */
import { execFile } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import test from 'ava'
import pg from 'pg'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import type { RecordedEvent } from '../../server/models/audit-list.js'
import { anyAddress } from '../_helpers/crowd.js'
import { openGrpc } from '../_helpers/grpc.js'
import { password, type SignedUp, startTestService, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const run = promisify(execFile)
const cli = fileURLToPath(new URL('../../cli/main.js', import.meta.url))

const everything = { limit: 100_000 }
const sql = async ({ registry }: TestService, text: string) =>
  (await registry.database.sequelize.query(text))[0] as Record<string, unknown>[]

/** Waits until every event is sealed; returns the result of `verify`. */
const sealed = ({ registry }: TestService) =>
  waitFor(async () => {
    const found = await registry.audit.verify()
    return found.staged === 0 && found
  })

/** An event without what differs from run to run. */
const gist = ({ action, outcome, reason, actor, actor_id, subject_id, object }: RecordedEvent) =>
  [action, outcome, reason, actor, actor_id, subject_id, object].map(part => part ?? '-').join(' ')

test('every step of a user’s life cycle leaves an event: actor, action, target, address, outcome and reason', async t => {
  const service = await startTestService(t)
  const { request, registry } = service
  const address = anyAddress()
  const headers = { 'x-forwarded-for': address, 'x-request-id': 'request-of-the-test' }
  const begun = (await registry.audit.list(everything)).length
  const questions = (await request('GET', '/forgotpasswords/findallforgotpasswordquestions')).json
  const post = (path: string, query: Record<string, string>, more: object = {}) =>
    request('POST', path, { query, headers, ...more })

  const { activationkey, id: organization } = await service.organization()
  const wrong = 'wrong-secret-41'
  const secret = 'own-secret-4711'
  const answer = 'answer-secret-12'
  const username = 'dona.capivara'
  const form = {
    username,
    nickname: 'capivara',
    password: secret,
    state: 'SP',
    city: 'Z',
    termsofusage: true,
    roles: ['ROLE_INSTITUTION'],
    email: 'capivara@example.org',
  }
  const { text: token } = await post('/users/signup', {}, { body: form })
  const id = idOf(token)
  await post('/users/login', { username, password: wrong })
  await post('/users/login', { username: 'mistyped-secret-9', password: secret })
  await post('/users/login', { username, password: secret })
  await post('/users/activate', { username, activationkey: randomUUID() }, { token })
  await post('/users/activate', { username, activationkey }, { token })
  for (const { id: forgotpasswordquestionsid } of questions.slice(0, 2)) {
    const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
    await post(path, {}, { token, body: { forgotpasswordquestionsid, answer } })
  }
  const answers = (text: string) =>
    questions
      .slice(0, 2)
      .map(({ id: forgotpasswordquestionsid }: { id: number }) => ({ forgotpasswordquestionsid, answer: text }))
  await post('/forgotpasswords/loginbyusernameandanswers', { username }, { body: answers('wrong') })
  await post('/forgotpasswords/loginbyusernameandanswers', { username }, { body: answers(answer) })
  await post('/forgotpasswords/sendkeybyemail', { username, email: 'capivara@example.org' })
  await waitForValue(async () => (await sql(service, `SELECT 1 FROM emails WHERE kind LIKE 'recovery-%'`)).length, 0)
  await registry.mailedKeys.replace(id, 'recovery', 'ABCD2345')
  await post('/forgotpasswords/loginbyusernameandkey', { username, key: 'ABCD2346' })
  await post('/forgotpasswords/loginbyusernameandkey', { username, key: 'ABCD2345' })
  await post('/forgotpasswords/passwordupdatebyusername', { newPassword: 'new-secret-815-x' }, { token })
  for (let index = 0; index < 12; index++) await post('/users/login', { username, password: wrong })

  const events = (await registry.audit.list(everything)).slice(begun)
  const anonymous = (action: string, reason: string) => `${action} refused ${reason} anonymous - ${id} -`
  const own = (action: string, object = '-') => `${action} ok - user ${id} ${id} ${object}`
  const expected = [
    `user.sign-up ok - anonymous - ${id} -`,
    anonymous('session.login', 'INVALID_CREDENTIALS'),
    own('session.login'),
    own('user.activate', `organization:${organization}`),
    own('user.save-answer', `question:${questions[0].id}`),
    own('user.save-answer', `question:${questions[1].id}`),
    anonymous('session.login-by-answers', 'INVALID_ANSWERS'),
    own('session.login-by-answers'),
    `recovery.send-key ok - anonymous - ${id} -`,
    own('session.login-by-key'),
    own('user.change-password'),
    // Of twelve wrong ones the first and the tenth, which locks: an unknown client can't fill the audit log by repetition.
    anonymous('session.login', 'INVALID_CREDENTIALS'),
    `session.login refused TOO_MANY_ATTEMPTS anonymous - ${id} failures:10`,
  ]
  t.deepEqual(events.map(gist), expected)
  for (const event of events) {
    t.is(event.address, address, event.action)
    t.is(event.request_id, 'request-of-the-test', event.action)
    t.true(Math.abs(new Date(event.at).getTime() - Date.now()) < 60_000)
  }
  await sealed(service)
  const dump = JSON.stringify(await sql(service, 'SELECT * FROM audit_events'))
  for (const text of [
    wrong,
    secret,
    answer,
    'mistyped-secret-9',
    'new-secret-815-x',
    'ABCD2345',
    activationkey,
    token,
  ]) {
    t.false(dump.includes(text), text)
  }
})

test('a failed operation leaves no event, and an operation that can’t be recorded is rolled back', async t => {
  const service = await startTestService(t)
  const { registry, request } = service
  const { token, username } = await service.signUp('ROLE_CLIENT', { email: 'ana@example.org' })
  const count = async () => (await registry.audit.list(everything)).length
  const change = () =>
    request('POST', '/forgotpasswords/passwordupdatebyusername', {
      token,
      query: { newPassword: 'tartaruga de couro 7' },
    })

  await sql(service, 'ALTER TABLE emails ADD CONSTRAINT broken CHECK (false) NOT VALID')
  const before = await count()
  t.is((await change()).json.reason, 'INTERNAL')
  t.is(await count(), before)
  await service.login(username)
  await sql(service, 'ALTER TABLE emails DROP CONSTRAINT broken')

  // At the end of the transaction, when the event is already written.
  await sql(service, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'too late'; END $$`)
  await sql(
    service,
    `CREATE CONSTRAINT TRIGGER late AFTER UPDATE OF token_generation ON users DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION fail()`,
  )
  const late = await count()
  t.is((await change()).json.reason, 'INTERNAL')
  t.is(await count(), late)
  await sql(service, 'DROP TRIGGER late ON users')

  await sql(
    service,
    `ALTER TABLE audit_staged ADD CONSTRAINT broken CHECK (action NOT IN ('user.change-password', 'session.login', 'user.sign-up', 'user.save-answer')) NOT VALID`,
  )
  t.is((await change()).json.reason, 'INTERNAL')
  const login = await request('POST', '/users/login', { query: { username, password } })
  t.is(login.json.reason, 'INTERNAL')
  await t.throwsAsync(service.signUp('ROLE_CLIENT', { username: 'unrecorded' }))
  const [question] = (await request('GET', '/forgotpasswords/findallforgotpasswordquestions')).json
  const body = { forgotpasswordquestionsid: question.id, answer: 'azul' }
  await request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body })
  await sql(service, 'ALTER TABLE audit_staged DROP CONSTRAINT broken')
  t.deepEqual(await sql(service, `SELECT 1 FROM users WHERE username = 'unrecorded'`), [])
  t.deepEqual(await sql(service, 'SELECT 1 FROM answers'), [])
  await service.login(username)
  t.is(await count(), before + 2)
  t.is((await change()).status, 200)
})

test('altering, deleting, reordering, inserting or truncating events is detected at the first affected event', async t => {
  const service = await startTestService(t)
  const { registry } = service
  for (let index = 0; index < 6; index++) await service.signUp('ROLE_CLIENT')
  const { events } = await sealed(service)
  t.true(events >= 9)
  await sql(service, 'CREATE TABLE kept AS TABLE audit_events')
  const last = events
  const swap = (column: string) =>
    `UPDATE audit_events a SET ${column} = b.${column} FROM kept b WHERE (a.id, b.id) IN ((4, 5), (5, 4))`
  // Event 4 again, including its MAC.
  const copy = (id: number) =>
    `INSERT INTO audit_events SELECT e.* FROM kept k, jsonb_populate_record(k, '{"id": ${id}}') e WHERE k.id = 4`
  // Without the key, other hashes are the best that an insider can make.
  const computeAnew = `DO $$ DECLARE e audit_events; previous bytea := ''; BEGIN
    FOR e IN SELECT * FROM audit_events ORDER BY id LOOP
      previous := sha256(previous || e.mac);
      UPDATE audit_events SET hash = previous WHERE id = e.id;
    END LOOP;
    UPDATE audit_head SET hash = previous; END $$`
  const deeds: Record<string, [string[], number]> = {
    'alters the action': [[`UPDATE audit_events SET action = 'session.login' WHERE id = 4`], 4],
    'alters the outcome': [[`UPDATE audit_events SET outcome = 'refused' WHERE id = 4`], 4],
    'alters the reason': [[`UPDATE audit_events SET reason = 'X' WHERE id = 4`], 4],
    'alters the actor': [[`UPDATE audit_events SET actor = 'service' WHERE id = 6`], 6],
    'alters whose account it was': [['UPDATE audit_events SET subject_id = 1 WHERE id = 6'], 6],
    'alters who did it': [['UPDATE audit_events SET actor_id = 1 WHERE id = 6'], 6],
    'alters the object': [[`UPDATE audit_events SET object = 'organization:1' WHERE id = 4`], 4],
    'alters the address': [[`UPDATE audit_events SET address = '192.0.2.1' WHERE id = 6`], 6],
    'alters the request id': [[`UPDATE audit_events SET request_id = 'x' WHERE id = 4`], 4],
    'alters the time': [[`UPDATE audit_events SET at = at - interval '1 microsecond' WHERE id = 4`], 4],
    'alters the first': [[`UPDATE audit_events SET action = 'x' WHERE id = 1`], 1],
    'alters the last': [[`UPDATE audit_events SET action = 'x' WHERE id = ${last}`], last],
    'alters a hash': [[`UPDATE audit_events SET hash = sha256('x') WHERE id = 4`], 4],
    'moves a part of one event into the next': [
      [`UPDATE audit_events SET action = action || outcome, outcome = '' WHERE id = 4`],
      4,
    ],
    'deletes one': [['DELETE FROM audit_events WHERE id = 4'], 4],
    'deletes the first': [['DELETE FROM audit_events WHERE id = 1'], 1],
    'deletes two in different places': [['DELETE FROM audit_events WHERE id IN (3, 6)'], 3],
    'deletes one and closes the gap': [
      ['DELETE FROM audit_events WHERE id = 4', 'UPDATE audit_events SET id = id - 1 WHERE id > 4'],
      4,
    ],
    'cuts off the last': [[`DELETE FROM audit_events WHERE id = ${last}`], last],
    'cuts off the last three': [[`DELETE FROM audit_events WHERE id > ${last - 3}`], last - 2],
    'cuts off everything': [['DELETE FROM audit_events'], 1],
    'puts two in another order': [
      [
        'UPDATE audit_events SET id = -id WHERE id IN (4, 5)',
        'UPDATE audit_events SET id = 9 + id WHERE id IN (-4, -5)',
      ],
      4,
    ],
    'swaps what two say': [[swap('subject_id'), swap('at'), swap('request_id'), swap('action')], 4],
    'adds one at the end': [[copy(last + 1)], last + 1],
    'adds one at the end with the newest hash, and moves the head': [
      [
        copy(last + 1),
        `UPDATE audit_events SET hash = (SELECT hash FROM kept WHERE id = ${last}) WHERE id = ${last + 1}`,
        `UPDATE audit_head SET id = ${last + 1}`,
      ],
      last + 1,
    ],
    'deletes the first and computes all hashes anew': [['DELETE FROM audit_events WHERE id = 1', computeAnew], 1],
    'slips one in before the first': [[copy(0)], 0],
    'slips one in and moves the others': [
      [
        'UPDATE audit_events SET id = id + 1000 WHERE id >= 4',
        'UPDATE audit_events SET id = id - 999 WHERE id > 1000',
        'INSERT INTO audit_events SELECT * FROM kept WHERE id = 4',
      ],
      5,
    ],
  }
  const found: Record<string, unknown> = {}
  const wanted: Record<string, unknown> = {}
  for (const [name, [statements, broken]] of Object.entries(deeds)) {
    for (const statement of statements) await sql(service, statement)
    found[name] = (await registry.audit.verify()).broken
    wanted[name] = String(broken)
    // Not TRUNCATE, which waits for each process that reads the table.
    await sql(service, 'DELETE FROM audit_events')
    await sql(service, 'UPDATE audit_head SET (id, hash) = (SELECT id, hash FROM kept ORDER BY id DESC LIMIT 1)')
    await sql(service, 'INSERT INTO audit_events SELECT * FROM kept')
    t.is((await registry.audit.verify()).broken, undefined)
  }
  t.deepEqual(found, wanted)
})

test('an altered event is detected even after more events are added', async t => {
  const service = await startTestService(t)
  for (let index = 0; index < 4; index++) await service.signUp('ROLE_CLIENT')
  await sealed(service)
  await sql(service, `UPDATE audit_events SET address = '192.0.2.1' WHERE id = 3`)
  for (let index = 0; index < 4; index++) await service.signUp('ROLE_CLIENT')
  await sealed(service)
  t.is((await service.registry.audit.verify()).broken, '3')
  const env = { PATH: process.env.PATH, HOME: process.env.HOME, ...service.env }
  const failure = await t.throwsAsync(run(process.execPath, [cli, 'audit', 'verify'], { env }))
  t.regex((failure as unknown as { stderr: string }).stderr, /broken at event 3\b/)
})

test('a log that was truncated and has grown since is detected with a link kept elsewhere', async t => {
  const service = await startTestService(t)
  const { registry } = service
  for (let index = 0; index < 4; index++) await service.signUp('ROLE_CLIENT')
  const { newest } = await sealed(service)
  const [id = ''] = newest.split(':')
  await service.signUp('ROLE_CLIENT')
  await sealed(service)
  t.is((await registry.audit.verify(newest)).broken, undefined)

  await sql(service, `DELETE FROM audit_events WHERE id >= ${id}`)
  await sql(service, 'UPDATE audit_head SET (id, hash) = (SELECT id, hash FROM audit_events ORDER BY id DESC LIMIT 1)')
  t.is((await registry.audit.verify()).broken, undefined)
  t.is((await registry.audit.verify(newest)).broken, id)
  for (let index = 0; index < 4; index++) await service.signUp('ROLE_CLIENT')
  await sealed(service)
  t.is((await registry.audit.verify()).broken, undefined)
  t.is((await registry.audit.verify(newest)).broken, id)
})

test('altering or adding an event before it is sealed is detected, whichever process seals it', async t => {
  const service = await startTestService(t)
  const { registry } = service
  await service.signUp('ROLE_CLIENT')
  const { events } = await sealed(service)
  const columns = 'at, action, outcome, reason, actor, actor_id, subject_id, object, address, request_id'
  const stamps = 'salt, address_digest, mac'
  const deeds: Record<string, string> = {
    'adds one without a MAC of ours': `INSERT INTO audit_staged (${columns}, ${stamps})
      SELECT ${columns}, ${stamps.replace('mac', `sha256('x')`)} FROM audit_events WHERE id = ${events}`,
    ...Object.fromEntries(
      [`action = 'x'`, `outcome = 'x'`, `reason = 'x'`, `actor = 'x'`, 'actor_id = 1', 'subject_id = 1', `object = 'x'`]
        .concat([`address = '192.0.2.1'`, `request_id = 'x'`, `salt = ''`, `address_digest = ''`, `mac = ''`])
        .map(change => {
          const [column = '', value = ''] = change.split(' = ')
          const altered = `${columns}, ${stamps}`.replace(new RegExp(`\\b${column}\\b`), value)
          return [
            `alters ${column}`,
            `INSERT INTO audit_staged (${columns}, ${stamps}) SELECT ${altered} FROM audit_events WHERE id = ${events}`,
          ]
        }),
    ),
  }
  // Only during a check.
  const client = new pg.Client({ connectionString: service.env.DATABASE_URL! })
  await client.connect()
  t.teardown(() => client.end())
  await client.query('SELECT pg_advisory_lock(7264004)')
  for (const [name, statement] of Object.entries(deeds)) {
    await sql(service, statement)
    const [staged] = await sql(service, 'SELECT seq FROM audit_staged')
    t.is((await registry.audit.verify()).broken, `staged:${staged!.seq}`, name)
    await sql(service, 'DELETE FROM audit_staged')
    t.is((await registry.audit.verify()).broken, undefined)
  }
  for (const statement of Object.values(deeds)) await sql(service, statement)
  await client.query('SELECT pg_advisory_unlock(7264004)')
  t.is((await sealed(service)).broken, String(events + 1))
})

test('a hundred simultaneous events form one unbroken chain', async t => {
  const service = await startTestService(t)
  const second = await startTestService(t, { DATABASE_URL: service.env.DATABASE_URL! })
  const client = openGrpc(second.grpc)
  t.teardown(async () => client.close())
  const users: SignedUp[] = []
  for (let index = 0; index < 20; index++) users.push(await service.signUp('ROLE_CLIENT'))
  const { events: before } = await sealed(service)
  const logins = Array.from({ length: 100 }, (_, index) => {
    const headers = { 'x-forwarded-for': `10.1.${index}.1` }
    const query = { username: users[index % 20]!.username, password }
    if (index % 2) return service.request('POST', '/users/login', { query, headers })
    return client.call(Users.method.login, query, { metadata: headers })
  })
  await Promise.all(logins)
  const after = await sealed(service)
  t.is(after.events, before + 100)
  t.is(after.broken, undefined)
  const list = await service.registry.audit.list(everything)
  t.deepEqual(
    list.map(({ id }) => Number(id)),
    Array.from({ length: before + 100 }, (_, index) => index + 1),
  )
})
