/** The audit log holds no secret, and detects alterations by an insider. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { anyAddress, from, login } from '../_helpers/crowd.js'
import { ask, hold } from '../_helpers/database.js'
import { grpcOf } from '../_helpers/grpc.js'
import { sealed } from '../_helpers/models.js'
import { enterByAnswers, enterByKey, saveAnswer, sendKey, updatePassword } from '../_helpers/recovery.js'
import { password, type SignedUp, startTestService, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const sql = ({ env }: TestService, text: string) => ask(env.DATABASE_URL!, text)

async function signUpTimes(service: TestService, times: number): Promise<SignedUp[]> {
  const users: SignedUp[] = []
  while (users.length < times) users.push(await service.signUp('ROLE_CLIENT'))
  return users
}

test('an event names outcome, actor, target, address and request, and holds no secret', async t => {
  const service = await startTestService(t)
  const { registry } = service
  const [address, wrong, next] = [anyAddress(), 'wrong-secret-41', 'new-secret-815-x']
  const { id: organization, activationkey } = await service.organization()
  const email = 'capivara@example.org'
  const { token, username } = await service.signUp('ROLE_INSTITUTION', { email })
  const id = idOf(token)
  const enter = (name: string, secret: string) => login(service, name, address, secret, { headers })
  const headers = { ...from(address), 'x-request-id': 'request-of-the-test' }
  const activate = (key: string) =>
    service.request('POST', '/users/activate', { token, headers, query: { username, activationkey: key } })
  const begun = (await registry.audit.list({ limit: 1000 })).length
  await enter(username, wrong)
  await enter('mistyped-secret-9', password)
  await enter(username, password)
  await activate(randomUUID())
  await activate(activationkey)
  const events = (await registry.audit.list({ limit: 1000 })).slice(begun)
  t.deepEqual(
    events.map(event => [event.action, event.outcome, event.reason, event.actor, event.actor_id, event.object]),
    [
      ['session.login', 'refused', 'INVALID_CREDENTIALS', 'anonymous', null, null],
      ['session.login', 'ok', null, 'user', id, null],
      ['user.activate', 'ok', null, 'user', id, `organization:${organization}`],
    ],
  )
  for (const event of events)
    t.deepEqual([event.subject_id, event.address, event.request_id], [id, address, 'request-of-the-test'])

  for (const question of [1, 2]) await saveAnswer(service, token, question, 'answer-secret-12')
  for (const answer of ['wrong', 'answer-secret-12']) await enterByAnswers(service, username, answer)
  await sendKey(service, username, email)
  await registry.mailedKeys.replace(id, 'recovery', 'ABCD2345')
  await enterByKey(service, username, 'ABCD2345')
  await updatePassword(service, token, next)
  await sealed(service)
  const dump = JSON.stringify(await sql(service, 'SELECT * FROM audit_events'))
  const secrets = [wrong, password, 'answer-secret-12', 'mistyped-secret-9', next, 'ABCD2345', activationkey, token]
  for (const secret of secrets) t.false(dump.includes(secret), secret)
})

/** Columns that a MAC covers, and other values of them. */
const changes: readonly (readonly [column: string, value: string])[] = [
  ...['action', 'outcome', 'reason', 'actor', 'object', 'request_id'].map(column => [column, `'x'`] as const),
  ...['actor_id', 'subject_id'].map(column => [column, '1'] as const),
  ['address', `'192.0.2.1'`],
]

