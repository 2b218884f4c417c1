/** Imports: each row is validated by the rules of sign-up, applied exactly once, and counted; protected records stay. */
import { createHash, randomInt, randomUUID } from 'node:crypto'
import { Code } from '@connectrpc/connect'
import ava from 'ava'
import bcrypt from 'bcrypt'
import { ImportKind, ImportState } from '../../proto/gen/auth/v1/administration_pb.js'
import { ChangeKind } from '../../proto/gen/auth/v1/changes_pb.js'
import {
  anotherAdministrator,
  openAdministration,
  openLocal,
  openSignedIn,
  reasonOf,
  signedInForFile,
} from '../_helpers/administration.js'
import { ask, hold } from '../_helpers/database.js'
import { profileValues } from '../_helpers/fields.js'
import { grpcForFile } from '../_helpers/grpc.js'
import { lockWaiters } from '../_helpers/models.js'
import { password, serviceForFile } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'
import { pollWith, readPages } from '../_helpers/watcher.js'

const test = ava.serial

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_LIMIT_FACTOR: '1000' }))
const api = signedInForFile(service)
const client = grpcForFile(service)

const sql = (text: string) => ask(service.env.DATABASE_URL!, text)

/** A source that is unique to a test. */
const newSource = () => createHash('sha256').update(randomUUID()).digest('hex')

type Options = Omit<Parameters<typeof api.startImport>[0], 'kind' | 'sourceDigest' | '$typeName'>

async function start(kind: ImportKind, options: Options = {}, sourceDigest = newSource(), by = api): Promise<number> {
  return (await by.startImport({ kind, sourceDigest, ...options })).import!.id
}

/** The form of a user that can be created. */
function newUser(fields: object = {}) {
  const username = `u${randomUUID()}`
  return { username, role: 'ROLE_CLIENT', state: 'SP', city: 'Bauru', ...fields }
}

/** Imports rows of users in one batch. */
async function importUsers(users: object[], options: Options = {}) {
  const id = await start(ImportKind.USERS, options)
  const answer = await api.importBatch({ id, users })
  return { id, answer, finished: await api.finishImport({ id, rows: users.length }) }
}

/** Imports rows of organizations in one batch. */
async function importOrganizations(organizations: object[], options: Options = {}, by = api) {
  const id = await start(ImportKind.ORGANIZATIONS, options, newSource(), by)
  const answer = await by.importBatch({ id, organizations })
  return { id, answer, finished: await by.finishImport({ id, rows: organizations.length }) }
}

/** An organization with an INEP code. */
async function coded() {
  const { id } = await service.organization()
  const inepCode = String(randomInt(10_000_000, 99_999_999))
  await api.updateOrganization({ organization: `#${id}`, form: { inepCode }, updateMask: { paths: ['inep_code'] } })
  return { id, inepCode }
}

const rowOf = async (username: string) => (await sql(`SELECT * FROM users WHERE username = '${username}'`))[0]

/** All stored data except imports and the audit log. */
async function stored(): Promise<string> {
  const tables = ['users', 'organizations', 'provider_keys', 'emails', 'mailed_keys', 'former_usernames']
  const parts = tables.map(table => `SELECT '${table}' || t::text AS row FROM ${table} t`).join(' UNION ALL ')
  return JSON.stringify(await sql(`${parts} ORDER BY 1`))
}

/** The objects of the events of an import, in no order. */
async function eventsOf(id: number): Promise<string[]> {
  await waitForValue(async () => (await service.registry.audit.backlog()).staged, 0)
  const text = `SELECT object FROM audit_events WHERE action IN ('user.import', 'organization.import') AND object LIKE 'import:${id} %'`
  return (await sql(text)).map(({ object }) => String(object))
}

const problems = (rows: readonly { row: number; reason: string; problems: readonly { field: string }[] }[]) =>
  rows.map(({ row, reason, problems }) => `${row} ${reason} ${problems.map(({ field }) => field).join(',')}`)

test('rows are created, changed, unchanged or rejected, and one event lists the ids', async t => {
  const known = await service.signUp('ROLE_CLIENT')
  const same = await service.signUp('ROLE_CLIENT')
  const users = [
    { form: newUser() },
    { form: { username: known.username, city: 'Marília' } },
    { form: { username: same.username, city: 'São Paulo' } },
    { form: newUser({ state: 'SPX', gender: 'X' }) },
    { id: 2 ** 30, form: { city: 'Bauru' } },
    { form: newUser() },
  ]
  const { id, answer, finished } = await importUsers(users)
  const counts = { created: 2, updated: 1, unchanged: 1, rejected: 2, nextRow: 6 }
  t.like(finished.import, { ...counts, state: ImportState.FINISHED })
  t.like((await api.getImport({ id })).import, counts)
  t.deepEqual(answer.changes, { city: 1 })
  t.deepEqual(problems(answer.rejected), ['3 INVALID_SIGN_UP state,gender', '4 USER_NOT_FOUND id'])
  const first = Number((await rowOf(users[0]!.form.username!))!.id)
  t.is((await rowOf(users[5]!.form.username!))!.id, first + 1)
  t.deepEqual(await eventsOf(id), [`import:${id} created:${first}-${first + 1} updated:${idOf(known.token)}`])
  t.is((await rowOf(known.username))!.city, 'Marília')
})

test('a new user equals one of sign-up except for terms and password, and isn’t erased as never activated', async t => {
  const organization = await service.organization()
  const nickname = `N ${randomUUID()}`
  const form = newUser({ nickname, dateofborn: '01/02/1990', email: 'a@example.org' })
  const provider = newUser({ role: 'ROLE_INSTITUTION' })
  const rows = [{ form }, { form: provider, active: true, organizationId: organization.id, termsofusage: true }]
  await importUsers(rows)
  const made = (await rowOf(form.username))!
  t.like(made, { nickname, email: 'a@example.org', active: false, password_hash: '', terms_of_usage: false })
  t.is(made.unactivated_seen_at, null)
  const { user } = await api.getUser({ user: provider.username })
  t.like(user!.record, { active: 1, termsofusage: true })
  t.is(user!.record!.partnerOrganization!.id, organization.id)
  t.regex(user!.record!.providerActivationKey!.activationkey!, /^[\da-f-]{36}$/)
  t.truthy((await rowOf(provider.username))!.activated_at)
})

test('a missing field stays unchanged, and an empty optional field is cleared', async t => {
  const { username } = await service.signUp('ROLE_CLIENT', { institution: 'Escola', gender: 'F' })
  const { answer } = await importUsers([{ form: { username, institution: '' } }, { form: { username, city: '' } }])
  t.like(await rowOf(username), { institution: null, gender: 'F', city: 'São Paulo' })
  t.deepEqual(problems(answer.rejected), ['1 INVALID_SIGN_UP city,username'])
})

test('an import changes neither administrators, nor roles, nor suspensions, nor deleted users, nor the spelling of a name', async t => {
  const admin = (await rowOf('admin'))!
  const client = await service.signUp('ROLE_CLIENT')
  const [suspended, deleted] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  await api.suspendUser({ user: suspended.username })
  await api.deleteUser({ user: deleted.username })
  const before = await stored()
  const { answer, finished } = await importUsers([
    { id: Number(admin.id), form: { city: 'Nova' } },
    { form: { username: 'ADMIN', role: 'ROLE_CLIENT' } },
    { form: newUser({ role: 'ROLE_ADMIN' }) },
    { form: { username: client.username, role: 'ROLE_INSTITUTION', city: 'Nova' } },
    { form: { username: suspended.username }, active: true },
    { form: { username: deleted.username, city: 'Nova' } },
    { form: { username: client.username.replace(/\D/g, '') } },
    { id: Number(admin.id), form: { username: 'admin', role: 'ROLE_ADMIN' }, active: true },
  ])
  t.deepEqual(problems(answer.rejected), [
    '0 WRONG_STATE ',
    ...[1, 2, 3].map(row => `${row} INVALID_SIGN_UP role`),
    ...['4 INVALID_SIGN_UP active', '5 WRONG_STATE '],
  ])
  t.is(finished.import!.unchanged, 2)
  t.is(await stored(), before)
})

