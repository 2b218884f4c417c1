/** The feed of changes: contents, permissions, and cursors. */
import { randomUUID } from 'node:crypto'
import ava from 'ava'
import { ChangeKind, Restart } from '../../proto/gen/auth/v1/changes_pb.js'
import { signedInForFile } from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { grpcForFile, refusalOf } from '../_helpers/grpc.js'
import { appendMany } from '../_helpers/models.js'
import { password, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'
import { asOf, pollWith, readPages, sizeOf } from '../_helpers/watcher.js'

const test = ava.serial

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_LIMIT_FACTOR: '1000' }))
const client = grpcForFile(service)
const api = signedInForFile(service)
const { REVOCATIONS, USERS } = ChangeKind
let key: string
let poll: ReturnType<typeof pollWith>
ava.before(async () => {
  key = await serviceKey(service, ['tokens.watch', 'users.watch'])
  poll = pollWith(client, key)
})

const must = async (path: string, more: object) => {
  const { status, text } = await service.request('POST', path, more)
  if (status !== 200) throw new Error(`${path}: ${text}`)
}

/** The cursor after all changes: the one of a snapshot of revocations is also valid for users. */
async function end(): Promise<string> {
  await waitForValue(async () => (await service.registry.audit.backlog()).staged, 0)
  return (await readPages(poll)).at(-1)!.cursor
}

/** The reason of a refusal, with the invalid fields. */
const refusalBy = (call: Promise<unknown>) =>
  call.then(
    () => 'OK',
    error => {
      const { info, badRequest } = refusalOf(error)
      return [info?.reason, ...(badRequest?.fieldViolations ?? []).map(({ field }) => field)].join(' ')
    },
  )

/** A change of each way to revoke tokens; conformance/audit-actions.test.ts has all changes. */
const revocations: Record<string, (user: SignedUp) => Promise<unknown>> = {
  'a password update': ({ token }) =>
    must('/forgotpasswords/passwordupdatebyusername', { token, query: { newPassword: `${password}!` } }),
  'a log-out everywhere': ({ token }) => must('/users/revokemytokens', { token }),
  'a suspension': ({ username: user }) => api.suspendUser({ user }),
  async 'the first mailed key that comes back'({ token, username }) {
    await ask(service.env.DATABASE_URL!, `UPDATE users SET email = 'ana@example.org' WHERE id = ${idOf(token)}`)
    await service.registry.mailedKeys.replace(idOf(token), 'recovery', 'ABCD2345')
    await must('/forgotpasswords/loginbyusernameandkey', { query: { username, key: 'ABCD2345' } })
  },
  'a deletion by the user': ({ token }) => must('/users/me/delete', { token, body: { password } }),
}

test('every kind of revocation ends a poll that waits', async t => {
  for (const [what, revoke] of Object.entries(revocations)) {
    const user = await service.signUp('ROLE_CLIENT')
    const cursor = await end()
    const waiting = poll({ cursor, ms: 10_000 })
    await revoke(user)
    const done = performance.now()
    const { revocations: found, ...rest } = await waiting
    t.true(performance.now() - done < 5_000, what)
    const { sub, ver } = claimsOf(user.token)
    t.like(found, { length: 1, 0: { sub, minGeneration: ver + 1 } }, what)
    t.like(rest, { userIds: [], retiredKeys: [], more: false, restart: 0 }, what)
  }
})

test('an erasure sends the greatest possible generation', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const cursor = await end()
  await api.eraseUser({ user: username, confirm: username })
  const { revocations } = await poll({ cursor, ms: 10_000 })
  t.like(revocations, [{ sub: String(idOf(token)), minGeneration: 2_147_483_647 }])
})

test('a key retired at once is sent to watchers of revocations only', async t => {
  const { key: added } = await api.rotateSigningKey({})
  const both = await end()
  await api.retireSigningKey({ kid: added!.kid, confirm: added!.kid })
  const { retiredKeys, revocations } = await poll({ cursor: both, ms: 10_000 })
  t.deepEqual([retiredKeys, revocations], [[added!.kid], []])
  t.like(await poll({ cursor: both, kinds: [USERS] }), { retiredKeys: [], revocations: [] })
  // A key that is rotated still verifies.
  await api.rotateSigningKey({})
  t.deepEqual((await poll({ cursor: (await poll({ cursor: both })).cursor, ms: 1_000 })).retiredKeys, [])
})

