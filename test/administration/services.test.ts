/** Services in Administration: identities, scopes and keys. */
import { randomUUID } from 'node:crypto'
import { timestampDate, timestampFromDate } from '@bufbuild/protobuf/wkt'
import type { ConnectError } from '@connectrpc/connect'
import test from 'ava'
import { Scope } from '../../proto/gen/auth/v1/scopes_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { BadRequestSchema, ErrorInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import { sql } from '../../server/database/sql.js'
import { type AdministrationClient, openSignedIn } from '../_helpers/administration.js'
import { openGrpc, refusalOf } from '../_helpers/grpc.js'
import { serviceForFile } from '../_helpers/service.js'
import { waitForValue } from '../_helpers/wait.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
let open: AdministrationClient
const undo: (() => Promise<void>)[] = []
test.before(async () => {
  open = await openSignedIn({ teardown: work => void undo.push(work) }, service)
})
test.after.always(() => Promise.all(undo.map(work => work())))

const scopes = [Scope.USERS_READ]
const newName = () => `s-${randomUUID().slice(0, 8)}`

/** The outcome of a call: `OK`, or the reason and the invalid fields. */
async function outcome(call: Promise<unknown>): Promise<string> {
  const error = await call.then(
    () => undefined,
    (error: ConnectError) => error,
  )
  if (!error) return 'OK'
  const fields = error.findDetails(BadRequestSchema)[0]?.fieldViolations.map(({ field }) => field) ?? []
  return [error.findDetails(ErrorInfoSchema)[0]?.reason, ...fields].join(' ')
}

/** The outcome of `GetUser` with a key. */
async function ask(key: string): Promise<string> {
  const client = openGrpc(service.grpc)
  try {
    return await client.call(Users.method.getUser, { username: 'admin' }, { token: key }).then(
      () => 'OK',
      error => refusalOf(error).info?.reason ?? 'none',
    )
  } finally {
    client.close()
  }
}

const events = async (name: string) =>
  (await service.registry.audit.list({ action: 'service.*', limit: 1000 }))
    .filter(({ object }) => object === `service:${name}`)
    .map(({ action, actor }) => `${action} ${actor}`)

test('a new service gets a key with the access that its scopes grant, and is listed without the key', async t => {
  const name = newName()
  const created = await open.createService({ name, scopes: [...scopes, Scope.TOKENS_VERIFY, Scope.USERS_READ] })
  t.regex(created.key, /^authsvc_[\w-]{43}$/)
  const { keys, createTime, ...rest } = created.service!
  t.deepEqual([rest.name, rest.scopes], [name, [Scope.USERS_READ, Scope.TOKENS_VERIFY]])
  t.is(keys.length, 1)
  t.true(created.key.startsWith(keys[0]!.beginning) && keys[0]!.beginning.length < 20)
  t.is(keys[0]!.lastUsed, '')
  const life = timestampDate(keys[0]!.expireTime!).getTime() - timestampDate(createTime!).getTime()
  t.true(Math.abs(life / 86_400_000 - 365) < 0.1)
  t.is(await ask(created.key), 'OK')
  const listed = (await open.listServices({ pageSize: 1000 })).services.find(each => each.name === name)!
  t.is(listed.keys[0]!.lastUsed, new Date().toISOString().slice(0, 10))
  t.false(
    JSON.stringify(listed, (_, value) => (typeof value === 'bigint' ? Number(value) : value)).includes(created.key),
  )
  t.deepEqual(await events(name), ['service.add user'])
})

test('service names are unique, and every invalid field is listed', async t => {
  const name = newName()
  await open.createService({ name, scopes })
  t.is(await outcome(open.createService({ name, scopes })), 'NAME_TAKEN')
  t.is(await outcome(open.createService({ name, scopes, validateOnly: true })), 'NAME_TAKEN')
  for (const wrong of ['', 'A', 'a b', 'ä', 'x'.repeat(64), 'a_b', `${newName()}\n`]) {
    t.is(await outcome(open.createService({ name: wrong, scopes })), 'INVALID_ARGUMENT name', wrong)
  }
  const past = timestampFromDate(new Date(Date.now() - 1000))
  t.is(await outcome(open.createService({ expireTime: past })), 'INVALID_ARGUMENT name scopes expire_time')
  t.is(await outcome(open.createService({ name: newName(), scopes: [0] })), 'INVALID_ARGUMENT scopes')
  t.is(await outcome(open.createService({ name: newName(), scopes: [99 as Scope] })), 'INVALID_ARGUMENT scopes')
  const never = { seconds: 2n ** 60n, nanos: 0 }
  t.is(await outcome(open.createServiceKey({ name, expireTime: never })), 'INVALID_ARGUMENT expire_time')
  t.is(await outcome(open.createServiceKey({})), 'INVALID_ARGUMENT name')
  t.is(await outcome(open.createServiceKey({ name: newName() })), 'RECORD_NOT_FOUND')
  t.is(await outcome(open.createServiceKey({ name: 'No Such\u0000' })), 'RECORD_NOT_FOUND')
  t.is(await outcome(open.deleteServiceKey({ name })), 'INVALID_ARGUMENT id')
  t.is(await outcome(open.deleteServiceKey({ name, id: 2 ** 31 - 1 })), 'RECORD_NOT_FOUND')
})