/** Rows with what opens access to an existing user, by the column that permits each. */
function openingRows(user: { username: string; token: string }, organizationId: number) {
  const { username, token } = user
  return {
    username: { id: idOf(token), form: { username: `n${randomUUID()}` } },
    email: { form: { username, email: 'ladra@example.org' } },
    active: { form: { username }, active: true },
    organization: { form: { username }, organizationId },
    password: { form: { username, password: 'uma girafa bem alta 7' } },
  }
}
type Column = keyof ReturnType<typeof openingRows>

test('what opens access to an existing user changes only with its column in change_accounts, in a dry run, too', async t => {
  const { id } = await service.organization()
  const user = await service.signUp('ROLE_CLIENT', { email: `${randomUUID()}@example.org` })
  const rows = openingRows(user, id)
  // A password in a row is for a new user, unless it is asked for.
  const columns = (Object.keys(rows) as Column[]).filter(column => column !== 'password')
  const before = await stored()
  for (const column of columns) {
    const others = columns.filter(each => each !== column)
    for (const options of [{}, { dryRun: true }, { changeAccounts: others }, { allOrNothing: true }]) {
      const { answer } = await importUsers([rows[column]], options)
      const field = column === 'organization' ? 'organization_id' : column
      t.deepEqual(problems(answer.rejected), [`0 INVALID_SIGN_UP ${field}`])
      t.true(answer.rejected[0]!.problems[0]!.message.endsWith(`--change-accounts ${column}.`))
    }
  }
  t.is(await stored(), before)
  // All problems of a row are named at once.
  const { form } = rows.email
  const { answer } = await importUsers([{ form, active: true, organizationId: id }])
  t.deepEqual(problems(answer.rejected), ['0 INVALID_SIGN_UP email,active,organization_id'])
  t.is(await stored(), before)
})

test('a user is notified of each change that opens access, at the address of before', async t => {
  // Recorded when they are queued, because the sender deletes them.
  await sql(`CREATE TABLE queued (kind text, parameters jsonb);
    CREATE FUNCTION note_queued() RETURNS trigger LANGUAGE plpgsql AS
      'BEGIN INSERT INTO queued VALUES (NEW.kind, NEW.parameters); RETURN NULL; END';
    CREATE TRIGGER note_queued AFTER INSERT ON emails FOR EACH ROW EXECUTE FUNCTION note_queued()`)
  const queued = (id: number) =>
    sql(`SELECT kind, parameters ->> 'to' AS to FROM queued WHERE parameters ->> 'userId' = '${id}' ORDER BY kind`)
  const notices: Record<Column, string> = {
    username: 'username-changed',
    email: 'email-changed',
    active: 'account-activated',
    organization: 'organization-changed',
    password: 'password-changed',
  }
  const { id: organizationId } = await service.organization()
  for (const [column, kind] of Object.entries(notices) as [Column, string][]) {
    const email = `${randomUUID()}@example.org`
    const user = await service.signUp('ROLE_CLIENT', { email })
    const row = openingRows(user, organizationId)[column]
    const { answer } = await importUsers([row], { changeAccounts: [column] })
    t.deepEqual(answer.changes, { [column]: 1 })
    t.deepEqual(await queued(idOf(user.token)), [{ kind, to: column === 'email' ? email : null }])
  }

  const email = `${randomUUID()}@example.org`
  const { username, token } = await service.signUp('ROLE_INSTITUTION', { email })
  const next = `n${randomUUID()}`
  const all = { id: idOf(token), form: { username: next, email: 'novo@example.org', password: `${password}!` } }
  const { finished } = await importUsers([{ ...all, active: true, organizationId }], {
    changeAccounts: ['username', 'email', 'active', 'organization', 'password'],
  })
  t.is(finished.import!.updated, 1)
  t.like(await rowOf(next), { email: 'novo@example.org', active: true, organization_id: organizationId })
  const sent = await queued(idOf(token))
  const kinds = ['account-activated', 'email-changed', 'password-changed', 'username-changed']
  t.deepEqual(
    sent,
    kinds.map(kind => ({ kind, to: email })),
  )
  // The former name stays reserved, as after any other change of it.
  t.is(await reasonOf(api.createUser({ form: newUser({ username }) })), 'INVALID_SIGN_UP')
  t.truthy(await service.login(next, `${password}!`))
  // New users and other fields cause none.
  await importUsers([
    { form: newUser({ email: 'x@example.org' }), active: true },
    { form: { username: next, city: 'Assis' } },
  ])
  t.is((await queued(idOf(token))).length, sent.length)
})

test('an import has only columns of its kind in change_accounts, keeps them, and resumes with the same ones', async t => {
  const source = newSource()
  const changeAccounts = ['password', 'email', 'email']
  const id = await start(ImportKind.USERS, { changeAccounts }, source)
  t.deepEqual((await api.getImport({ id })).import!.changeAccounts, ['email', 'password'])
  t.is(await start(ImportKind.USERS, { changeAccounts: ['email', 'password'] }, source), id)
  t.not(await start(ImportKind.USERS, { changeAccounts: ['email'] }, source), id)
  for (const [kind, column] of [
    [ImportKind.USERS, 'role'],
    [ImportKind.USERS, 'inep_code'],
    [ImportKind.ORGANIZATIONS, 'password'],
    [ImportKind.ORGANIZATIONS, 'active'],
  ] as const)
    t.is(await reasonOf(start(kind, { changeAccounts: [column] })), 'INVALID_ARGUMENT', column)
})

test('e-mail address and INEP code of an existing organization change only on request, and the former address is notified', async t => {
  const { id, email } = await service.organization({ email: `${randomUUID()}@example.org` })
  const inepCode = String(randomInt(10_000_000, 99_999_999))
  const run = async (form: object, options: Options = {}) => (await importOrganizations([{ id, form }], options)).answer
  const notices = () =>
    sql(`SELECT kind FROM queued WHERE parameters ->> 'to' = '${email}' AND kind = 'organization-email-changed'`)
  for (const [column, form] of [
    ['email', { email: 'ladra@example.org' }],
    ['email', { email: '' }],
    ['inep_code', { inepCode }],
  ] as const) {
    const other = column === 'email' ? 'inep_code' : 'email'
    for (const options of [{}, { dryRun: true }, { changeAccounts: [other] }]) {
      const { rejected } = await run({ ...form, phone: '1' }, options)
      t.deepEqual(problems(rejected), [`0 INVALID_ARGUMENT ${column}`])
      t.true(rejected[0]!.problems[0]!.message.endsWith(`--change-accounts ${column}.`))
    }
  }
  t.deepEqual(await notices(), [])
  t.deepEqual((await run({ email, inepCode: '', phone: '1' })).changes, { phone: 1 })
  const opened = await run({ email: 'nova@example.org', inepCode }, { changeAccounts: ['email', 'inep_code'] })
  t.deepEqual(opened.changes, { email: 1, inep_code: 1 })
  t.is((await notices()).length, 1)
  // An empty code counts, too.
  t.deepEqual(problems((await run({ inepCode: '' })).rejected), ['0 INVALID_ARGUMENT inep_code'])
})

test('the password of an existing user is set only on request', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const form = { username, password: `${password} nova` }
  t.is((await importUsers([{ form }])).finished.import!.unchanged, 1)
  t.truthy(await service.login(username))
  const changeAccounts = ['password']
  t.deepEqual((await importUsers([{ form }], { changeAccounts })).answer.changes, { password: 1 })
  t.truthy(await service.login(username, form.password))
  const weak = await importUsers([{ form: { username, password: '12345678' } }], { changeAccounts })
  t.deepEqual(problems(weak.answer.rejected), ['0 INVALID_SIGN_UP password'])
})

