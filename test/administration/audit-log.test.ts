/** The audit log of administrators: lists by page and filter, follow requests, and verification in several calls. */
import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import test from 'ava'
import type { AuditEvent } from '../../server/models/audit.js'
import { type AdministrationClient, allPages, openLocal, openSignedIn, reasonOf } from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { appendMany } from '../_helpers/models.js'
import { startTestService, type TestService } from '../_helpers/service.js'

const settings = { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }

/** Appends events and seals them. */
const append = ({ registry }: TestService, ...events: object[]) =>
  appendMany(
    registry,
    events.map(event => ({ outcome: 'ok', actor: 'user', ...event }) as AuditEvent),
  )

/** Appends that many sign-ins and seals them. */
const appendSignIns = (service: TestService, count: number) =>
  append(service, ...Array.from({ length: count }, () => ({ action: 'session.login' })))

type Filter = Parameters<AdministrationClient['listAuditEvents']>[0]

/** All events that match, page by page. */
const list = (api: AdministrationClient, filter: Filter = {}, pageSize = 1000) =>
  allPages(
    pageToken => api.listAuditEvents({ ...filter, pageSize, pageToken }),
    ({ events }) => events,
  )

test('events are listed newest first, filter by user, actor, action, outcome and time, and appear on exactly one page', async t => {
  const service = await startTestService(t, settings)
  const api = await openLocal(t, service)
  const { username } = await service.signUp('ROLE_CLIENT')
  const [{ id: ana }] = (await ask(service.env.DATABASE_URL!, 'SELECT max(id) AS id FROM users')) as [{ id: number }]
  await append(
    service,
    { action: 'user.edit', actor_id: 1, subject_id: ana },
    { action: 'user.change-password', actor_id: ana, subject_id: ana },
    { action: 'organization.add', actor_id: 1, object: 'organization:1' },
    { action: 'user.edit', actor_id: ana, subject_id: 1, outcome: 'refused', reason: 'ACCESS_DENIED' },
    { action: 'user_edit', actor_id: 1 },
  )
  const actions = async (filter: Filter) => (await list(api, filter)).map(({ action }) => action)
  t.deepEqual(await actions({ user: username }), ['user.change-password', 'user.edit', 'user.sign-up'])
  t.deepEqual(await actions({ actor: username }), ['user.edit', 'user.change-password'])
  t.deepEqual(await actions({ actor: '#1', user: `#${ana}` }), ['user.edit'])
  t.deepEqual(await actions({ actor: 'admin' }), ['user_edit', 'organization.add', 'user.edit'])
  t.deepEqual(await actions({ action: 'user.*', outcome: 'refused' }), ['user.edit'])
  // Only * is a wildcard.
  t.deepEqual(await actions({ action: 'user_edit' }), ['user_edit'])
  t.deepEqual(await actions({ action: 'user%' }), [])
  t.deepEqual(await actions({ timeFrom: timestampFromDate(new Date(Date.now() + 60_000)) }), [])
  t.deepEqual(await actions({ timeTo: timestampFromDate(new Date(Date.now() - 600_000)) }), [])
  const noon = new Date('2026-01-02T12:00:00Z')
  await ask(
    service.env.DATABASE_URL!,
    `UPDATE audit_events SET at = '${noon.toISOString()}' WHERE action = 'user_edit'`,
  )
  const later = timestampFromDate(new Date(noon.getTime() + 1))
  t.deepEqual(await actions({ timeFrom: timestampFromDate(noon), timeTo: later }), ['user_edit'])
  t.deepEqual(await actions({ timeTo: timestampFromDate(noon) }), [])

  const all = await list(api)
  const ids = all.map(({ id }) => id)
  t.deepEqual(
    ids,
    ids.toSorted((a, b) => Number(b! - a!)),
  )
  for (const size of [1, 2, 4]) t.deepEqual(await list(api, {}, size), all)
  for (const size of [1, 2]) t.is((await list(api, { actor: 'admin' }, size)).length, 3)
  const refused = all.find(({ outcome, action }) => outcome === 'refused' && action === 'user.edit')
  t.like(refused, { reason: 'ACCESS_DENIED', actor: 'user', actorId: ana, subjectId: 1, object: undefined })

  const { nextPageToken: pageToken } = await api.listAuditEvents({ pageSize: 1 })
  t.is(await reasonOf(api.listAuditEvents({ action: 'user.*', pageToken })), 'INVALID_ARGUMENT')
  t.is(await reasonOf(api.listAuditEvents({ outcome: 'good' })), 'INVALID_ARGUMENT')
  t.is(await reasonOf(api.listAuditEvents({ user: 'no such user' })), 'USER_NOT_FOUND')
})

