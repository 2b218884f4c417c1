/** Rotating the provider key of an institution, by its owner and by administrators. */

import { createHash, randomUUID } from 'node:crypto'
import test from 'ava'
import pg from 'pg'
import { ImportKind } from '../../proto/gen/auth/v1/administration_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { sql } from '../../server/database/sql.js'
import { openAdministration, reasonOf, signedInForFile } from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { grpcForFile } from '../_helpers/grpc.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { endsOrWaits, lockWaiters } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { type SignedUp, serviceForFile } from '../_helpers/service.js'
import { stopEvents } from '../_helpers/stopped.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url }))
const api = signedInForFile(service)
const client = grpcForFile(service)

const rotate = (token: string) => service.request('POST', '/users/me/providerkey', { token, once: true })
const keyOf = async (token: string) =>
  (await service.request('GET', '/users/me', { token })).json.providerActivationKey?.activationkey
const activate = ({ username, token }: SignedUp, activationkey: string) =>
  service.request('POST', '/users/activate', { token, query: { username, activationkey }, once: true })
const eventsOf = (subjectId: number) =>
  service.registry.audit.list({ action: 'user.rotate-provider-key', subjectId, limit: 10 })

/** Imports a row of users, which may move a user to another organization. */
async function importing(row: object) {
  const sourceDigest = createHash('sha256').update(randomUUID()).digest('hex')
  const { import: started } = await api.startImport({
    kind: ImportKind.USERS,
    sourceDigest,
    changeAccounts: ['organization'],
  })
  const { updated } = await api.importBatch({ id: started!.id, users: [row] })
  if (updated !== 1) throw new Error('The row was rejected.')
}

/** An institution with an e-mail address. */
async function institution(): Promise<SignedUp & { email: string; providerKey: string }> {
  const { activationkey } = await service.organization()
  const email = `prov.${claimsOf((await service.signUp('ROLE_CLIENT')).token).jti}@example.org`
  const user = await service.signUp('ROLE_INSTITUTION', { email })
  const { status, text } = await activate(user, activationkey)
  if (status !== 200) throw new Error(text)
  return { ...user, email, providerKey: await keyOf(user.token) }
}

test('an institution replaces its provider key: the new one activates, the former one doesn’t, and clients stay active', async t => {
  const owner = await institution()
  const [before, late, after] = [
    await service.signUp('ROLE_CLIENT'),
    await service.signUp('ROLE_CLIENT'),
    await service.signUp('ROLE_CLIENT'),
  ]
  t.is((await activate(before, owner.providerKey)).status, 200)
  const answer = await rotate(owner.token)
  t.is(answer.status, 200, answer.text)
  const { providerActivationKey: key, username } = answer.json
  t.is(username, owner.username)
  t.is(key.usersid, idOf(owner.token))
  t.not(key.activationkey, owner.providerKey)
  t.is(await keyOf(owner.token), key.activationkey)
  refused(t, await activate(late, owner.providerKey), 422, 'ACTIVATION_REFUSED')
  t.is((await activate(after, key.activationkey)).status, 200)
  t.is((await service.request('GET', '/users/me', { token: before.token })).json.active, 1)
})

test('the owner is notified of a new provider key by e-mail, which doesn’t hold it, and the audit log names who did it', async t => {
  const owner = await institution()
  const { user } = await client.call(Users.method.rotateProviderKey, {}, { token: owner.token })
  const key = user!.providerActivationKey!.activationkey!
  const { subject, text = '' } = await mailbox.nextEmail(owner.email)
  t.regex(subject ?? '', /chave de ativação/)
  t.true(text.includes('127.0.0.1'), text)
  t.false(text.includes(key) || text.includes(owner.providerKey))
  const id = idOf(owner.token)
  const [event, ...others] = await eventsOf(id)
  t.like(event, { actor: 'user', actor_id: id, outcome: 'ok' })
  t.is(others.length, 0)
})