test('each bcrypt hash is validated separately and kept; a new user signs in with a hash or a password', async t => {
  const [a, b, y, clear] = [newUser(), newUser(), newUser(), newUser({ password: 'uma girafa bem alta 7' })]
  const hash = await bcrypt.hash('senha de antes', 4)
  const users = [
    { form: a, passwordHash: hash.replace('$2b$', '$2a$') },
    { form: b, passwordHash: hash },
    { form: y, passwordHash: hash.replace('$2b$', '$2y$') },
    { form: clear },
    { form: newUser(), passwordHash: hash.replace('$04$', '$31$') },
    { form: newUser(), passwordHash: hash.slice(0, -1) },
    { form: newUser(), passwordHash: `hmac1:${hash}` },
    { form: newUser({ password }), passwordHash: hash },
    { form: newUser({ password: '12345678' }) },
  ]
  const { answer } = await importUsers(users)
  const fields = ['password_hash', 'password_hash', 'password_hash', 'password_hash', 'password']
  t.deepEqual(
    problems(answer.rejected),
    fields.map((field, index) => `${index + 4} INVALID_SIGN_UP ${field}`),
  )
  t.regex(String((await rowOf(a.username))!.password_hash), /^sealed1:/)
  for (const { username } of [a, b, y]) t.truthy(await service.login(username, 'senha de antes'))
  t.truthy(await service.login(clear.username, 'uma girafa bem alta 7'))
  t.regex(String((await rowOf(clear.username))!.password_hash), /^hmac1:/)
})

test('a repeated batch changes nothing and gets the first response, and a batch out of order is refused', async t => {
  const id = await start(ImportKind.USERS)
  const users = [{ form: newUser() }, { form: newUser({ state: '' }) }]
  const first = await api.importBatch({ id, users })
  // E-mails leave the queue at any time.
  await waitForValue(async () => (await sql('SELECT FROM emails')).length, 0)
  const before = await stored()
  const again = await api.importBatch({ id, users })
  t.deepEqual(again, { ...first, import: again.import! })
  t.is(await stored(), before)
  t.is((await eventsOf(id)).length, 1)
  for (const call of [
    api.importBatch({ id, firstRow: 3, users }),
    api.importBatch({ id, firstRow: 1, users }),
    api.finishImport({ id, rows: 3 }),
    api.importBatch({ id, firstRow: 2, organizations: [{ form: { name: 'x' } }] }),
  ])
    t.is(await reasonOf(call), 'WRONG_STATE')
  t.like((await api.finishImport({ id, rows: 2 })).import, { created: 1, rejected: 1, nextRow: 2 })
  t.is(await reasonOf(api.importBatch({ id, firstRow: 2, users })), 'WRONG_STATE')
  t.deepEqual((await api.importBatch({ id, users })).rejected, first.rejected)
})

test('the same batch from concurrent callers is applied once', async t => {
  const id = await start(ImportKind.USERS)
  const users = Array.from({ length: 20 }, () => ({ form: newUser() }))
  const answers = await Promise.all(Array.from({ length: 6 }, () => api.importBatch({ id, users })))
  for (const { created, rejected } of answers) t.deepEqual([created, rejected.length], [20, 0])
  t.like((await api.finishImport({ id, rows: 20 })).import, { created: 20, nextRow: 20 })
  t.is((await eventsOf(id)).length, 1)
})

test('starting an import of the same source again resumes the unfinished one', async t => {
  const source = newSource()
  const id = await start(ImportKind.USERS, {}, source)
  await api.importBatch({ id, users: [{ form: newUser() }] })
  const { import: resumed } = await api.startImport({ kind: ImportKind.USERS, sourceDigest: source })
  t.like(resumed, { id, nextRow: 1, state: ImportState.RUNNING })
  t.not(await start(ImportKind.USERS, { changeAccounts: ['password'] }, source), id)
  t.not(await start(ImportKind.ORGANIZATIONS, {}, source), id)
  await api.finishImport({ id, rows: 1 })
  t.not(await start(ImportKind.USERS, {}, source), id)
  const listed = (await api.listImports({})).imports.map(each => each.id)
  t.true(listed.indexOf(id) > 0)
})

test('an import accepts batches only from the administrator who last started or resumed it, until their tokens are revoked', async t => {
  const { username: other, api: first } = await anotherAdministrator(t, service, api)
  const source = newSource()
  const id = await start(ImportKind.USERS, {}, source)
  const users = [{ form: newUser() }]
  t.is(await reasonOf(first.importBatch({ id, users })), 'WRONG_STATE')
  t.is(await start(ImportKind.USERS, {}, source, first), id)
  t.is(await reasonOf(api.importBatch({ id, users })), 'WRONG_STATE')
  await api.revokeTokens({ user: other })
  t.is(await reasonOf(first.importBatch({ id, users })), 'INVALID_TOKEN')
  const { token } = await openAdministration(t, service).signIn({ username: other, password })
  const second = openAdministration(t, service, token)
  t.is(await reasonOf(second.importBatch({ id, users })), 'WRONG_STATE')
  t.is(await start(ImportKind.USERS, {}, source, second), id)
  t.is((await second.importBatch({ id, users })).created, 1)
})

test('an import on the database itself behaves the same, and needs a reason to set passwords', async t => {
  const local = await openLocal(t, service)
  const id = await start(ImportKind.USERS, {}, newSource(), local)
  t.is((await local.importBatch({ id, users: [{ form: newUser() }] })).created, 1)
  t.is(await reasonOf(api.importBatch({ id, firstRow: 1, users: [{ form: newUser() }] })), 'WRONG_STATE')
  const setPasswords = (by: typeof api) =>
    reasonOf(start(ImportKind.USERS, { changeAccounts: ['password'] }, newSource(), by))
  t.is(await setPasswords(local), 'JUSTIFICATION_NEEDED')
  t.is(await setPasswords(await openLocal(t, service, { reason: 'mudança' })), 'none')
})

test('a dry run changes nothing and counts the changes; in a later import, rows whose record changed since are stale', async t => {
  const [one, two, three] = await Promise.all([1, 2, 3].map(() => service.signUp('ROLE_CLIENT')))
  const source = newSource()
  const users = [
    { form: { username: one!.username, city: 'Bauru', gender: 'F' } },
    { form: { username: two!.username, city: 'Bauru' } },
    { form: newUser() },
    { form: newUser() },
    { form: newUser({ city: '' }) },
    { form: { username: three!.username, city: 'Bauru' } },
  ]
  const before = await stored()
  const dry = await start(ImportKind.USERS, { dryRun: true }, source)
  const judged = await api.importBatch({ id: dry, users })
  t.is(await stored(), before)
  t.like(judged, { created: 2, updated: 3, unchanged: 0 })
  t.deepEqual(judged.changes, { city: 3, gender: 1 })
  const after = { afterDryRun: dry }
  t.is(await reasonOf(start(ImportKind.USERS, after, source)), 'WRONG_STATE')
  await api.finishImport({ id: dry, rows: users.length })
  t.deepEqual(await eventsOf(dry), [])
  t.is(await reasonOf(start(ImportKind.USERS, after)), 'WRONG_STATE')

  await api.updateUser({ user: two!.username, form: { city: 'Assis' }, updateMask: { paths: ['city'] } })
  // Also by what the row doesn't change.
  const email = { form: { email: 'tres@example.org' }, updateMask: { paths: ['email'] } }
  await api.updateUser({ user: three!.username, ...email })
  await api.createUser({ form: users[3]!.form })
  const id = await start(ImportKind.USERS, after, source)
  const answer = await api.importBatch({ id, users })
  t.deepEqual(problems(answer.rejected), ['1 STALE_ETAG ', '3 STALE_ETAG ', '4 INVALID_SIGN_UP city', '5 STALE_ETAG '])
  t.like(answer, { created: 1, updated: 1 })
  t.is((await rowOf(two!.username))!.city, 'Assis')
})