test('the events of a user include imports that created or changed it, sealed or not, and no others', async t => {
  const service = await startTestService(t, settings)
  const api = await openLocal(t, service)
  await append(
    service,
    { action: 'user.import', object: 'import:1 created:10-20,30 updated:25' },
    { action: 'user.import', object: 'import:2 updated:7,15,300', actor_id: 1 },
    // The ids of these are of organizations, of another event, or the id of the import.
    { action: 'organization.import', object: 'import:3 created:10-20' },
    { action: 'user.export-secrets', object: '10-20' },
    { action: 'user.import', object: 'import:15 created:1000' },
    { action: 'user.edit', subject_id: 15 },
  )
  const objects = async (user: number, filter: Filter = {}, size?: number) =>
    (await list(api, { user: `#${user}`, ...filter }, size)).map(({ action, object }) => object ?? action)
  const [first, second] = ['import:1 created:10-20,30 updated:25', 'import:2 updated:7,15,300']
  t.deepEqual(await objects(15), ['user.edit', second, first])
  t.deepEqual(await objects(15, {}, 1), ['user.edit', second, first])
  t.deepEqual(await objects(15, { action: 'user.import' }), [second, first])
  t.deepEqual(await objects(15, { actor: '#1' }), [second])
  for (const user of [10, 20, 30, 25]) t.deepEqual(await objects(user), [first], `user ${user}`)
  for (const user of [7, 300]) t.deepEqual(await objects(user), [second], `user ${user}`)
  for (const user of [21, 29, 9, 2]) t.deepEqual(await objects(user), [], `user ${user}`)
  t.deepEqual(await objects(1000), ['import:15 created:1000'])
  // Follow requests filter alike.
  const { nextPageToken } = await api.listAuditEvents({ user: '#15', follow: true })
  await append(
    service,
    { action: 'user.import', object: first },
    { action: 'user.import', object: 'import:9 created:99' },
  )
  const { events } = await api.listAuditEvents({ user: '#15', follow: true, pageToken: nextPageToken })
  t.like(events, { length: 1, 0: { object: first } })
})

test('one call reads at most 100,000 events, and neither a list nor a follow request loses one at that boundary', async t => {
  const service = await startTestService(t, settings)
  const api = await openLocal(t, service)
  await append(service)
  const url = service.env.DATABASE_URL!
  const filter = { action: 'user.delete' }
  const begun = await api.listAuditEvents({ ...filter, follow: true })
  const [{ newest }] = (await ask(url, 'SELECT id::int AS newest FROM audit_head')) as [{ newest: number }]
  const last = newest + 200_010
  // Around the ids at which a list from the end stops, and a follow request.
  const ends = [last + 1 - 100_000, last + 1 - 200_000, newest + 100_000, newest + 200_000]
  const marked = [...new Set(ends.flatMap(end => [end - 1, end, end + 1]))].sort((a, b) => a - b)
  // Requests count ids, so the events between need no rows.
  await ask(
    url,
    `BEGIN;
    INSERT INTO audit_events (id, at, action, outcome, actor, mac, hash)
      SELECT n, now(), 'user.delete', 'ok', 'user', '', '' FROM unnest('{${marked}}'::int[]) n;
    UPDATE audit_head SET id = ${last};
    COMMIT`,
  )
  const one = await api.listAuditEvents({ action: 'user.add' })
  t.deepEqual([one.events.length, one.nextPageToken === ''], [0, false])
  // Events before the requested time aren't read.
  const timeFrom = timestampFromDate(new Date(Date.now() + 7_200_000))
  t.is((await api.listAuditEvents({ ...filter, timeFrom })).nextPageToken, '')
  const newestFirst = marked.toReversed()
  for (const pageSize of [1, 2, 1000]) {
    const ids = (await list(api, filter, pageSize)).map(({ id }) => Number(id))
    t.deepEqual(ids, newestFirst, String(pageSize))

    const followed: number[] = []
    let { nextPageToken: pageToken } = begun
    for (let times = 0; times < marked.length + 1; times++) {
      const page = await api.listAuditEvents({ ...filter, follow: true, pageSize, pageToken })
      followed.push(...page.events.map(({ id }) => Number(id)))
      pageToken = page.nextPageToken
    }
    t.deepEqual(followed, marked, String(pageSize))
  }
})

