/** The undo of an import removes what the import created and nothing else has touched since, and nothing more. */
import { createHash, randomUUID } from 'node:crypto'
import test from 'ava'
import { ImportKind } from '../../proto/gen/auth/v1/administration_pb.js'
import { allPages, openSignedIn, reasonOf, signedInForFile, whenFree } from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { endsOrWaits } from '../_helpers/models.js'
import { password, serviceForFile, startTestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_LIMIT_FACTOR: '1000' }))
const api = signedInForFile(service)

const sql = (text: string) => ask(service.env.DATABASE_URL!, text)
const newSource = () => createHash('sha256').update(randomUUID()).digest('hex')

function newUser(fields: object = {}) {
  const username = `u${randomUUID()}`
  return { username, role: 'ROLE_CLIENT', state: 'SP', city: 'Bauru', ...fields }
}

async function imported(rows: { users?: object[]; organizations?: object[] }, options: object = {}, by = api) {
  const kind = rows.users ? ImportKind.USERS : ImportKind.ORGANIZATIONS
  const { id } = (await by.startImport({ kind, sourceDigest: newSource(), ...options })).import!
  await by.importBatch({ id, ...rows })
  await by.finishImport({ id, rows: (rows.users ?? rows.organizations)!.length })
  return id
}

/** Imports new users, and returns the import with their ids. */
async function importedUsers(forms: { username: string }[], more: object = {}) {
  const id = await imported({ users: forms.map(form => ({ form, ...more })) })
  const names = forms.map(({ username }) => `'${username}'`).join(',')
  const rows = await sql(`SELECT id, username FROM users WHERE username IN (${names})`)
  const ids = new Map(rows.map(row => [row.username, Number(row.id)]))
  return { id, ids: forms.map(({ username }) => ids.get(username)!) }
}

/** Undoes an import in all its pages. */
async function undo(id: number, { by = api, validateOnly = false } = {}) {
  let pages = 0
  const records = await allPages(
    pageToken => whenFree(() => by.undoImport({ id, validateOnly, pageToken, confirm: String(id) })),
    page => {
      pages++
      return page.records
    },
  )
  const named = records.filter(({ name }) => name !== undefined)
  return {
    pages,
    records,
    removed: named.filter(({ kept }) => kept === undefined).map(each => each.id),
    kept: new Map(named.flatMap(({ id, kept }) => (kept === undefined ? [] : [[id, kept] as const]))),
    gone: records.filter(({ name }) => name === undefined).map(each => each.id),
  }
}

/** The events of an action, sealed, as `subject object`. */
async function eventsOf(action: string, condition: string): Promise<string[]> {
  await waitForValue(async () => (await service.registry.audit.backlog()).staged, 0)
  const rows = await sql(
    `SELECT subject_id, object FROM audit_events WHERE action = '${action}' AND ${condition} ORDER BY id`,
  )
  return rows.map(({ subject_id, object }) => `${subject_id ?? '-'} ${object}`)
}

test('it erases the users that the import created, with an event for each, and leaves those that it changed', async t => {
  const known = await service.signUp('ROLE_CLIENT')
  const forms = [newUser({ password }), newUser(), newUser()]
  const id = await imported({ users: [...forms, { username: known.username, city: 'Jaú' }].map(form => ({ form })) })
  t.like(await undo(id, { validateOnly: true }), { kept: new Map(), gone: [] })
  const { removed, ...rest } = await undo(id)
  t.like(rest, { kept: new Map(), gone: [] })
  t.is(removed.length, 3)
  const names = forms.map(({ username }) => `'${username}'`).join(',')
  t.deepEqual(await sql(`SELECT id FROM users WHERE username IN (${names})`), [])
  t.like(await sql(`SELECT city FROM users WHERE username = '${known.username}'`), [{ city: 'Jaú' }])
  t.deepEqual(
    await eventsOf('user.erase', `object = 'import:${id}'`),
    removed.map(each => `${each} import:${id}`),
  )
  t.deepEqual(await eventsOf('import.undo', `object = 'import:${id}'`), [`- import:${id}`])
  t.truthy((await api.getImport({ id })).import!.undoTime)
  // The names are free at once: the corrected file can be imported.
  const again = await importedUsers(forms)
  t.is(again.ids.filter(Boolean).length, 3)
})