test('in all-or-nothing mode, no row is applied before the end, and none if any row of any batch is rejected', async t => {
  const good = [newUser({ password }), newUser(), newUser()].map(form => ({ form }))
  const run = async (batches: object[][]) => {
    const id = await start(ImportKind.USERS, { allOrNothing: true })
    const before = await stored()
    let firstRow = 0
    for (const users of batches) {
      await api.importBatch({ id, firstRow, users })
      firstRow += users.length
    }
    t.is(await stored(), before)
    const staged = `SELECT encode(staged_sealed, 'escape') FROM import_batches WHERE import_id = ${id}`
    t.false(JSON.stringify(await sql(staged)).includes(good[0]!.form.username))
    return { id, before, finished: await api.finishImport({ id, rows: firstRow }) }
  }
  const nickname = `dup ${randomUUID()}`
  for (const batches of [
    [good, [{ form: newUser({ state: '' }) }]],
    [[...good, { form: newUser({ nickname }) }], [{ form: newUser({ nickname }) }]],
  ]) {
    const { finished, before } = await run(batches)
    t.like(finished.import, { state: ImportState.ABORTED, rejected: 1, nextRow: batches.flat().length })
    t.is(await stored(), before)
  }
  const { id, finished } = await run([good.slice(0, 2), good.slice(2)])
  t.like(finished.import, { state: ImportState.FINISHED, created: 3, nextRow: 3 })
  t.is((await eventsOf(id)).length, 2)
  t.truthy(await service.login(good[0]!.form.username))
  t.deepEqual(await sql('SELECT 1 FROM import_batches WHERE staged_sealed IS NOT NULL'), [])
  const big = await start(ImportKind.USERS, { allOrNothing: true })
  await sql(`UPDATE imports SET unchanged = 9999, next_row = 9999 WHERE id = ${big}`)
  t.is(await reasonOf(api.importBatch({ id: big, firstRow: 9999, users: good })), 'INVALID_ARGUMENT')
})

test('a batch may have 250 rows with every field and four answers each', async t => {
  const securityAnswers = ['a', 'b', 'c', 'd'].map(question => ({ question, answer: 'x' }))
  const users = Array.from({ length: 250 }, (_, index) => ({
    ...{ id: 1_000 + index, line: 2 + index, active: true, termsofusage: true, securityAnswers },
    ...{ passwordHash: '$2b$04$x', organizationInepCode: '1', providerKey: 'x' },
    form: { ...profileValues, username: `u${index}`, nickname: `n${index}`, email: 'a@b.org', role: 'ROLE_CLIENT' },
  }))
  const send = () => importUsers(users, { keepIds: true, dryRun: true, highestId: 1_249 })
  // On a busy machine its transaction may take longer than any may. The command line also sends a batch again.
  const { answer } = await waitFor(() =>
    send().catch(error => {
      if (error.code !== Code.Unavailable) throw error
      return undefined
    }),
  )
  t.is(answer.import?.nextRow, 250)
})

test('rows that depend on earlier rows of the same batch are validated after them', async t => {
  const [first, nickname] = [newUser(), `dup ${randomUUID()}`]
  const { answer } = await importUsers([{ form: { ...first, nickname } }, { form: newUser({ nickname }) }])
  t.is(answer.created, 1)
  t.deepEqual(problems(answer.rejected), ['1 INVALID_SIGN_UP nickname'])
})

/** Starts an import, sends batches of rows of users, and returns the rejected rows with their texts. */
async function repeated(batches: readonly object[][], options: Options = {}, source = newSource()) {
  const rejected: string[] = []
  let firstRow = 0
  let id = 0
  for (const users of batches) {
    // Each batch resumes the import.
    id = await start(ImportKind.USERS, options, source)
    const answer = await api.importBatch({ id, firstRow, users })
    for (const { row, problems } of answer.rejected)
      rejected.push(`${row} ${problems.map(each => each.message).join(' ')}`)
    firstRow += users.length
  }
  const { import: made } = await api.finishImport({ id, rows: firstRow })
  return { rejected, made: made! }
}

test('a record that an import has created or changed is not changed by another of its rows, which is rejected with both lines', async t => {
  const telephone = `1198${randomInt(1_000_000, 9_999_999)}`
  const spelled = `(${telephone.slice(0, 2)}) ${telephone.slice(2, 6)}-${telephone.slice(6)}`
  const known = await service.signUp('ROLE_CLIENT')
  const id = idOf(known.token)
  const renamed = await service.signUp('ROLE_CLIENT')
  const next = `n${randomUUID()}`
  const created = newUser()
  const pairs: Record<string, [id: number | undefined, form: object][]> = {
    'the same new username': [
      [undefined, created],
      [undefined, newUser({ username: created.username, email: 'x@example.org' })],
    ],
    'another spelling': [telephone, spelled].map(username => [undefined, newUser({ username })]),
    'id and username': [
      [id, { city: 'Assis' }],
      [undefined, { username: known.username.toUpperCase(), city: 'Jaú' }],
    ],
    'username and id': [
      [undefined, { username: known.username, city: 'Lins' }],
      [id, { state: 'RJ' }],
    ],
    'new and former name': [
      [idOf(renamed.token), { username: next }],
      [undefined, { username: renamed.username, city: 'Jaú' }],
    ],
  }
  for (const [name, pair] of Object.entries(pairs)) {
    const [one, two] = pair.map(([id, form], index) => ({ ...(id && { id }), form, line: index === 0 ? 4 : 9 }))
    const rows = [one!, { form: newUser(), line: 5 }, two!]
    const before = await stored()
    for (const batches of [[rows], [rows.slice(0, 2), rows.slice(2)]])
      for (const options of [{ dryRun: true }, { allOrNothing: true }, {}]) {
        const all = { ...options, changeAccounts: ['username'] }
        // What is applied for good comes last.
        if (Object.keys(options).length === 0 && batches.length === 1) continue
        const { rejected, made } = await repeated(batches, all)
        t.is(made.rejected, 1, `${name} ${JSON.stringify(options)}`)
        t.regex(rejected[0]!, /^2 .*line \(9\) means the same user as line 4\b/, name)
        if (Object.keys(options).length > 0) t.is(await stored(), before)
      }
  }
  // After it has ended, another import may change them.
  t.is((await repeated([[{ id, form: { city: 'Tupã' } }]])).made.updated, 1)
  t.is((await repeated([[{ form: { username: next.toUpperCase(), city: 'Tupã' } }]])).made.updated, 1)
})

test('rows without lines are named by their numbers, and rows that change nothing can be repeated', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const same = { form: { username, city: 'São Paulo' } }
  const change = { form: { username, city: 'Assis' } }
  const { rejected, made } = await repeated([[same, same], [same, change], [change]])
  t.like(made, { unchanged: 3, updated: 1, rejected: 1 })
  t.regex(rejected[0]!, /^4 .*row \(4\) means the same user as row 3\b/)
  const wrong = [{ form: { username, city: 'Tupã' } }, { form: { username, gender: 'X' } }]
  const unreadable = { form: { username }, problems: [{ field: 'active', message: 'Use True or False.' }] }
  const both = await repeated([[...wrong, unreadable]])
  t.regex(both.rejected[0]!, /^1 .*M, F or N.* row \(1\) means the same user as row 0\b/)
  t.regex(both.rejected[1]!, /^2 Use True or False\. .* row \(2\) means the same user as row 0\b/)
})