test('a follow request returns each event after its token once, oldest first, as soon as the event is sealed', async t => {
  const service = await startTestService(t, settings)
  const api = await openSignedIn(t, service)
  await append(service, { action: 'user.edit' })
  const begun = await api.listAuditEvents({ follow: true, action: 'user.*' })
  t.deepEqual(begun.events, [])
  await append(service, { action: 'user.add' }, { action: 'session.login' }, { action: 'user.delete' })
  const seen: string[] = []
  let pageToken = begun.nextPageToken
  for (let times = 0; times < 5; times++) {
    const page = await api.listAuditEvents({ follow: true, action: 'user.*', pageSize: 1, pageToken })
    seen.push(...page.events.map(({ action }) => action))
    pageToken = page.nextPageToken
  }
  t.deepEqual(seen, ['user.add', 'user.delete'])
  await append(service, { action: 'user.edit' })
  const { events } = await api.listAuditEvents({ follow: true, action: 'user.*', pageSize: 1, pageToken })
  t.like(events, { length: 1, 0: { action: 'user.edit' } })
})

test('a long log is verified in several calls, despite concurrent writes and deletions, and against a known link', async t => {
  const service = await startTestService(t, settings)
  const api = await openSignedIn(t, service)
  await appendSignIns(service, 25_000)
  const first = await api.verifyAuditLog({})
  t.is(first.events, 20_000n)
  t.is(first.broken, undefined)
  const whole = await api.verifyAuditLog({ pageToken: first.nextPageToken })
  t.is(whole.nextPageToken, '')
  t.true(whole.events >= 25_000n)
  t.is(whole.broken, undefined)

  await appendSignIns(service, 10)
  const longer = await api.verifyAuditLog({ pageToken: first.nextPageToken })
  t.true(longer.events >= whole.events + 10n)
  t.is(longer.broken, undefined)

  const known = whole.newest
  const compared = await api.verifyAuditLog({ known })
  t.is((await api.verifyAuditLog({ known, pageToken: compared.nextPageToken })).broken, undefined)
  t.is(await reasonOf(api.verifyAuditLog({ pageToken: compared.nextPageToken })), 'INVALID_ARGUMENT')
  t.is(await reasonOf(api.verifyAuditLog({ known: 'x' })), 'INVALID_ARGUMENT')
  const wrong = `24000:${'0'.repeat(64)}`
  const other = await api.verifyAuditLog({ known: wrong })
  t.is((await api.verifyAuditLog({ known: wrong, pageToken: other.nextPageToken })).broken, '24000')

  // Old events are deleted after the part that was verified.
  await ask(service.env.DATABASE_URL!, `UPDATE audit_events SET action = 'session.forged' WHERE id = 24500`)
  t.is((await api.verifyAuditLog({ pageToken: first.nextPageToken })).broken, '24500')
  await ask(service.env.DATABASE_URL!, `UPDATE audit_events SET action = 'session.login' WHERE id = 24500`)
  await service.registry.audit.pruneOlder(0)
  const rest = await api.verifyAuditLog({ pageToken: first.nextPageToken })
  t.is(rest.broken, undefined)
  t.is(rest.nextPageToken, '')
})