test('of concurrent creations of a service with one name, one succeeds', async t => {
  const name = newName()
  const outcomes = await Promise.all(Array.from({ length: 8 }, () => outcome(open.createService({ name, scopes }))))
  t.deepEqual(outcomes.sort(), [...Array<string>(7).fill('NAME_TAKEN'), 'OK'])
})

test('keys rotate without downtime: a service has two keys until the first is removed', async t => {
  const name = newName()
  const { key: first } = await open.createService({ name, scopes })
  const { key: second, service: both } = await open.createServiceKey({ name })
  t.deepEqual([await ask(first), await ask(second)], ['OK', 'OK'])
  t.deepEqual(
    both?.keys.map(({ beginning }) => beginning),
    [first, second].map(key => key.slice(0, 12)),
  )
  const left = await open.deleteServiceKey({ name, id: both!.keys[0]!.id })
  t.deepEqual(
    left.service?.keys.map(({ id }) => id),
    [both!.keys[1]!.id],
  )
  await waitForValue(() => ask(first), 'INVALID_TOKEN')
  t.is(await ask(second), 'OK')
  // A key can't be deleted through another service.
  const other = newName()
  await open.createService({ name: other, scopes })
  t.is(await outcome(open.deleteServiceKey({ name: other, id: both!.keys[1]!.id })), 'RECORD_NOT_FOUND')
  t.is(await ask(second), 'OK')
  t.deepEqual(await events(name), ['service.add user', 'service.add-key user', 'service.delete-key user'])
})

test('a key expires at the requested time', async t => {
  const name = newName()
  const end = new Date(Date.now() + 90 * 86_400_000)
  const { service: made } = await open.createService({ name, scopes, expireTime: timestampFromDate(end) })
  t.is(timestampDate(made!.keys[0]!.expireTime!).getTime(), end.getTime())
})

test('validate_only stores nothing and returns no key', async t => {
  const name = newName()
  t.is((await open.createService({ name, scopes, validateOnly: true })).key, '')
  t.is(await outcome(open.createServiceKey({ name })), 'RECORD_NOT_FOUND')
  const { key, service: made } = await open.createService({ name, scopes })
  t.is((await open.createServiceKey({ name, validateOnly: true })).key, '')
  await open.deleteServiceKey({ name, id: made!.keys[0]!.id, validateOnly: true })
  await open.deleteService({ name, confirm: name, validateOnly: true })
  const { service: after } = await open.createServiceKey({ name })
  t.is(after?.keys.length, 2)
  t.is(await ask(key), 'OK')
  t.deepEqual(await events(name), ['service.add user', 'service.add-key user'])
})

test('a repeated request with the same id gets the same response without the key, which isn’t stored', async t => {
  const request = { name: newName(), scopes, requestId: randomUUID() }
  const first = await open.createService(request)
  t.is(await ask(first.key), 'OK')
  t.deepEqual(await open.createService(request), { ...first, key: '' })
  const another = { name: request.name, requestId: randomUUID() }
  const second = await open.createServiceKey(another)
  t.is(await ask(second.key), 'OK')
  t.deepEqual(await open.createServiceKey(another), { ...second, key: '' })
  t.is(second.service!.keys.length, 2)

  const rows = await service.registry.database.run<{ requestId: string; answer: Buffer }>(
    sql`SELECT request_id AS "requestId", answer_sealed AS answer FROM creation_requests`,
  )
  for (const { key, requestId } of [
    { ...first, ...request },
    { ...second, ...another },
  ]) {
    const { answer } = rows.find(row => row.requestId === requestId)!
    const kept = service.registry.masterKey.open(`creation-request ${requestId}`, answer)
    t.false(Buffer.from(kept, 'base64').includes(key))
  }
  t.is(await outcome(open.createService({ ...request, name: newName() })), 'INVALID_ARGUMENT request_id')
})

test('deleting a service deletes its keys, and needs its name as confirmation', async t => {
  const name = newName()
  const { key } = await open.createService({ name, scopes })
  t.is(await outcome(open.deleteService({ name })), 'CONFIRMATION_NEEDED confirm')
  t.is(await outcome(open.deleteService({ name, confirm: 'another' })), 'CONFIRMATION_NEEDED confirm')
  t.is(await ask(key), 'OK')
  await open.deleteService({ name, confirm: name })
  await waitForValue(() => ask(key), 'INVALID_TOKEN')
  t.is(await outcome(open.deleteService({ name, confirm: name })), 'RECORD_NOT_FOUND')
  t.deepEqual(await events(name), ['service.add user', 'service.delete user'])
})

test('services are listed by name, each once over all pages', async t => {
  for (let index = 0; index < 5; index++) await open.createService({ name: `paged-${index}`, scopes })
  const found: string[] = []
  let pageToken = ''
  do {
    const page = await open.listServices({ pageSize: 2, pageToken })
    found.push(...page.services.map(({ name }) => name))
    pageToken = page.nextPageToken
  } while (pageToken !== '')
  const paged = found.filter(name => name.startsWith('paged-'))
  t.deepEqual(
    paged,
    [0, 1, 2, 3, 4].map(index => `paged-${index}`),
  )
  t.deepEqual(
    found.filter((name, index) => found.indexOf(name) !== index),
    [],
  )
})