test('an address without a dot is refused in a new row, and stays, once in a file, where a record of before has it', async t => {
  const { username } = await service.signUp('ROLE_CLIENT', { email: 'ana@gmail.example' })
  const { id } = await coded()
  const { database } = service.registry
  await database.sequelize.query(`UPDATE users SET email = 'ana@gmail' WHERE username = '${username}'`)
  await database.sequelize.query(`UPDATE organizations SET email = 'escola@rede' WHERE id = ${id}`)
  const { rejected, made } = await repeated([
    [
      { form: { username, email: 'ana@gmail', city: 'Assis' } },
      { form: { username: `${username}b`, email: 'ana@gmail', state: 'SP', city: 'Assis', role: 'ROLE_CLIENT' } },
      { form: { username, email: 'ana@hotmail' } },
      { form: { username, email: 'ana@gmail', city: 'Bauru' } },
    ],
  ])
  t.like(made, { updated: 1, rejected: 3 })
  for (const text of rejected.slice(0, 2)) t.regex(text, /such as name@example\.org/)
  t.regex(rejected[2]!, /means the same user as row 0\b/)
  const importId = await start(ImportKind.ORGANIZATIONS, {})
  const organizations = [
    { id, form: { email: 'escola@rede', phone: '1' } },
    { form: { name: `Escola ${randomUUID()}`, email: 'escola@rede' } },
    { id, form: { email: 'escola@rede', phone: '2' } },
  ]
  t.like(await api.importBatch({ id: importId, firstRow: 0, organizations }), { updated: 1, rejected: { length: 2 } })
})

test('an organization that an import has created or changed is not changed by another of its rows', async t => {
  const { id, inepCode } = await coded()
  const made = { name: `Escola ${randomUUID()}`, inepCode: String(randomInt(10_000_000, 99_999_999)) }
  const { name } = made
  const rows = [
    { form: made, line: 2 },
    { id, form: { phone: '1' }, line: 3 },
    { form: { ...made, phone: '1' }, line: 4 },
    { form: { inepCode, phone: '2' }, line: 5 },
    { id, form: { phone: '3' }, line: 6 },
    // Organizations without a code are as many as the rows.
    { form: { name }, line: 7 },
    { form: { name }, line: 8 },
  ]
  for (const options of [{ dryRun: true }, {}])
    for (const size of [options.dryRun ? 7 : 2, 2]) {
      const importId = await start(ImportKind.ORGANIZATIONS, options)
      const texts: string[] = []
      for (let firstRow = 0; firstRow < rows.length; firstRow += size) {
        const organizations = rows.slice(firstRow, firstRow + size)
        const { rejected } = await api.importBatch({ id: importId, firstRow, organizations })
        for (const { problems } of rejected) texts.push(problems[0]!.message)
      }
      const both = /line \((\d)\) means the same organization as line (\d)/
      const lines = texts.map(text => both.exec(text)?.slice(1).join())
      t.deepEqual(lines, ['4,2', '5,3', '6,3'])
      if (!options.dryRun) break
    }
})

test('what an import notes of its rows names no one, and is deleted after its end', async t => {
  const form = newUser()
  const { id } = await importUsers([{ form }])
  const noted = () => sql(`SELECT encode(record, 'escape') AS record FROM import_records WHERE import_id = ${id}`)
  t.is((await noted()).length, 2)
  t.false(JSON.stringify(await noted()).includes(form.username))
  await service.registry.imports.prune()
  t.deepEqual(await noted(), [])
})

test('if an import and a concurrent sign-up use one name, exactly one of them gets it', async t => {
  for (let round = 0; round < 5; round++) {
    const users = Array.from({ length: 10 }, () => ({ form: newUser() }))
    const { username } = users[5]!.form
    const signUp = service.signUp('ROLE_CLIENT', { username })
    const [[signedUp], { answer }] = await Promise.all([Promise.allSettled([signUp]), importUsers(users)])
    t.truthy(await rowOf(username))
    // A row that finds the user by its name changes it, like any other.
    t.is(answer.created + answer.updated + answer.unchanged + answer.rejected.length, 10)
    t.is(answer.created, signedUp!.status === 'fulfilled' ? 9 : 10)
  }
})

test('organizations are identified by id, or otherwise by INEP code; several may have one name', async t => {
  const code = String(randomInt(10_000_000, 99_999_999))
  const name = `Escola ${randomUUID()}`
  const run = async (rows: object[], options?: Options) => (await importOrganizations(rows, options)).answer
  const { created, updated, unchanged, rejected, changes } = await run([
    { form: { name, inepCode: code, address: 'Rua A, 1\r\nCentro' }, active: false, creationDate: '2020-02-29' },
    { form: { name } },
    { form: { phone: '1' } },
    { id: 2 ** 30, form: { name } },
    { form: { name: `${name}\nx`, email: 'x' }, creationDate: '2020-02-30' },
  ])
  t.deepEqual([created, updated, unchanged, changes], [2, 0, 0, {}])
  t.deepEqual(problems(rejected), [
    '2 INVALID_ARGUMENT name',
    '3 RECORD_NOT_FOUND id',
    '4 INVALID_ARGUMENT name,email,creation_date',
  ])
  const phone = '(14) 3235-0000'
  const again = await run([{ form: { inepCode: code, phone }, creationDate: '29/02/2020' }])
  t.deepEqual([again.updated, again.changes], [1, { phone: 1 }])
  t.is((await run([{ form: { inepCode: code, phone, name } }])).unchanged, 1)
  const [made] = await sql(`SELECT * FROM organizations WHERE inep_code = '${code}'`)
  t.like(made, { active: false, address: 'Rua A, 1\nCentro', phone })
  const second = (await sql(`SELECT id FROM organizations WHERE name = '${name}' AND inep_code IS NULL`))[0]!
  const rows = [{ inepCode: code }, { name: 'Nova' }].map(form => ({ id: Number(second.id), form }))
  const answer = await run(rows, { changeAccounts: ['inep_code'] })
  t.deepEqual(problems(answer.rejected), ['0 INVALID_ARGUMENT inep_code'])
  t.is(answer.updated, 1)
})

test('users join active organizations by id or INEP code, and leave them', async t => {
  const { id, inepCode: organizationInepCode } = await coded()
  const [home, closed] = [await service.organization(), await service.organization()]
  await api.deactivateOrganization({ organization: `#${closed.id}` })
  const { username } = await service.institution(home)
  const form = newUser()
  const rows = [
    { form, organizationInepCode, active: true },
    { form: newUser(), organizationId: closed.id },
    { form: newUser(), organizationId: 2 ** 30 },
    { form: { username }, organizationId: home.id },
    { form: { username }, organizationId: 0 },
  ]
  const { answer } = await importUsers(rows, { changeAccounts: ['organization'] })
  t.like(answer, { created: 1, updated: 1, unchanged: 1 })
  t.deepEqual(problems(answer.rejected), ['1 WRONG_STATE ', '2 INVALID_SIGN_UP organization_id'])
  t.is((await rowOf(form.username))!.organization_id, id)
  t.is((await rowOf(username))!.organization_id, null)
})

test('the feed of changes returns every imported user and organization', async t => {
  const poll = pollWith(client, await serviceKey(service, ['tokens.watch', 'users.watch']))
  const sealed = () => waitForValue(async () => (await service.registry.audit.backlog()).staged, 0)
  await sealed()
  const { cursor } = (await readPages(poll)).at(-1)!
  const organization = await service.organization()
  for (let batch = 0; batch < 5; batch++) await importUsers(Array.from({ length: 250 }, () => ({ form: newUser() })))
  await importOrganizations([{ id: organization.id, form: { phone: '1' } }])
  await sealed()
  const pages = await readPages(poll, { cursor, kinds: [ChangeKind.USERS] })
  t.true(new Set(pages.flatMap(({ userIds }) => userIds)).size >= 1250)
  t.true(pages.every(({ userIds }) => userIds.length <= 1000))
  t.true(pages.some(({ organizationIds }) => organizationIds.includes(organization.id)))
})