test('a user stays whom anything has touched since, and the undo says what', async t => {
  const organization = await service.organization()
  const touches: readonly [why: string, touch: (user: { id: number; username: string }) => unknown][] = [
    ['signed in', ({ username }) => service.login(username)],
    [
      'user.edit',
      ({ id }) => api.updateUser({ user: `#${id}`, form: { city: 'Jaú' }, updateMask: { paths: ['city'] } }),
    ],
    [
      'user.set-email',
      ({ id }) =>
        api.updateUser({ user: `#${id}`, form: { email: 'a@example.org' }, updateMask: { paths: ['email'] } }),
    ],
    ['user.set-role', ({ id }) => api.setRole({ user: `#${id}`, role: 'ROLE_INSTITUTION' })],
    ['user.activate', ({ id }) => api.activateUser({ user: `#${id}` })],
    ['user.suspend', ({ id }) => api.suspendUser({ user: `#${id}` })],
    ['user.delete', ({ id }) => api.deleteUser({ user: `#${id}` })],
    ['user.set-password', ({ id }) => api.setPassword({ user: `#${id}`, password: `${password} nova` })],
    [
      'user.set-organization',
      ({ id }) => api.setOrganization({ user: `#${id}`, organization: String(organization.id) }),
    ],
    ['changed by another import', ({ username }) => imported({ users: [{ form: { username, city: 'Jaú' } }] })],
  ]
  const harmless: typeof touches = [
    [
      'a wrong password',
      ({ username }) => service.request('POST', '/users/login', { query: { username, password: 'errada' } }),
    ],
    ['shown', ({ id }) => api.getUser({ user: `#${id}` })],
    ['exported', ({ id }) => api.exportUser({ user: `#${id}` })],
    ['the same import again', ({ username }) => imported({ users: [{ form: { username, city: 'Bauru' } }] })],
    ['nothing', () => undefined],
  ]
  const forms = [...touches, ...harmless].map(() => newUser({ password }))
  const { id, ids } = await importedUsers(forms)
  for (const [index, [, touch]] of [...touches, ...harmless].entries())
    await touch({ id: ids[index]!, username: forms[index]!.username })
  for (const validateOnly of [true, false]) {
    const { kept, removed } = await undo(id, { validateOnly })
    t.deepEqual(removed, ids.slice(touches.length))
    const whys = [...kept.values()].map(why => /^(.*), \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/.exec(why)?.[1])
    t.deepEqual(
      Object.fromEntries(touches.map(([why], index) => [ids[index], why])),
      Object.fromEntries([...kept.keys()].map((id, index) => [id, whys[index]])),
    )
  }
  t.is((await sql(`SELECT count(*)::int AS n FROM users WHERE id IN (${ids.join(',')})`))[0]!.n, touches.length)
})

test('a provider stays whose key has activated a user, even where the audit log has no event of the provider', async t => {
  const organization = await service.organization()
  const forms = [newUser({ role: 'ROLE_INSTITUTION' }), newUser({ role: 'ROLE_INSTITUTION' })]
  const { id, ids } = await importedUsers(forms, { active: true, organizationId: organization.id })
  const { user } = await api.getUser({ user: `#${ids[0]}` })
  const client = await service.signUp('ROLE_CLIENT')
  const key = user!.record!.providerActivationKey!.activationkey!
  const { status } = await service.request('POST', '/users/activate', {
    token: client.token,
    query: { username: client.username, activationkey: key },
  })
  t.is(status, 200)
  const { kept, removed } = await undo(id)
  t.deepEqual([...kept], [[ids[0], 'its provider key has activated users']])
  t.deepEqual(removed, [ids[1]])
})

test('organizations that the import created are removed unless they have members or were touched', async t => {
  const names = ['free', 'members', 'edited', 'rotated', 'again', 'mailed'].map(name => `${name} ${randomUUID()}`)
  const code = String(Date.now()).slice(-8)
  const id = await imported({
    organizations: names.map((name, index) => ({
      form: { name, ...(index === 4 && { inep_code: code, inepCode: code }) },
    })),
  })
  const found = await sql(`SELECT id FROM organizations WHERE name IN ('${names.join("','")}') ORDER BY id`)
  const ids = found.map(row => Number(row.id))
  await importedUsers([newUser()], { organizationId: ids[1] })
  await api.updateOrganization({ organization: `#${ids[2]}`, form: { phone: '1' }, updateMask: { paths: ['phone'] } })
  await api.rotateOrganizationKey({ organization: `#${ids[3]}` })
  await imported({ organizations: [{ id: ids[4], form: { phone: '2' } }] })
  const { token } = await service.signUp('ROLE_INSTITUTION')
  await sql(`INSERT INTO mailed_keys (user_id, purpose, key_digest, organization_id, expires_at)
    VALUES (${idOf(token)}, 'activation', '', ${ids[5]}, now() + interval '1 day')`)
  await api.getOrganization({ organization: `#${ids[0]}` })
  const { kept, removed } = await undo(id)
  t.deepEqual(removed, [ids[0]])
  t.deepEqual(
    [...kept].map(([id, why]) => [id, why.replace(/, \d{4}-.*Z$/, '')]),
    [
      [ids[1], 'has members: 1'],
      [ids[2], 'organization.edit'],
      [ids[3], 'organization.rotate-key'],
      [ids[4], 'changed by another import'],
      [ids[5], 'an activation key is in the mail'],
    ],
  )
  t.deepEqual(await eventsOf('organization.delete', `object = 'organization:${ids[0]}'`), [`- organization:${ids[0]}`])
})