test('altering, deleting, reordering, inserting or truncating events is detected at the first affected event', async t => {
  const service = await startTestService(t)
  const { registry } = service
  await signUpTimes(service, 6)
  const { events: last } = await sealed(service)
  t.true(last >= 9)
  await sql(service, 'CREATE TABLE kept AS TABLE audit_events')
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
  const move = (by: string, where: string) => `UPDATE audit_events SET id = ${by} WHERE ${where}`
  const remove = (where: string) => `DELETE FROM audit_events WHERE ${where}`
  const newestHash = `UPDATE audit_events SET hash = (SELECT hash FROM kept WHERE id = ${last}) WHERE id = ${last + 1}`
  const moveHead = `UPDATE audit_head SET id = ${last + 1}`
  const again = 'INSERT INTO audit_events SELECT * FROM kept WHERE id = 4'
  const altered = [...changes, ['at', `at - interval '1 microsecond'`], ['hash', `sha256('x')`]]
  const deeds: Record<string, readonly [broken: number, ...statements: string[]]> = {
    ...Object.fromEntries(
      altered.map(([column, value]) => [
        `alters ${column}`,
        [6, `UPDATE audit_events SET ${column} = ${value} WHERE id = 6`],
      ]),
    ),
    'alters the first': [1, `UPDATE audit_events SET action = 'x' WHERE id = 1`],
    'alters the last': [last, `UPDATE audit_events SET action = 'x' WHERE id = ${last}`],
    'moves a part into the next': [4, `UPDATE audit_events SET action = action || outcome, outcome = '' WHERE id = 4`],
    'deletes one': [4, remove('id = 4')],
    'deletes the first': [1, remove('id = 1')],
    'deletes two in different places': [3, remove('id IN (3, 6)')],
    'deletes one and closes the gap': [4, remove('id = 4'), move('id - 1', 'id > 4')],
    'cuts off the last': [last, remove(`id = ${last}`)],
    'cuts off the last three': [last - 2, remove(`id > ${last - 3}`)],
    'cuts off everything': [1, remove('true')],
    'puts two in another order': [4, move('-id', 'id IN (4, 5)'), move('9 + id', 'id < 0')],
    'swaps what two say': [4, ...['subject_id', 'at', 'request_id', 'action'].map(swap)],
    'adds one at the end': [last + 1, copy(last + 1)],
    'adds one at the end with the newest hash, and moves the head': [last + 1, copy(last + 1), newestHash, moveHead],
    'deletes the first and computes all hashes anew': [1, remove('id = 1'), computeAnew],
    'slips one in before the first': [0, copy(0)],
    'slips one in and moves the others': [5, move('id + 1000', 'id >= 4'), move('id - 999', 'id > 1000'), again],
  }
  const found: Record<string, unknown> = {}
  for (const [name, [, ...statements]] of Object.entries(deeds)) {
    for (const statement of statements) await sql(service, statement)
    found[name] = (await registry.audit.verify()).broken
    // Not TRUNCATE, which waits for each process that reads the table.
    await sql(service, 'DELETE FROM audit_events')
    await sql(service, 'UPDATE audit_head SET (id, hash) = (SELECT id, hash FROM kept ORDER BY id DESC LIMIT 1)')
    await sql(service, 'INSERT INTO audit_events SELECT * FROM kept')
    t.is((await registry.audit.verify()).broken, undefined)
  }
  t.deepEqual(found, Object.fromEntries(Object.entries(deeds).map(([name, [broken]]) => [name, String(broken)])))
  await sql(service, `UPDATE audit_events SET address = '192.0.2.1' WHERE id = 3`)
  await signUpTimes(service, 4)
  t.is((await sealed(service)).broken, '3', 'even after more events')
})

test('altering or adding an event before it is sealed is detected, whichever process seals it', async t => {
  const service = await startTestService(t)
  const { audit } = service.registry
  await service.signUp('ROLE_CLIENT')
  const { events } = await sealed(service)
  const stamps = ['salt', 'address_digest', 'mac']
  const columns = ['at', ...changes.map(([column]) => column), ...stamps]
  const altered = [...changes, ...stamps.map(column => [column, `''`] as const), ['mac', `sha256('x')`] as const]
  const deeds = altered.map(([changed, value]) => {
    const values = columns.map(column => (column === changed ? value : column))
    return `INSERT INTO audit_staged (${columns}) SELECT ${values} FROM audit_events WHERE id = ${events}`
  })
  // Only during a check.
  const client = await hold(t, service.env.DATABASE_URL!)
  await client.query('SELECT pg_advisory_lock(7264004)')
  for (const deed of deeds) {
    await sql(service, deed)
    const [staged] = await sql(service, 'SELECT seq FROM audit_staged')
    t.is((await audit.verify()).broken, `staged:${staged!.seq}`, deed)
    await sql(service, 'DELETE FROM audit_staged')
    t.is((await audit.verify()).broken, undefined)
  }
  for (const deed of deeds) await sql(service, deed)
  await client.query('SELECT pg_advisory_unlock(7264004)')
  t.is((await sealed(service)).broken, String(events + 1))
})

test('a hundred simultaneous events of two processes form one unbroken chain', async t => {
  const service = await startTestService(t)
  const second = await startTestService(t, { DATABASE_URL: service.env.DATABASE_URL! })
  const client = grpcOf(t, second.grpc)
  const users = await signUpTimes(service, 20)
  const { events: before } = await sealed(service)
  const logins = Array.from({ length: 100 }, (_, index) => {
    const { username } = users[index % 20]!
    if (index % 2) return login(service, username)
    return client.call(Users.method.login, { username, password }, { metadata: from(anyAddress()) })
  })
  await Promise.all(logins)
  t.like(await sealed(service), { events: before + 100, broken: undefined })
  const list = await service.registry.audit.list({ limit: 1000 })
  const seen = list.map(({ id }) => Number(id))
  t.deepEqual(
    seen,
    Array.from({ length: before + 100 }, (_, index) => index + 1),
  )
})