test('secrets are returned with an event that names their owners', async t => {
  const organization = await service.organization()
  const institution = await service.institution(organization)
  const id = idOf(institution.token)
  const { secrets } = await api.getUserSecrets({ ids: [id, 2 ** 30] })
  t.is(secrets.length, 1)
  t.like(secrets[0], { id, providerKey: institution.providerKey })
  t.regex(secrets[0]!.passwordHash!, /^hmac1:\$2b\$/)
  t.like((await api.getOrganizationSecrets({ ids: [organization.id] })).secrets[0], {
    id: organization.id,
    activationkey: organization.activationkey,
  })
  const events = await service.registry.audit.list({ action: '*.export-secrets', limit: 2 })
  t.deepEqual(events.map(({ object }) => object).sort(), [`organizations:${organization.id}`, `users:${id}`])
  t.is(await reasonOf(api.getUserSecrets({})), 'INVALID_ARGUMENT')
})

test('an aborted import accepts no more rows, and its applied rows stay', async t => {
  const id = await start(ImportKind.USERS)
  const form = newUser()
  await api.importBatch({ id, users: [{ form }] })
  t.like(await api.abortImport({ id, validateOnly: true }), { changed: true })
  t.like((await api.getImport({ id })).import, { state: ImportState.RUNNING })
  t.like(await api.abortImport({ id }), { changed: true })
  t.like(await api.abortImport({ id }), { changed: false })
  t.is(await reasonOf(api.importBatch({ id, firstRow: 1, users: [{ form: newUser() }] })), 'WRONG_STATE')
  t.truthy(await rowOf(form.username))
  t.is(await reasonOf(api.getImport({ id: 2 ** 30 })), 'RECORD_NOT_FOUND')
})

test('two administrators who import each other’s records concurrently don’t deadlock', async t => {
  const other = await openSignedIn(t, service)
  const users = Array.from({ length: 50 }, () => newUser())
  await importUsers(users.map(form => ({ form })))
  const run = async (by: typeof api, names: typeof users, city: string) => {
    const id = await start(ImportKind.USERS, {}, newSource(), by)
    return (await by.importBatch({ id, users: names.map(({ username }) => ({ form: { username, city } })) })).updated
  }
  for (let round = 0; round < 3; round++)
    t.deepEqual(
      await Promise.all([run(api, users, `A${round}`), run(other, users.toReversed(), `B${round}`)]),
      [50, 50],
    )
})

/** Creates an organization as administration does, and returns its id. */
async function nextOrganization(by = api): Promise<number> {
  return (await by.createOrganization({ form: { name: `Escola ${randomUUID()}` } })).organization!.record!.id!
}

/** Names of organizations by id. */
const namesOf = async (...ids: number[]) =>
  (await sql(`SELECT name FROM organizations WHERE id IN (${ids}) ORDER BY id`)).map(({ name }) => name as string)

const removeOrganization = async (id: number) =>
  api.deleteOrganization({ organization: `#${id}`, confirm: (await namesOf(id))[0]! })

test('with keep_ids a row creates an organization with its id, and changes none', async t => {
  const [deleted, known] = [await nextOrganization(), await nextOrganization()]
  await removeOrganization(deleted)
  const [name] = await namesOf(known)
  const options = { keepIds: true, highestId: known + 20, changeAccounts: ['inep_code', 'email'] }
  const { id, answer, finished } = await importOrganizations(
    [
      { id: known + 9, form: { name: 'Escola Nove' }, active: false, creationDate: '2001-03-04' },
      { id: known + 4, form: { name: 'Escola Nove' } },
      { id: known, form: { name } },
      { id: known, form: { name: 'Outra', inepCode: '999' } },
      { id: known, form: { inepCode: '999' } },
      { id: deleted, form: { name: 'De novo' } },
      { id: known + 4, form: { name: 'Outra' } },
      { form: { name: 'Sem id' } },
      { id: 0, form: { name: 'Zero' } },
      { id: 2 ** 31 - 1, form: { name: 'Alto' } },
      { id: known + 20, form: {} },
    ],
    options,
  )
  t.like(finished.import, { created: 2, updated: 0, unchanged: 1, rejected: 8, keepIds: true })
  t.deepEqual(problems(answer.rejected), [
    '3 WRONG_STATE id',
    '4 WRONG_STATE id',
    '5 RECORD_NOT_FOUND id',
    '6 WRONG_STATE id',
    '7 INVALID_ARGUMENT id',
    '8 RECORD_NOT_FOUND id',
    '9 RECORD_NOT_FOUND id',
    '10 INVALID_ARGUMENT name',
  ])
  t.regex(answer.rejected[0]!.problems[0]!.message, /Different: name, inep_code\./)
  t.deepEqual(await eventsOf(id), [`import:${id} created:${known + 4},${known + 9}`])
  t.deepEqual(await namesOf(known, known + 4, known + 9), [name, 'Escola Nove', 'Escola Nove'])
  t.is(await nextOrganization(), known + 21)
  // A later list fills what this one reserved, but for what had a record that is deleted.
  await removeOrganization(known + 4)
  const later = [known + 20, known + 4, known + 1].map(id => ({ id, form: { name: `Escola ${id}` } }))
  const again = () => importOrganizations(later, { keepIds: true, highestId: known + 20 })
  const [second, third] = [await again(), await again()]
  t.deepEqual([second.answer.created, problems(second.answer.rejected)], [2, ['1 RECORD_NOT_FOUND id']])
  t.deepEqual([third.answer.unchanged, problems(third.answer.rejected)], [2, ['1 RECORD_NOT_FOUND id']])
  const without = await importOrganizations([{ id: known + 2, form: { name: 'Escola' } }])
  t.regex(without.answer.rejected[0]!.problems[0]!.message, /--keep-ids/)
})

test('with keep_ids a row creates a user with its id, which no erased user had', async t => {
  const last = await service.signUp('ROLE_CLIENT', { username: `ana${randomUUID()}` })
  const id = idOf(last.token)
  const [first, second, third] = [newUser(), newUser(), newUser()]
  const options = { keepIds: true, highestId: id + 9, changeAccounts: ['password', 'email'] }
  const hash = await bcrypt.hash('bola-azul-2026', 4)
  const { answer } = await importUsers(
    [
      { id: id + 5, form: { ...first, password: 'chuva-forte-2026' } },
      { id: id + 2, form: second, passwordHash: hash },
      { id, form: { username: last.username }, passwordHash: hash },
      { id, form: { username: last.username.toUpperCase() } },
      { id, form: { username: last.username, city: 'Marília', email: 'a@example.org' } },
      { form: { username: last.username } },
      { id: id + 6, form: { ...newUser(), username: last.username } },
      { id: id + 10, form: newUser() },
    ],
    options,
  )
  t.deepEqual([answer.created, answer.updated, answer.unchanged], [2, 0, 1])
  t.deepEqual(problems(answer.rejected), [
    '3 WRONG_STATE id',
    '4 WRONG_STATE id',
    '5 INVALID_ARGUMENT id',
    '6 INVALID_SIGN_UP username',
    '7 USER_NOT_FOUND id',
  ])
  t.deepEqual([(await rowOf(first.username))!.id, (await rowOf(second.username))!.id], [id + 5, id + 2])
  t.is(idOf((await service.signUp('ROLE_CLIENT')).token), id + 10)
  t.truthy(await service.login(second.username, 'bola-azul-2026'))

  await api.deleteUser({ user: second.username })
  const deleted = await importUsers([{ id: id + 2, form: second }], { keepIds: true, highestId: id + 9 })
  t.deepEqual(problems(deleted.answer.rejected), ['0 WRONG_STATE '])
  await api.eraseUser({ user: `#${id + 2}`, confirm: second.username })
  const rows = [id + 2, id + 3].map(id => ({ id, form: third }))
  const erased = await importUsers(rows, { keepIds: true, highestId: id + 9 })
  t.deepEqual(problems(erased.answer.rejected), ['0 USER_NOT_FOUND id'])
  t.is((await rowOf(third.username))!.id, id + 3)
})