test('it goes page by page, continues where it was stopped, and a second undo removes nothing', async t => {
  const { id, ids } = await importedUsers(Array.from({ length: 120 }, () => newUser()))
  const first = await whenFree(() => api.undoImport({ id, confirm: String(id) }))
  t.true(first.records.length > 0 && first.records.length < 120)
  t.not(first.nextPageToken, '')
  const rest = await undo(id)
  t.true(rest.pages > 1)
  t.deepEqual(rest.gone, ids.slice(0, first.records.length))
  t.deepEqual(rest.removed, ids.slice(first.records.length))
  t.like(await undo(id), { removed: [], kept: new Map(), gone: ids })
  t.is((await eventsOf('user.erase', `object = 'import:${id}'`)).length, 120)
})

test('two undos at once erase each user once', async t => {
  const { id, ids } = await importedUsers(Array.from({ length: 60 }, () => newUser()))
  const other = await openSignedIn(t, service)
  const both = await Promise.all([undo(id), undo(id, { by: other })])
  t.deepEqual(
    both.flatMap(({ removed }) => removed).sort((a, b) => a - b),
    ids,
  )
  t.is((await eventsOf('user.erase', `object = 'import:${id}'`)).length, 60)
})

test('a user stays whose sign-in ends only after the undo has begun to erase it', async t => {
  const own = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const admin = await openSignedIn(t, own)
  const id = await imported({ users: [{ form: newUser() }, { form: newUser() }] }, {}, admin)
  const { database, audit } = own.registry
  const [first, second] = (await ask(own.env.DATABASE_URL!, 'SELECT id FROM users ORDER BY id DESC LIMIT 2')).map(row =>
    Number(row.id),
  )
  let undoing: ReturnType<typeof undo> | undefined
  await database.transact(async transaction => {
    await database.run({ text: `SELECT FROM users WHERE id = ${first} FOR KEY SHARE`, values: [] }, transaction)
    await audit.append({ action: 'session.login', outcome: 'ok', actor: 'user', subject_id: first! }, transaction)
    undoing = undo(id, { by: admin })
    t.is(await endsOrWaits(database, undoing), 'waits')
  })
  const { removed, kept } = await undoing!
  t.deepEqual(removed, [second])
  t.deepEqual([...kept.keys()], [first])
})

test('it needs the id once more, and an import that has ended and created something', async t => {
  const { id } = await importedUsers([newUser()])
  for (const wrong of [{}, { confirm: String(id + 1) }])
    t.is(await reasonOf(api.undoImport({ id, ...wrong })), 'CONFIRMATION_NEEDED')
  t.is(await reasonOf(api.undoImport({})), 'INVALID_ARGUMENT')
  t.is(await reasonOf(api.undoImport({ id: 2 ** 30, validateOnly: true })), 'RECORD_NOT_FOUND')
  const running = (await api.startImport({ kind: ImportKind.USERS, sourceDigest: newSource() })).import!.id
  const dry = await imported({ users: [{ form: newUser() }] }, { dryRun: true })
  const moved = (await api.startImport({ kind: ImportKind.PREDECESSOR, sourceDigest: newSource() })).import!.id
  await api.finishImport({ id: moved, rows: 0 })
  for (const wrong of [running, dry, moved])
    t.is(await reasonOf(api.undoImport({ id: wrong, validateOnly: true })), 'WRONG_STATE')
  await api.abortImport({ id: running })
  t.deepEqual((await undo(running)).records, [])
})

test('without the events since the import it refuses', async t => {
  const own = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const admin = await openSignedIn(t, own)
  const id = await imported({ users: [{ form: newUser() }] }, {}, admin)
  await waitForValue(async () => (await own.registry.audit.backlog()).staged, 0)
  t.is((await admin.undoImport({ id, validateOnly: true })).records.length, 1)
  await own.registry.audit.prune(0)
  t.is(await reasonOf(admin.undoImport({ id, validateOnly: true })), 'WRONG_STATE')
})
