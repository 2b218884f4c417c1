/** Abuse of the RPCs by which an institution manages its members. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { sql } from '../../server/database/sql.js'
import { signedInForFile } from '../_helpers/administration.js'
import { changeTokens, endsOrWaits } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { openSchool } from '../_helpers/school.js'
import { type Answer, password, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { stopEvents } from '../_helpers/stopped.js'
import { idOf } from '../_helpers/tokens.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const api = signedInForFile(service)

const list = (token: string | undefined, query: Record<string, string> = {}) =>
  service.request('GET', '/users/me/members', { ...(token && { token }), query, once: true })
const deactivate = (token: string | undefined, username: string, once = true) =>
  service.request('POST', '/users/me/members/deactivate', { ...(token && { token }), query: { username }, once })
const activate = ({ username }: SignedUp, token: string, activationkey: string) =>
  service.request('POST', '/users/activate', { token, query: { username, activationkey }, once: true })
const stateOf = async (user: SignedUp) => {
  const row = (await service.registry.users.byId(idOf(user.token)))!
  return { active: row.active, organizationId: row.organizationId, generation: row.tokenGeneration }
}

/** An active ROLE_ADMIN with a public session. */
async function administrator(): Promise<SignedUp> {
  const username = randomUUID()
  const form = { username, role: 'ROLE_ADMIN', state: 'SP', city: 'Bauru', password }
  await api.createUser({ form, active: true, confirm: username })
  return { username, nickname: username, token: await service.login(username) }
}

test('an institution deactivates only clients of its organization, and gets the same refusal for all others as for missing users', async t => {
  const [school, other] = [await openSchool(service), await openSchool(service)]
  const outsider = await other.member()
  const colleague = await service.institution(school)
  const admin = await administrator()
  await api.setOrganization({ user: admin.username, organization: `#${school.id}` })
  const free = await service.signUp('ROLE_CLIENT')
  const { institution } = school
  const missing = await deactivate(institution.token, randomUUID())
  for (const [who, user] of Object.entries({ outsider, colleague, admin, free, institution })) {
    const before = await stateOf(user)
    const answer = await deactivate(institution.token, user.username)
    refused(t, answer, 404, 'USER_NOT_FOUND')
    t.is(answer.json.detail, missing.json.detail, who)
    t.deepEqual(await stateOf(user), before, who)
  }
  const homeless = await service.institution(school)
  await api.setOrganization({ user: homeless.username, organization: '' })
  const alone = await service.login(homeless.username)
  refused(t, await list(alone), 403, 'ACCESS_DENIED')
  refused(t, await deactivate(alone, outsider.username), 404, 'USER_NOT_FOUND')
})

/** Locks the row of a user while a call waits for it, changes it, and lets the call continue. */
async function changedMeanwhile(id: number, work: () => Promise<Answer>, change: string): Promise<Answer> {
  const { database } = service.registry
  for (;;) {
    let answer: Promise<Answer> | undefined
    try {
      await changeTokens(service.registry, id, async t => {
        await database.run(sql`SELECT FROM users WHERE id = ${id} FOR UPDATE`, t)
        answer = work()
        if ((await endsOrWaits(database, answer)) !== 'waits') throw new Error('It doesn’t wait for the user.')
        await database.run(sql.text(change), t)
      })
      return await answer!
    } catch (error) {
      // On a busy machine the call times out before the wait is observed.
      if ((await answer)?.status !== 503) throw error
    }
  }
}

test.serial('a call that waits deactivates no member once its institution or the member has changed', async t => {
  const elsewhere = await service.organization()
  for (const [whose, change, status, reason] of [
    ['institution', 'suspended = true, token_generation = token_generation + 1', 500, 'INVALID_TOKEN'],
    ['institution', 'active = false', 403, 'ACCESS_DENIED'],
    ['institution', "role = 'ROLE_CLIENT'", 403, 'ACCESS_DENIED'],
    ['institution', 'organization_id = NULL', 404, 'USER_NOT_FOUND'],
    ['member', `organization_id = ${elsewhere.id}`, 404, 'USER_NOT_FOUND'],
    ['member', "role = 'ROLE_INSTITUTION'", 404, 'USER_NOT_FOUND'],
  ] as const) {
    const { institution, member: join } = await openSchool(service)
    const member = await join()
    const id = idOf({ institution, member }[whose].token)
    const call = () => deactivate(institution.token, member.username)
    refused(t, await changedMeanwhile(id, call, `UPDATE users SET ${change} WHERE id = ${id}`), status, reason)
    t.true((await stateOf(member)).active, change)
  }
})

test('of concurrent deactivations by two institutions, one succeeds and leaves the only event', async t => {
  const school = await openSchool(service)
  const colleague = await service.institution(school)
  const member = await school.member()
  const answers = await Promise.all(
    Array.from({ length: 8 }, (_, index) =>
      // They wait for each other: on a busy machine one is refused without an effect, and sent again.
      deactivate((index % 2 ? colleague : school.institution).token, member.username, false),
    ),
  )
  t.deepEqual(answers.map(({ status }) => status).sort(), [200, ...Array(7).fill(404)])
  const { audit } = service.registry
  t.is((await audit.list({ action: 'user.deactivate', subjectId: idOf(member.token), limit: 9 })).length, 1)
})

test.serial(
  'a concurrent activation and deactivation leave a user either a member or not, never in between',
  async t => {
    const { id, institution } = await openSchool(service)
    for (const isFirst of [true, false]) {
      const user = await service.signUp('ROLE_CLIENT')
      await api.setOrganization({ user: user.username, organization: `#${id}` })
      const token = await service.login(user.username)
      const calls = [
        () => activate(user, token, institution.providerKey),
        () => deactivate(institution.token, user.username),
      ]
      // Deactivated while its activation waits: the activation started with a token that is revoked meanwhile.
      const answers = await stopEvents(t, service, isFirst ? calls : calls.toReversed())
      t.deepEqual(answers, [200, isFirst ? 200 : 500])
      t.like(await stateOf(user), { active: false, organizationId: null })
    }
  },
)

test('a page token of another organization, search or list is refused', async t => {
  const [school, other] = [await openSchool(service), await openSchool(service)]
  for (const { member } of [school, other]) await member()
  const pageToken = (await list(school.institution.token, { pageSize: '1' })).json.nextPageToken
  t.truthy(pageToken)
  t.is((await list(school.institution.token, { pageToken })).status, 200)
  // Another institution of the organization may use it.
  t.is((await list((await service.institution(school)).token, { pageToken })).status, 200)
  refused(t, await list(other.institution.token, { pageToken }), 400, 'INVALID_ARGUMENT')
  refused(t, await list(school.institution.token, { pageToken, text: 'a' }), 400, 'INVALID_ARGUMENT')
  const { nextPageToken } = await api.listUsers({ organization: `#${school.id}`, pageSize: 1 })
  refused(t, await list(school.institution.token, { pageToken: nextPageToken }), 400, 'INVALID_ARGUMENT')
  await api.setOrganization({ user: school.institution.username, organization: `#${other.id}` })
  const moved = await service.login(school.institution.username)
  refused(t, await list(moved, { pageToken }), 400, 'INVALID_ARGUMENT')
})
