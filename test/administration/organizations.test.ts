/** Organizations of administrators: no change under an outdated etag, and none with validate_only; and pages of every list. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { openSignedIn, reasonOf, signedInForFile, wrongFieldsOf } from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { refused } from '../_helpers/problem.js'
import { serviceForFile, startTestService } from '../_helpers/service.js'
import { waitForValue } from '../_helpers/wait.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url }))
const api = signedInForFile(service)

/** A new organization, and how a request refers to it. */
async function add() {
  const name = `Defesa Civil ${randomUUID()}`
  const { organization } = await api.createOrganization({ form: { name } })
  const { id, activationkey } = organization!.record!
  return { name, id: id!, organization: `#${id}`, etag: organization!.etag, activationkey }
}

/** The row of an organization, and the actions of its events. */
async function stored(id: number) {
  const rows = await ask(service.env.DATABASE_URL!, `SELECT o::text FROM organizations o WHERE id = ${id}`)
  const events = (await service.registry.audit.list({ action: 'organization.*', limit: 1000 }))
    .filter(({ object }) => object === `organization:${id}`)
    .map(({ action }) => action)
  return { rows, events }
}

const edit = { form: { city: 'x', phone: '(14) 3235-0000' }, updateMask: { paths: ['phone'] } }

/** Every RPC that changes an organization, with expected fields of the response. */
const changes = {
  update: {
    call: (request: Request) => api.updateOrganization({ ...request, ...edit }),
    says: { phone: '(14) 3235-0000' },
  },
  deactivate: { call: (request: Request) => api.deactivateOrganization(request), says: { active: 'false' } },
  activate: { call: (request: Request) => api.activateOrganization(request), says: { active: 'true' } },
  'rotate the key of': { call: (request: Request) => api.rotateOrganizationKey(request), says: {} },
  delete: { call: (request: Request) => api.deleteOrganization(request), says: undefined },
}

interface Request {
  organization: string
  confirm: string
  etag?: string
  validateOnly?: boolean
}

for (const [what, { call, says }] of Object.entries(changes)) {
  test(`to ${what} an organization needs the current etag, and changes nothing with validate_only`, async t => {
    const { id, name, organization, etag: first, activationkey } = await add()
    await api.deactivateOrganization({ organization })
    if (what !== 'activate') await api.activateOrganization({ organization })
    await api.updateOrganization({ organization, form: { website: 'x' }, updateMask: { paths: ['website'] } })
    const { etag } = (await api.getOrganization({ organization, omitKeys: true })).organization!
    const request = { organization, confirm: name }
    const before = await stored(id)
    for (const stale of ['x', first])
      for (const validateOnly of [false, true])
        t.is(await reasonOf(call({ ...request, etag: stale, validateOnly })), 'STALE_ETAG')
    const checked = await call({ ...request, etag, validateOnly: true })
    t.deepEqual(await stored(id), before)
    const done = await call({ ...request, etag })
    t.is((await stored(id)).events.length, before.events.length + 1)
    if (!says) return t.deepEqual((await stored(id)).rows, [])
    for (const answer of [checked, done]) {
      if (!('organization' in answer)) return t.fail()
      t.like(answer.organization!.record, { id, ...says })
      if ('changed' in answer) t.true(answer.changed)
      t.is(answer.organization!.record!.activationkey === activationkey, what !== 'rotate the key of')
    }
  })
}

test('validate_only creates no organization, and the same form creates one afterwards', async t => {
  const form = { name: `Defesa Civil ${randomUUID()}` }
  t.is((await api.createOrganization({ form, validateOnly: true })).organization!.record!.name, form.name)
  t.is(await reasonOf(api.getOrganization({ organization: form.name })), 'RECORD_NOT_FOUND')
  const { organization } = await api.createOrganization({ form })
  t.deepEqual((await stored(organization!.record!.id!)).events, ['organization.add'])
})

/** Changes the e-mail address of an organization. */
const setEmail = (id: number, email: string, validateOnly = false) =>
  api.updateOrganization({ organization: `#${id}`, form: { email }, updateMask: { paths: ['email'] }, validateOnly })

test('after any change of the e-mail address of an organization, the former one is notified, without a key', async t => {
  const [first, second] = [`${randomUUID()}@example.org`, `${randomUUID()}@example.org`]
  const name = `Escola ${randomUUID().slice(0, 8)}`
  const { id, activationkey } = await service.organization({ name, email: first })
  await setEmail(id, second)
  const notice = await mailbox.nextEmail(first)
  t.regex(notice.subject ?? '', /endereço de e-mail da sua instituição foi alterado/)
  t.true(notice.text!.includes(name) && notice.text!.includes('127.0.0.1'), notice.text)
  t.false(notice.text!.includes(second) || notice.text!.includes(activationkey))
  await setEmail(id, '')
  t.regex((await mailbox.nextEmail(second)).subject ?? '', /instituição/)
  const queued = () =>
    ask(service.env.DATABASE_URL!, `SELECT FROM emails WHERE parameters ->> 'organizationId' = '${id}'`)
  await waitForValue(async () => (await queued()).length, 0)
  // Nothing is sent where there was none, where nothing changes, and by a dry run.
  await setEmail(id, first)
  await setEmail(id, first)
  await setEmail(id, second, true)
  t.deepEqual(await queued(), [])
})