test('with keep_ids alone, rows bring keys and answers, which work; no text of a problem has them', async t => {
  const next = await nextOrganization()
  const [key, other, provider] = [randomUUID(), randomUUID(), randomUUID()]
  const school = (id: number, activationKey: string) => ({ id, form: { name: 'Escola' }, activationKey })
  const ofOrganizations = { keepIds: true, highestId: next + 9 }
  const open = [school(next + 1, key), { ...school(next + 2, other), active: false }]
  t.is((await importOrganizations(open, ofOrganizations)).answer.created, 2)
  const repeated = [
    ...open,
    school(next + 1, randomUUID()),
    school(next + 3, key.toUpperCase()),
    school(next + 4, 'ABC'),
  ]
  const again = (await importOrganizations(repeated, ofOrganizations)).answer
  t.is(again.unchanged, 2)
  t.deepEqual(problems(again.rejected), [
    '2 WRONG_STATE id',
    '3 INVALID_ARGUMENT activation_key',
    '4 INVALID_ARGUMENT activation_key',
  ])
  const plain = await importOrganizations([{ form: { name: 'Escola' }, activationKey: randomUUID() }])
  t.deepEqual(problems(plain.answer.rejected), ['0 INVALID_ARGUMENT activation_key'])
  t.truthy((await service.institution({ activationkey: key })).providerKey)

  const id = idOf((await service.signUp('ROLE_CLIENT')).token)
  const known = (await api.listQuestions({})).questions.map(({ record }) => record!)
  const [one, two] = [known[0]!.question!, known[1]!.question!]
  const answers = (...pairs: [string, string][]) => ({
    securityAnswers: pairs.map(([question, answer]) => ({ question, answer })),
  })
  const institution = () => newUser({ role: 'ROLE_INSTITUTION' })
  const [form, teacher] = [newUser(), institution()]
  const ofUsers = { keepIds: true, highestId: id + 20 }
  const rows: object[] = [
    {
      id: id + 1,
      form,
      ...answers(['Meu barco?', 'Azul'], [one, 'Antes'], [two, 'Rosa d’Água'], [one.toUpperCase(), 'Verde']),
    },
    { id: id + 2, form: teacher, active: true, organizationId: next + 2, providerKey: provider.toUpperCase() },
  ]
  t.is((await importUsers(rows, { ...ofUsers, allOrNothing: true })).finished.import!.created, 2)
  t.is((await importUsers(rows, ofUsers)).answer.unchanged, 2)
  const wrong: [field: string, row: object][] = [
    ['provider_key', { form: institution(), active: true, providerKey: provider }],
    ['provider_key', { form: institution(), active: true, providerKey: key }],
    ['provider_key', { form: institution(), active: true, providerKey: 'segredo-torto' }],
    ['provider_key', { form: institution(), providerKey: randomUUID() }],
    ['provider_key', { form: newUser(), active: true, providerKey: randomUUID() }],
    ['security_answers', { form: newUser(), ...answers(['Uma?', 'segredo-torto'], ['Outra?', 'segredo-torto']) }],
    ['security_answers', { form: newUser(), ...answers([one, ' ']) }],
    ['security_answers', { form: newUser(), ...answers(['', 'segredo-torto']) }],
    ['security_answers', { form: newUser(), ...answers([one, 'segredo-torto'.repeat(20)]) }],
  ]
  const refused = await importUsers(
    wrong.map(([, row], index) => ({ id: id + 3 + index, ...row })),
    ofUsers,
  )
  t.deepEqual(
    refused.answer.rejected.map(({ problems }) => problems.map(({ field }) => field).join()),
    wrong.map(([field]) => field),
  )
  for (const { problems } of refused.answer.rejected)
    for (const { message } of problems)
      t.false([provider, key, 'segredo-torto'].some(secret => message.includes(secret)))
  const withoutIds = [
    { form: institution(), active: true, providerKey: randomUUID() },
    { form: newUser(), ...answers([one, 'Azul']) },
  ]
  const kept = (await importUsers(withoutIds)).answer.rejected
  t.deepEqual(problems(kept), ['0 INVALID_SIGN_UP provider_key', '1 INVALID_SIGN_UP security_answers'])

  const byAnswers = (one: string, two: string) =>
    service.request('POST', '/forgotpasswords/loginbyusernameandanswers', {
      query: { username: form.username },
      body: [one, two].map((answer, index) => ({ forgotpasswordquestionsid: known[index]!.id, answer })),
    })
  t.deepEqual(
    [(await byAnswers('Antes', 'Rosa')).status, (await byAnswers('verde', "ROSA D'AGUA.")).status],
    [422, 200],
  )
  const [stored] = await sql(`SELECT security_question, question, row_to_json(a)::text AS all FROM users u
    JOIN unmatched_answers a ON a.user_id = u.id WHERE u.id = ${id + 1}`)
  t.like(stored, { security_question: 'Meu barco?', question: 'Meu barco?' })
  t.notRegex(String(stored!.all), /Azul/)
  const member = await service.signUp('ROLE_CLIENT')
  const activate = () =>
    service.request('POST', '/users/activate', {
      token: member.token,
      query: { username: member.username, activationkey: provider },
    })
  t.is((await activate()).status, 422)
  await api.activateOrganization({ organization: `#${next + 2}` })
  t.is((await activate()).status, 200)
})

test('a dry run counts names that the file repeats, and the reason names the other row or a free nickname', async t => {
  const taken = await service.signUp('ROLE_CLIENT', { nickname: `Nick ${randomUUID()}` })
  const { json: own } = await service.request('GET', '/users/me', { token: taken.token })
  const nickname = `Ana ${randomUUID()}`
  const [first, second] = [newUser({ nickname }), newUser()]
  const batches = [
    [
      { form: first, line: 2 },
      { form: second, line: 3 },
    ],
    [
      { form: newUser({ nickname: ` ${nickname.toUpperCase()}` }), line: 4 },
      { form: newUser({ nickname: second.username }), line: 5 },
      { form: { ...newUser(), username: first.username }, line: 6 },
      { form: newUser({ nickname: own.nickname }), line: 7 },
      { form: newUser({ nickname: `${nickname} B` }), line: 8 },
      { form: newUser({ nickname: `${nickname} b` }), line: 9 },
      // It gets another nickname than its username.
      { form: newUser({ username: nickname, nickname: '' }), line: 10 },
    ],
  ]
  const counts: unknown[] = []
  for (const dryRun of [true, false]) {
    const id = await start(ImportKind.USERS, { dryRun })
    await api.importBatch({ id, users: batches[0]! })
    const { rejected } = await api.importBatch({ id, firstRow: 2, users: batches[1]! })
    const { created, rejected: refused } = (await api.finishImport({ id, rows: 9 })).import!
    counts.push([created, refused, ...problems(rejected)])
    const messages = rejected.map(({ problems }) => problems[0]!.message)
    t.deepEqual(
      [0, 1, 4].map(index => /line (\d)/.exec(messages[index]!)?.[1]),
      ['2', '3', '8'],
    )
    const free = /, (.+) is free\.$/.exec(messages[3]!)![1]
    t.is((await importUsers([{ form: newUser({ nickname: free }) }], { dryRun: true })).answer.created, 1)
  }
  t.deepEqual(counts[0], counts[1])
  t.deepEqual((counts[0] as unknown[]).slice(0, 2), [4, 5])
})

