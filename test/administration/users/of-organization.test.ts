/** A closed school: its members are suspended together, and resumed together. */
import test from 'ava'
import { anotherAdministrator, reasonOf, signedInForFile } from '../../_helpers/administration.js'
import { ask } from '../../_helpers/database.js'
import { openSchool } from '../../_helpers/school.js'
import { serviceForFile } from '../../_helpers/service.js'
import { idOf } from '../../_helpers/tokens.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const api = signedInForFile(service)
const sql = (text: string) => ask(service.env.DATABASE_URL!, text)
const me = async (token: string) => (await service.request('GET', '/users/me', { token })).status

test('the members of an organization are suspended once their number is confirmed, and resumed, but not who was suspended alone', async t => {
  const school = await openSchool(service)
  const [first, second, alone, holder] = [
    await school.member(),
    await school.member(),
    await school.member(),
    await school.member(),
  ]
  await api.suspendUser({ user: alone.username })
  await api.grantDesk({ user: holder.username })
  const chief = await anotherAdministrator(t, service, api)
  await api.setOrganization({ user: chief.username, organization: `#${school.id}` })
  const organization = `#${school.id}`

  t.is((await api.suspendUsers({ organization, validateOnly: true })).users, 3)
  for (const confirm of [undefined, 2, 4])
    t.is(await reasonOf(api.suspendUsers({ organization, confirm })), 'CONFIRMATION_NEEDED')
  t.is(await me(first.token), 200)
  t.like(await api.suspendUsers({ organization, confirm: 3 }), { users: 3, nextPageToken: '' })
  for (const { token } of [first, second, school.institution]) t.is(await me(token), 500)
  t.is(await me(holder.token), 200)
  t.is((await api.getUser({ user: chief.username })).user!.suspended, false)
  const { events } = await api.listAuditEvents({ user: first.username, action: 'user.suspend' })
  t.like(events[0], { object: `organization:${school.id}`, actorId: 1 })

  t.is((await api.resumeUsers({ organization, validateOnly: true })).users, 3)
  t.is(await reasonOf(api.resumeUsers({ organization, confirm: 4 })), 'CONFIRMATION_NEEDED')
  // One of them was resumed and suspended again by itself: it no longer belongs to the others.
  await api.resumeUser({ user: second.username })
  await api.suspendUser({ user: second.username })
  t.is((await api.resumeUsers({ organization, confirm: 2 })).users, 2)
  const suspended = async ({ username }: { username: string }) =>
    (await api.getUser({ user: username })).user!.suspended
  t.deepEqual([await suspended(first), await suspended(second), await suspended(alone)], [false, true, true])
  // Tokens of before stay revoked.
  t.is(await me(first.token), 500)
})

test('more members than a call changes are suspended in pages, of which an interrupted one is begun again with the number of the rest', async t => {
  const { id } = await service.organization()
  await sql(`INSERT INTO users (username, username_key, nickname, nickname_key, username_skeleton, nickname_skeleton,
      password_hash, state, city, terms_of_usage, role, active, organization_id)
    SELECT n, n, n, n, n, n, '', 'SP', 'Assis', false, 'ROLE_CLIENT', true, ${id}
    FROM (SELECT 'aluno-${id}-' || i AS n FROM generate_series(1, 51) AS i) names`)
  const organization = `#${id}`
  const first = await api.suspendUsers({ organization, confirm: 51 })
  const second = await api.suspendUsers({ organization, confirm: 51, pageToken: first.nextPageToken })
  t.deepEqual([first.users, second.users], [25, 25])
  // Its answer was lost.
  t.is(await reasonOf(api.suspendUsers({ organization, confirm: 51 })), 'CONFIRMATION_NEEDED')
  t.is((await api.suspendUsers({ organization, validateOnly: true })).users, 1)
  t.like(await api.suspendUsers({ organization, confirm: 1 }), { users: 1, nextPageToken: '' })
  const [row] = await sql(`SELECT count(*) FROM users WHERE organization_id = ${id} AND suspended`)
  t.is(row!.count, '51')
  // A token of another confirmation, or of another organization, continues nothing.
  const other = `#${(await service.organization()).id}`
  for (const request of [
    { organization, confirm: 7 },
    { organization: other, confirm: 51 },
  ])
    t.is(await reasonOf(api.suspendUsers({ ...request, pageToken: first.nextPageToken })), 'INVALID_ARGUMENT')
})

test('of two calls at once each member is suspended by one', async t => {
  const school = await openSchool(service)
  const members = [school.institution, await school.member(), await school.member()]
  const call = () => api.suspendUsers({ organization: `#${school.id}`, confirm: 3 })
  const both = await Promise.all(
    [call(), call()].map(each =>
      each.then(
        ({ users }) => users,
        () => 0,
      ),
    ),
  )
  t.is(
    both.reduce((sum, users) => sum + users, 0),
    3,
  )
  for (const { token } of members) {
    const { events } = await api.listAuditEvents({ user: `#${idOf(token)}`, action: 'user.suspend' })
    t.is(events.length, 1)
  }
})