test('only an active ROLE_INSTITUTION has a provider key to replace', async t => {
  const { token } = await service.signUp('ROLE_INSTITUTION')
  refused(t, await rotate(token), 409, 'WRONG_STATE')
  refused(t, await rotate((await service.signUp('ROLE_CLIENT')).token), 403, 'ACCESS_DENIED')
  refused(t, await rotate(await service.adminToken()), 403, 'ACCESS_DENIED')
  refused(t, await service.request('POST', '/users/me/providerkey'), 403, 'ACCESS_DENIED')
  const suspended = await institution()
  await api.suspendUser({ user: suspended.username })
  refused(t, await rotate(suspended.token), 500, 'INVALID_TOKEN')
  t.is((await eventsOf(idOf(suspended.token))).length, 0)
})

test('of rotations at once each caller gets another key, and the stored key is the one of the last', async t => {
  const { token } = await institution()
  const answers = await Promise.all(Array.from({ length: 8 }, () => rotate(token)))
  t.deepEqual([...new Set(answers.map(({ status }) => status))], [200])
  const keys = answers.map(({ json }) => json.providerActivationKey.activationkey)
  t.is(new Set(keys).size, 8)
  const working = await keyOf(token)
  t.true(keys.includes(working))
  for (const key of keys) {
    const { status } = await activate(await service.signUp('ROLE_CLIENT'), key)
    t.is(status, key === working ? 200 : 422)
  }
})

test.serial(
  'an activation in progress keeps its key until it ends, and one that waits for a rotation is refused',
  async t => {
    const [one, other] = [await institution(), await institution()]
    const [first, second] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
    t.deepEqual(
      await stopEvents(t, service, [() => activate(first, one.providerKey), () => rotate(one.token)]),
      [200, 200],
    )
    t.deepEqual(
      await stopEvents(t, service, [() => rotate(other.token), () => activate(second, other.providerKey)]),
      [200, 422],
    )
  },
)

test('an activation locks the provider before its key, as a rotation does, so that the two never deadlock', async t => {
  const owner = await institution()
  const rotation = new pg.Client({ connectionString: service.env.DATABASE_URL! })
  await rotation.connect()
  t.teardown(() => rotation.end())
  const id = idOf(owner.token)
  await rotation.query(`BEGIN; SET lock_timeout = '1s'; SELECT FROM users WHERE id = ${id} FOR NO KEY UPDATE`)
  const activation = activate(await service.signUp('ROLE_CLIENT'), owner.providerKey)
  await waitForValue(
    () => lockWaiters(service.registry.database, '%provider_keys%'),
    value => value > 0,
  )
  await t.notThrowsAsync(rotation.query(`UPDATE provider_keys SET key_digest = key_digest WHERE user_id = ${id}`))
  await rotation.query('ROLLBACK')
  t.is((await activation).status, 200)
})

test('an administrator replaces the provider key of a user, who is notified; a dry run and a stale etag change nothing', async t => {
  const owner = await institution()
  const user = owner.username
  const { etag } = (await api.getUser({ user, omitKeys: true })).user!
  const dry = await api.rotateProviderKey({ user, etag, validateOnly: true })
  t.not(dry.user!.record!.providerActivationKey!.activationkey, owner.providerKey)
  t.is(await keyOf(owner.token), owner.providerKey)
  t.is(await reasonOf(api.rotateProviderKey({ user, etag: 'stale' })), 'STALE_ETAG')
  t.is(await reasonOf(api.rotateProviderKey({ user: (await service.signUp('ROLE_CLIENT')).username })), 'WRONG_STATE')
  t.is(await keyOf(owner.token), owner.providerKey)
  const rotated = await api.rotateProviderKey({ user, etag })
  const key = rotated.user!.record!.providerActivationKey!.activationkey
  t.is(await keyOf(owner.token), key)
  t.not(key, owner.providerKey)
  await mailbox.nextEmail(owner.email)
  const admin = idOf(await service.adminToken())
  t.like(await eventsOf(idOf(owner.token)), { length: 1, 0: { actor_id: admin } })
  // Sessions of users have no access here.
  t.is(await reasonOf(openAdministration(t, service, owner.token).rotateProviderKey({ user })), 'INVALID_TOKEN')
})