test('a key mailed to an organization doesn’t come back with the e-mail address with which it ended', async t => {
  const [email, other] = [`${randomUUID()}@example.org`, `${randomUUID()}@example.org`]
  const { id } = await service.organization({ email })
  const mailedTo = async (address: string) => {
    const { token, username } = await service.signUp('ROLE_INSTITUTION')
    const query = { username, emailpartner: address }
    await service.request('POST', '/1.0.0/users/sendadminkeybyemailpartner', { token, query })
    const { text = '' } = await mailbox.nextEmail(address)
    const activationkey = /: ([\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12})$/m.exec(text)![1]!
    return () => service.request('POST', '/users/activate', { token, query: { username, activationkey } })
  }
  const early = await mailedTo(email)
  await setEmail(id, other)
  await mailbox.nextEmail(email)
  await setEmail(id, email)
  refused(t, await early(), 422, 'ACTIVATION_REFUSED')
  t.is((await (await mailedTo(email))()).status, 200)
})

test('an organization is registered on the day of AUTH_TIME_ZONE', async t => {
  // At any time, one of these has another day than UTC.
  for (const timeZone of ['Pacific/Kiritimati', 'Etc/GMT+12']) {
    const env = { AUTH_TIME_ZONE: timeZone, AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }
    const administrator = await openSignedIn(t, await startTestService(t, env))
    const today = () => new Date().toLocaleDateString('sv-SE', { timeZone })
    const before = today()
    const { organization } = await administrator.createOrganization({ form: { name: 'Defesa Civil' } })
    t.true([before, today()].includes(organization!.record!.creationDate!), timeZone)
  }
})

// Pages (AIP-158): sizes, the empty token at the end, and tokens that are bound to RPC and filter.

test('a list returns each row once, in pages of 50 by default and at most 1,000, until the page token is empty', async t => {
  const { id } = await service.organization({ name: 'Modelo' })
  await ask(
    service.env.DATABASE_URL!,
    `INSERT INTO organizations (name, name_key, type, activation_key_digest, activation_key_sealed)
      SELECT 'Página ' || n, 'pagina ' || n, 'P', sha256(n::text::bytea), (SELECT activation_key_sealed FROM organizations WHERE id = ${id})
      FROM generate_series(1, 1005) n`,
  )
  const type = 'P'
  t.is((await api.listOrganizations({ type })).organizations.length, 50)
  const first = await api.listOrganizations({ type, pageSize: 5_000 })
  t.is(first.organizations.length, 1_000)
  t.not(first.nextPageToken, '')
  const rest = await api.listOrganizations({ type, pageSize: 5_000, pageToken: first.nextPageToken })
  t.is(rest.organizations.length, 5)
  t.is(rest.nextPageToken, '')
  const ids = [...first.organizations, ...rest.organizations].map(({ record }) => record!.id!)
  t.is(new Set(ids).size, 1005)
  t.is((await api.listOrganizations({ type, text: 'PÁGI 1004' })).organizations.length, 1)
  // Also if the last page is full.
  const exact = await api.listOrganizations({ type, pageSize: 5, pageToken: first.nextPageToken })
  t.is(exact.nextPageToken, '')
  t.deepEqual(await wrongFieldsOf(api.listOrganizations({ pageSize: -1 })), ['page_size'])
})

test('a list counts the members of each organization, with deleted ones, where it is asked to', async t => {
  const type = 'counted'
  const form = (username: string) => ({ username, role: 'ROLE_CLIENT', state: 'SP', city: 'Bauru' })
  for (const count of [1, 3, 0]) {
    const { id } = (await api.createOrganization({ form: { name: `Escola ${count}`, type } })).organization!.record!
    const users = Array.from({ length: count }, () => randomUUID())
    for (const user of users) await api.createUser({ form: form(user), active: true, organization: `#${id}` })
    if (count > 1) await api.deleteUser({ user: users[0]! })
  }
  const countsOf = async (request: object) =>
    (await api.listOrganizations({ type, ...request })).organizations.map(({ members }) => members)
  t.deepEqual(await countsOf({ countMembers: true }), [1, 3, 0])
  t.deepEqual(await countsOf({}), [undefined, undefined, undefined])
})

test('a page token is refused if it is altered or used with another filter or RPC', async t => {
  await service.organization({ name: 'Uma' })
  await service.organization({ name: 'Outra' })
  const { nextPageToken: pageToken } = await api.listOrganizations({ active: true, pageSize: 1 })
  t.is(await reasonOf(api.listOrganizations({ active: true, pageSize: 2, pageToken })), 'none')
  const { nextPageToken: plain } = await api.listOrganizations({ pageSize: 1 })
  const altered = `${pageToken[0] === 'A' ? 'B' : 'A'}${pageToken.slice(1)}`
  for (const call of [
    api.listOrganizations({ pageToken }),
    api.listOrganizations({ active: false, pageToken }),
    api.listOrganizations({ active: true, text: 'x', pageToken }),
    api.listUsers({ pageToken: plain }),
    api.listQuestions({ pageToken: plain }),
    api.listOrganizations({ active: true, pageToken: altered }),
    api.listOrganizations({ active: true, pageToken: 'x' }),
  ])
    t.deepEqual(await wrongFieldsOf(call), ['page_token'])
})