test('a watcher of users gets the ids of users whose record was created, changed or deleted, and no other', async t => {
  const kinds = [USERS]
  const user = await service.signUp('ROLE_CLIENT')
  const [username, id] = [randomUUID(), idOf(user.token)]
  const changes: Record<string, () => Promise<unknown>> = {
    'a sign-up': async () => idOf((await service.signUp('ROLE_CLIENT')).token),
    'an edit': () =>
      api.updateUser({ user: user.username, form: { city: 'Marília' }, updateMask: { paths: ['city'] } }),
    'another username': () => must('/users/me/username', { token: user.token, body: { username, password } }),
    suspension: () => api.suspendUser({ user: username }),
    erasure: () => api.eraseUser({ user: username, confirm: username }),
  }
  for (const [what, change] of Object.entries(changes)) {
    const cursor = await end()
    const waiting = poll({ cursor, kinds, ms: 10_000 })
    const changed = await change()
    const { userIds, organizationIds, revocations } = await waiting
    t.deepEqual([userIds, organizationIds, revocations], [[typeof changed === 'number' ? changed : id], [], []], what)
  }

  const other = await service.signUp('ROLE_CLIENT')
  const cursor = await end()
  await service.login(other.username)
  await api.revokeTokens({ user: other.username })
  t.deepEqual((await poll({ cursor, kinds, ms: 1_500 })).userIds, [])
})

test('a change of an organization has the id of the organization', async t => {
  const { id } = await service.organization()
  const cursor = await end()
  const waiting = poll({ cursor, kinds: [USERS], ms: 10_000 })
  await api.updateOrganization({ organization: `#${id}`, form: { phone: '1' }, updateMask: { paths: ['phone'] } })
  t.like(await waiting, { organizationIds: [id], userIds: [] })
})

test('a watcher of users starts at the end of the feed, without waiting', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const cursor = await end()
  const from = performance.now()
  const first = await poll({ kinds: [USERS], ms: 10_000 })
  t.true(performance.now() - from < 8_000)
  t.deepEqual([first.userIds, first.revocations, first.more], [[], [], false])
  await must('/users/revokemytokens', { token })
  t.like(await poll({ kinds: [USERS], cursor }), { userIds: [], revocations: [] })
})

test('without a change a poll waits for the requested time, at most 10 seconds, and as_of advances', async t => {
  const first = await poll({ kinds: [USERS], cursor: await end() })
  const from = performance.now()
  const second = await poll({ kinds: [USERS], cursor: first.cursor, ms: 1_200 })
  const took = performance.now() - from
  t.true(took > 1_100, `${took}`)
  t.true(asOf(second) - asOf(first) > took / 4, `${asOf(second) - asOf(first)} in ${took}`)
  t.is((await poll({ kinds: [USERS], cursor: second.cursor })).restart, Restart.UNSPECIFIED)
})

test('a poll whose caller has less time ends before the deadline', async t => {
  const cursor = await end()
  for (const seconds of [10n, 9_223_372_036_854_775_807n]) {
    const attempt = () => poll({ cursor, wait: { seconds } }, { deadline: Date.now() + 2_500 })
    // A machine that stalls for half a second misses one deadline.
    await t.notThrowsAsync(attempt().catch(attempt))
  }
})

test('each kind needs its scope', async t => {
  const [tokens, users] = [await serviceKey(service, ['tokens.watch']), await serviceKey(service, ['users.watch'])]
  for (const [by, kinds, outcome] of [
    [tokens, [REVOCATIONS], 'OK'],
    [users, [USERS], 'OK'],
    [key, [USERS, REVOCATIONS], 'OK'],
    [tokens, [USERS], 'ACCESS_DENIED'],
    [users, [REVOCATIONS], 'ACCESS_DENIED'],
    [users, [USERS, REVOCATIONS], 'ACCESS_DENIED'],
  ] as const)
    t.is(await refusalBy(pollWith(client, by)({ kinds: [...kinds] })), outcome)
})