test('a provider key ends when its owner changes the organization, and the owner, still active, gets another key and an e-mail', async t => {
  const file = (user: string, fields: object) => importing({ form: { username: user }, ...fields })
  const changes: Record<string, (user: string, organization: number) => Promise<unknown>> = {
    SetOrganization: (user, id) => api.setOrganization({ user, organization: `#${id}` }),
    ActivateUser: (user, id) => api.activateUser({ user, organization: `#${id}` }),
    import: (user, organizationId) => file(user, { organizationId }),
  }
  for (const [by, change] of Object.entries(changes)) {
    const owner = await institution()
    const [late, after] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
    const { id } = await service.organization()
    await change(owner.username, id)
    const key = await keyOf(await service.login(owner.username))
    t.regex(key, /^[\da-f-]{36}$/, by)
    t.not(key, owner.providerKey, by)
    refused(t, await activate(late, owner.providerKey), 422, 'ACTIVATION_REFUSED')
    t.is((await activate(after, key)).status, 200, by)
    const { partnerOrganization } = (await service.request('GET', '/users/me', { token: after.token })).json
    t.is(partnerOrganization.id, id)
    const { subject, text = '' } = await mailbox.nextEmail(owner.email)
    t.regex(subject ?? '', /chave de ativação/, by)
    t.false(text.includes(key) || text.includes(owner.providerKey))
  }
})

test('a provider key ends with the role, with deactivation and with the membership, and only a suspension brings it back', async t => {
  const refusedAfter = async (
    change: (user: string) => Promise<unknown>,
    restore: (user: string) => Promise<unknown>,
  ) => {
    const owner = await institution()
    const [during, after] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
    await change(owner.username)
    refused(t, await activate(during, owner.providerKey), 422, 'ACTIVATION_REFUSED')
    await restore(owner.username)
    return (await activate(after, owner.providerKey)).status
  }
  const { id } = await service.organization()
  const join = (user: string) => api.activateUser({ user, organization: `#${id}` })
  t.is(
    await refusedAfter(
      user => api.suspendUser({ user }),
      user => api.resumeUser({ user }),
    ),
    200,
  )
  t.is(
    await refusedAfter(
      user => api.deleteUser({ user }),
      user => api.undeleteUser({ user }),
    ),
    200,
  )
  t.is(
    await refusedAfter(
      user => api.setRole({ user, role: 'ROLE_CLIENT' }),
      user => api.setRole({ user, role: 'ROLE_INSTITUTION' }),
    ),
    422,
  )
  t.is(await refusedAfter(user => api.setOrganization({ user }), join), 422)
  // No endpoint deactivates an institution: whatever does, ends the key.
  const deactivate = (user: string) =>
    ask(service.env.DATABASE_URL!, `UPDATE users SET active = false WHERE username = '${user}'`)
  t.is(await refusedAfter(deactivate, join), 422)
})

// Before the concurrent tests, whose locks others wait for.
test.serial('a change of the profile that waited for a new provider key answers with that key', async t => {
  const { token } = await institution()
  const { database, users, administeredUsers } = service.registry
  const [id, former] = [idOf(token), await keyOf(token)]
  let answer: ReturnType<typeof service.request> | undefined
  await database.transact(async transaction => {
    const owner = (await administeredUsers.lock(id, transaction))!
    await users.rotateProviderKey(owner, { address: '192.0.2.1', locale: 'en' }, transaction)
    answer = service.request('PATCH', '/users/me', { token, body: { record: { nickname: owner.nickname } } })
    await endsOrWaits(database, answer)
  })
  const { status, json } = (await answer)!
  t.is(status, 200)
  t.not(json.providerActivationKey.activationkey, former)
  t.is(json.providerActivationKey.activationkey, await keyOf(token))
})

test('no table has a provider key in the clear', async t => {
  const { token } = await institution()
  const key = (await rotate(token)).json.providerActivationKey.activationkey
  const { database } = service.registry
  const found = await database.run<{
    text: string
  }>(sql`SELECT to_jsonb(k)::text AS text FROM provider_keys k UNION ALL SELECT to_jsonb(e)::text FROM audit_staged e
        UNION ALL SELECT to_jsonb(e)::text FROM audit_events e UNION ALL SELECT to_jsonb(m)::text FROM emails m`)
  t.true(found.length > 0)
  t.false(found.some(({ text }) => text.includes(key)))
})