test('between digits of an INEP code, separators don’t count', async t => {
  const digits = String(randomInt(10_000_000, 99_999_999))
  const cut = (separator: string) => digits.replace(/(..)(...)(...)/, ['$1', '$2', '$3'].join(separator))
  const { id } = (await api.createOrganization({ form: { name: 'Escola', inepCode: cut('.') } })).organization!.record!
  const spellings = [digits, ...['.', ' ', '-', '–', '/', ' - '].map(cut), ` ${digits} `]
  for (const spelling of spellings) {
    t.is((await api.getOrganization({ organization: spelling })).organization!.record!.id, id, spelling)
    const found = await api.listOrganizations({ text: spelling })
    t.deepEqual([found.organizations.map(({ record }) => record!.id), spelling], [[id], spelling])
    t.is(await reasonOf(api.createOrganization({ form: { name: 'Outra', inepCode: spelling } })), 'NAME_TAKEN')
  }
  const schools = spellings.map(inepCode => ({ form: { name: 'Escola', inepCode } }))
  t.is((await importOrganizations(schools)).answer.unchanged, schools.length)
  const users = spellings.map(organizationInepCode => ({ form: newUser(), organizationInepCode }))
  t.is((await importUsers(users)).answer.created, users.length)
  const [members] = await sql(`SELECT count(*)::int AS n FROM users WHERE organization_id = ${id}`)
  t.is(members!.n, users.length)
  for (const inepCode of [`${digits}.0`, `${digits},00`]) {
    const { answer } = await importOrganizations([{ form: { name: 'Escola', inepCode } }])
    t.deepEqual(problems(answer.rejected), ['0 INVALID_ARGUMENT inep_code'], inepCode)
  }
})

test('ids are reserved at most ten million beyond the highest one, and by no dry run', async t => {
  const last = await nextOrganization()
  const of = { kind: ImportKind.ORGANIZATIONS, keepIds: true }
  const most = last + 10_000_000
  for (const options of [{ highestId: 2 ** 31 - 1 }, { highestId: most + 1 }, { highestId: last + 9, dryRun: true }])
    t.is((await api.startImport({ ...of, sourceDigest: newSource(), ...options })).highestId, most)
  const source = newSource()
  const rows = [last, last + 3, most, most + 1].map(id => ({ id, form: { name: `Escola ${id}` } }))
  const dryRun = await start(ImportKind.ORGANIZATIONS, { keepIds: true, dryRun: true }, source)
  const judged = await api.importBatch({ id: dryRun, organizations: rows })
  t.is(judged.created, 2)
  t.deepEqual(problems(judged.rejected), ['0 WRONG_STATE id', '3 RECORD_NOT_FOUND id'])
  await api.finishImport({ id: dryRun, rows: rows.length })
  t.is(await nextOrganization(), last + 1)
  await removeOrganization(last + 1)
  const unreserved = { id: last + 1, form: { name: 'De novo' } }
  const { answer: refused } = await importOrganizations([unreserved], { keepIds: true, highestId: last + 1 })
  t.deepEqual(problems(refused.rejected), ['0 RECORD_NOT_FOUND id'])
  const id = await start(ImportKind.ORGANIZATIONS, { keepIds: true, afterDryRun: dryRun, highestId: last + 3 }, source)
  const answer = await api.importBatch({ id, organizations: rows })
  t.is(answer.created, 1)
  t.deepEqual(problems(answer.rejected), ['0 WRONG_STATE id', '2 RECORD_NOT_FOUND id', '3 RECORD_NOT_FOUND id'])
  t.is(await nextOrganization(), last + 4)
})

test('with keep_ids all or nothing is created, and an import that was resumed creates each row once', async t => {
  const last = await nextOrganization()
  const rows = [1, 3, 5, 7, 9, 11].map(next => ({ id: last + next, form: { name: `Escola ${next}` } }))
  const options = { keepIds: true, highestId: last + 11 }
  const wrong = { id: last, form: { name: 'x' } }
  const { finished } = await importOrganizations([...rows, wrong], { ...options, allOrNothing: true })
  t.like(finished.import, { state: ImportState.ABORTED, created: 6, rejected: 1 })
  t.is((await namesOf(...rows.map(({ id }) => id))).length, 0)

  const source = newSource()
  const id = await start(ImportKind.ORGANIZATIONS, options, source)
  const begin = () => api.importBatch({ id, organizations: rows.slice(0, 3) })
  t.is((await begin()).created, 3)
  const created = await nextOrganization()
  t.true(created > last + 11)
  t.is(await start(ImportKind.ORGANIZATIONS, options, source), id)
  t.is((await begin()).created, 3)
  await api.importBatch({ id, firstRow: 3, organizations: rows.slice(3) })
  t.like((await api.finishImport({ id, rows: 6 })).import, { created: 6, nextRow: 6 })
  t.not(await start(ImportKind.ORGANIZATIONS, { ...options, keepIds: false, highestId: 0 }, source), id)
  t.is(await nextOrganization(), created + 1)
  const whole = await importOrganizations(rows, { ...options, allOrNothing: true })
  t.like(whole.finished.import, { state: ImportState.FINISHED, unchanged: 6 })
})

/** Waits until so many statements on the database wait for a lock. */
const waiting = (count: number) => waitForValue(() => lockWaiters(service.registry.database), count)

test('two imports at once find the records of each other by their ids', async t => {
  const last = await nextOrganization()
  const holder = await hold(t, service.env.DATABASE_URL!)
  const row = { id: last + 1, form: { name: 'Escola Uma' } }
  const options = { keepIds: true, highestId: last + 1 }
  const [first, second] = [
    await start(ImportKind.ORGANIZATIONS, options),
    await start(ImportKind.ORGANIZATIONS, options),
  ]
  await holder.query(`BEGIN; SELECT FROM organizations WHERE id = ${last} FOR UPDATE`)
  const creating = api.importBatch({ id: first, organizations: [row, { id: last, form: {} }] })
  await waiting(1)
  const finding = api.importBatch({ id: second, organizations: [row] })
  await waiting(2)
  await holder.query('COMMIT')
  t.like(await creating, { created: 1, unchanged: 1 })
  t.like(await finding, { created: 0, unchanged: 1 })
})

test('ids are reserved only once each creation that has drawn one has ended', async t => {
  const last = await nextOrganization()
  const holder = await hold(t, service.env.DATABASE_URL!)
  await holder.query(`BEGIN;
    INSERT INTO organizations (name, name_key, activation_key_digest, activation_key_sealed) VALUES ('Em curso', 'em curso', '', '')`)
  const starting = start(ImportKind.ORGANIZATIONS, { keepIds: true, highestId: last + 5 })
  t.is(await Promise.race([starting, waiting(1).then(() => 'waits')]), 'waits')
  await holder.query('COMMIT')
  const organizations = [last + 1, last + 2].map(id => ({ id, form: { name: 'Outra' } }))
  const { created, rejected } = await api.importBatch({ id: await starting, organizations })
  t.is(created, 1)
  t.deepEqual(problems(rejected), ['0 WRONG_STATE id'])
})

test('a row whose password stays because its user exists says so, and names what changes it', async t => {
  const form = newUser({ password })
  await importUsers([{ form }])
  const unchanged = { form: { username: form.username, password: 'outra senha do brejo' } }
  const moved = { form: { ...unchanged.form, city: 'Assis' } }
  for (const [row, options, counts] of [
    [unchanged, { dryRun: true }, { unchanged: 1 }],
    [unchanged, {}, { unchanged: 1 }],
    [moved, {}, { updated: 1 }],
  ] as const) {
    const { answer } = await importUsers([row], options)
    t.like(answer, { ...counts, notes: { length: 1, 0: { row: 0 } } })
    const { field, message } = answer.notes[0]!.problems[0]!
    t.is(field, 'password')
    t.true(message.includes('--change-accounts password'), message)
  }
  const { answer } = await importUsers([unchanged], { changeAccounts: ['password'] })
  t.like(answer, { updated: 1, notes: { length: 0 } })
})