test('the refusal of a malformed request lists all invalid fields', async t => {
  for (const kinds of [[], [REVOCATIONS, 7 as ChangeKind], [0]])
    t.is(await refusalBy(poll({ kinds })), 'INVALID_ARGUMENT kinds')
  t.is(await refusalBy(poll({ ms: -1 })), 'INVALID_ARGUMENT wait')
  for (const cursor of ['1', ':', '1:x', '-1:00', '1:00 ', `1:${'0'.repeat(65)}`, `${'1'.repeat(400)}:00`, '1:AB']) {
    t.is(await refusalBy(poll({ cursor })), 'INVALID_ARGUMENT cursor', cursor)
  }
  t.is(await refusalBy(poll({ kinds: [], ms: -1, cursor: 'x' })), 'INVALID_ARGUMENT kinds wait cursor')
})

test('over Connect a poll is plain JSON', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const ask = async (body: object) =>
    (await service.request('POST', '/auth.v1.Changes/Poll', { token: key, body })).json as Record<string, unknown>
  const cursor = await end()
  await must('/users/revokemytokens', { token })
  const body = { cursor, wait: '10s', kinds: ['CHANGE_KIND_REVOCATIONS'] }
  const { asOf, now, cursor: next, revocations, ...rest } = await ask(body)
  t.deepEqual(revocations, [{ sub: claimsOf(token).sub, minGeneration: 1 }])
  for (const time of [asOf, now]) t.regex(String(time), /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/)
  t.regex(String(next), /^\d+:[0-9a-f]{64}$/)
  t.deepEqual(rest, {})
  const lost = await ask({ ...body, cursor: `${next}`.replace(/.$/, last => (last === '0' ? '1' : '0')) })
  t.is(lost.restart, 'RESTART_CURSOR_LOST')
  t.is((await ask({ cursor: next, kinds: ['CHANGE_KIND_USERS'] })).restart, undefined)
})

test('pages have at most 1,000 changes and 1 MB, in the order of sealing', async t => {
  const cursor = await end()
  const count = 2_500
  const event = { action: 'user.revoke-tokens', outcome: 'ok', actor: 'service' } as const
  await appendMany(
    service.registry,
    Array.from({ length: count }, (_, n) => ({ ...event, subject_id: 1e9 + n })),
  )
  for (const from of [cursor, '']) {
    const pages = await readPages(poll, { cursor: from, wait: { seconds: 10n } })
    const ours = pages.map(({ revocations }) => revocations.filter(({ sub }) => Number(sub) >= 1e9))
    const numbers = ours.flat().map(({ sub }) => Number(sub) - 1e9)
    t.deepEqual(numbers, [...Array(count).keys()])
    t.true(pages.length >= 3)
    for (const [index, page] of pages.entries()) {
      t.true(page.revocations.length <= 1_000 && sizeOf(page) <= 1e6)
      const isLast = index === pages.length - 1
      t.deepEqual([page.more, page.asOf !== undefined], [!isLast, isLast])
    }
  }
})

test('the snapshot has every revocation that can concern a valid token, and no older one', async t => {
  const [old, recent] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const subs = async () => {
    const found = (await readPages(poll)).flatMap(({ revocations }) => revocations)
    return [old, recent].filter(({ token }) => found.some(({ sub }) => sub === claimsOf(token).sub))
  }
  const age = (user: SignedUp, hours: number) =>
    service.registry.database.sequelize.query(
      `UPDATE audit_events SET at = at - interval '${hours} hours' WHERE subject_id = ${idOf(user.token)}`,
    )
  for (const { token } of [old, recent]) await must('/users/revokemytokens', { token })
  await waitForValue(async () => (await subs()).length, 2)
  // Tokens are valid for an hour.
  await age(old, 3)
  await age(recent, 1)
  t.deepEqual(await subs(), [recent])
  // Those of an earlier key may be valid for longer.
  await api.rotateSigningKey({})
  await service.registry.database.sequelize.query(
    'UPDATE signing_keys SET token_ttl = 4 * 3600 WHERE signs_at = (SELECT min(signs_at) FROM signing_keys)',
  )
  t.deepEqual(await subs(), [old, recent])
})
