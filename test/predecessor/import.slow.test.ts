/** Import of the database of the older implementation: no user is lost, and passwords, answers and keys still work. */
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'ava'
import { type Run, runCli } from '../_helpers/cli.js'
import { ask, createDatabase, freshDatabase, type Teardown } from '../_helpers/database.js'
import { databaseFor, ownSettings } from '../_helpers/installed.js'
import {
  answerOf,
  isListed,
  makePredecessor,
  odd,
  organizationKey,
  ownQuestion,
  passwordOf,
  providerKey,
  usernameOf,
} from '../_helpers/predecessor.js'
import { password, startTestService } from '../_helpers/service.js'

/** Users of the source. */
const count = 120

let model: Awaited<ReturnType<typeof createDatabase>>
test.before(async () => {
  model = await createDatabase({ from: 'template0', name: 'auth_predecessor' })
  await makePredecessor(model.url, count)
})
test.after.always(() => model.drop())

/** A database of the older implementation, and an installed registry. */
async function open(t: Teardown) {
  const from = await freshDatabase(t, { from: 'auth_predecessor' })
  const env = { ...ownSettings, DATABASE_URL: await databaseFor(t) }
  const folder = await mkdtemp(join(tmpdir(), 'auth-moving-'))
  t.teardown(() => rm(folder, { recursive: true, force: true }))
  const moveIn = (...args: string[]) =>
    runCli(env, ['import', 'database', from, '--json', '--yes', '--reason', 'moving in', ...args])
  return { from, env, folder, moveIn, report: join(folder, 'report.jsonl') }
}

const ids = Array.from({ length: count }, (_, index) => index + 1)
const listed = ids.filter(id => id > 1 && isListed(id))

/** The JSON document that a command printed. */
const printed = ({ stdout }: Run) => JSON.parse(stdout)

const outcome = ({ created, updated, unchanged, rejected }: Record<string, number>) => [
  created,
  updated,
  unchanged,
  rejected,
]

/** All stored data of imported users, except values that differ with each import. */
const usersHere = (url: string) =>
  ask(
    url,
    `SELECT (to_jsonb(u) - 'created_at') || jsonb_build_object('keys', (SELECT count(*) FROM provider_keys WHERE user_id = u.id),
      'answers', (SELECT jsonb_agg(to_jsonb(a) ORDER BY question_id) FROM answers a WHERE user_id = u.id)) AS user
     FROM users u ORDER BY id`,
  )

test('a run with collisions lists all of them, and writes nothing', async t => {
  const { env, moveIn, report } = await open(t)
  const before = await usersHere(env.DATABASE_URL)
  const run = await moveIn('--report', report)
  t.is(run.code, 5)
  const { unsettled, users } = printed(run)
  t.deepEqual([users, unsettled.map(({ id }: { id: number }) => id)], [count, listed])
  t.deepEqual(await usersHere(env.DATABASE_URL), before)
  t.deepEqual(await ask(env.DATABASE_URL, 'SELECT id FROM organizations'), [])
  t.deepEqual(await ask(env.DATABASE_URL, 'SELECT id FROM imports'), [])
  const lines = (await readFile(report, 'utf8'))
    .trim()
    .split('\n')
    .map(line => JSON.parse(line))
  const decided = lines.filter(line => line.problems)
  t.deepEqual(
    decided.map(({ id }) => id),
    listed,
  )
  t.is((await stat(report)).mode & 0o777, 0o600)
  const problemOf = (id: number) => decided.find(line => line.id === id).problems[0]
  t.like(problemOf(7), { field: 'username', problem: 'taken', by: [6] })
  t.like(problemOf(56), { field: 'nickname', problem: 'taken', by: [57] })
  t.like(problemOf(21), { field: 'username', problem: 'refused' })
  t.like(problemOf(22), { field: 'nickname', problem: 'refused' })
  t.like(problemOf(23), { field: 'nickname', problem: 'refused' })
  t.deepEqual(problemOf(31), { field: 'role', problem: 'none' })
  t.deepEqual(problemOf(32), { field: 'role', problem: 'several' })
  t.deepEqual(problemOf(41), { field: 'organization', problem: 'missing' })
  t.true(lines.some(line => line.id === 9 && line.note === 'administrator, inactive'))
  t.true(lines.some(line => line.id === 5 && line.note === 'active without organization'))
})

test('all users are imported: passwords, answers, organizations, keys and ids work as before', async t => {
  const { from, env, moveIn, report } = await open(t)
  await ask(from, `UPDATE auth.users SET dateofborn = '2999-01-01' WHERE id = 4`)
  const run = await moveIn('--on-collision', 'suffix', '--report', report)
  t.is(run.code, 0, run.stderr)
  const done = printed(run)
  // The administrator of the source is the administrator of the registry.
  t.deepEqual(outcome(done), [count - 1, 0, 1, 0])
  t.deepEqual([done.nextRow, done.state, done.administrator], [count, 'finished', 1])
  const [sizes] = await ask(env.DATABASE_URL, 'SELECT count(*)::int AS users, max(id) AS last FROM users')
  t.deepEqual(sizes, { users: count, last: count })

  const { request, login, signUp } = await startTestService(t, { ...env, AUTH_COMPATIBILITY: 'predecessor' })
  t.is((await request('POST', '/users/login', { query: { username: 'admin', password } })).status, 200)
  t.is((await request('POST', '/users/login', { query: { username: 'admin', password: passwordOf(1) } })).status, 404)
  for (const id of [2, 3, 6, 56, 57, 99, 100, 120]) await login(usernameOf(id), passwordOf(id))
  // A telephone number can be written in any way; a renamed user appends the id.
  await login('11 90000-0006', passwordOf(6))
  const renamed = await login('11900000006-7', passwordOf(7))
  t.is((await request('GET', '/users/me', { token: renamed })).json.id, 7)
  await login('#21-21', passwordOf(21))

  const adminToken = await login('admin', password)
  const record = async (id: number) =>
    (await request('GET', `/users/${encodeURIComponent(usernameOf(id))}`, { token: adminToken })).json
  const provider = await record(2)
  t.like(provider, {
    id: 2,
    role: 'ROLE_INSTITUTION',
    roles: ['ROLE_INSTITUTION'],
    active: 1,
    dateofborn: '03/01/1970',
  })
  t.is(provider.partnerOrganization.id, 3)
  t.is(provider.partnerOrganization.activationkey, organizationKey(3))
  t.is(provider.providerActivationKey.activationkey, providerKey(2))
  const none = await record(4)
  t.deepEqual(
    [none.active, none.gender, none.institutiontype, none.securityquestion],
    [0, undefined, undefined, undefined],
  )
  // A date that sign-up refuses is left out, and so is what clients send for no institution.
  t.deepEqual([none.dateofborn, none.institution], [undefined, undefined])
  t.is((await record(17)).institutiontype, undefined)
  t.like(await record(31), { role: 'ROLE_CLIENT' })
  t.like(await record(32), { role: 'ROLE_CLIENT' })
  t.is((await record(41)).partnerOrganization, undefined)
  t.is((await record(22)).nickname, 'Pessoa 22')
  t.is((await record(56)).nickname, 'Pessoa 56-56')
  // An administrator has to be activated.
  t.like(await record(9), { role: 'ROLE_ADMIN', active: 0 })
  t.deepEqual(await ask(env.DATABASE_URL, 'SELECT avatar FROM users WHERE id = 10'), [{ avatar: 'avatar10' }])

  for (const id of [3, 11, 119]) {
    const answers = [1, 3].map(question => ({
      forgotpasswordquestionsid: question,
      usersid: 1,
      answer: answerOf(id, question),
    }))
    const path = `/forgotpasswords/loginbyusernameandanswers?username=${usernameOf(id)}`
    t.is((await request('POST', path, { body: answers })).status, 200, String(id))
    const wrong = answers.map(answer => ({ ...answer, answer: 'Antes' }))
    t.is((await request('POST', path, { body: wrong })).status, 422)
  }

  // No imported user is new: an answer that is saved now counts a day later.
  const token = await login(usernameOf(6), passwordOf(6))
  for (const question of [1, 2]) {
    const body = { forgotpasswordquestionsid: question, answer: 'Jacareí' }
    const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
    t.is((await request('POST', path, { token, body })).status, 200)
  }
  const saved = [1, 2].map(question => ({ forgotpasswordquestionsid: question, answer: 'Jacareí' }))
  const byAnswers = { query: { username: usernameOf(6) }, body: saved }
  t.is((await request('POST', '/forgotpasswords/loginbyusernameandanswers', byAnswers)).status, 404)

  // Existing keys activate other users: a provider's, its second one, an organization's.
  for (const [role, activationkey, organization] of [
    ['ROLE_CLIENT', providerKey(2), 3],
    ['ROLE_CLIENT', providerKey(2, true), 3],
    ['ROLE_INSTITUTION', organizationKey(5), 6],
  ] as const) {
    if (role === 'ROLE_INSTITUTION') await ask(env.DATABASE_URL, 'UPDATE organizations SET active = true WHERE id = 5')
    const { token, username } = await signUp(role)
    const answer = await request('POST', '/users/activate', { token, query: { username, activationkey } })
    t.is(answer.status, 200, `${activationkey} ${answer.text}`)
    t.is(
      (await request('GET', '/users/me', { token })).json.partnerOrganization.id,
      role === 'ROLE_CLIENT' ? 3 : 5,
      String(organization),
    )
  }
  // The next id is greater than all of them.
  const [after] = await ask(env.DATABASE_URL, 'SELECT min(id) AS id FROM users WHERE activated_at IS NOT NULL')
  t.is(after!.id, count + 1)

  // A rotation also voids the second key.
  const owner = await login(usernameOf(2), passwordOf(2))
  t.is((await request('POST', '/users/me/providerkey', { token: owner })).status, 200)
  for (const activationkey of [providerKey(2), providerKey(2, true)]) {
    const { token, username } = await signUp('ROLE_CLIENT')
    t.is((await request('POST', '/users/activate', { token, query: { username, activationkey } })).status, 422)
  }
})

test('`skip` omits users with collisions, and a file of decisions resolves each collision', async t => {
  const skipping = await open(t)
  const skipped = await skipping.moveIn('--on-collision', 'skip')
  t.is(skipped.code, 6)
  t.deepEqual(outcome(printed(skipped)), [count - 1 - listed.length, 0, 1, listed.length])
  const here = await ask(skipping.env.DATABASE_URL, 'SELECT id FROM users ORDER BY id')
  t.deepEqual(
    here.map(({ id }) => id),
    ids.filter(id => !listed.includes(id)),
  )

  const { env, folder, moveIn } = await open(t)
  const file = join(folder, 'decisions.jsonl')
  const rest = listed.filter(id => ![7, 31, 41].includes(id)).map(id => ({ id, skip: true }))
  const decisions = [
    { id: 7, username: 'outra pessoa' },
    { id: 31, role: 'ROLE_INSTITUTION' },
    { id: 41, organization: 8 },
  ]
  const missing = decisions.map(line => (line.id === 41 ? { ...line, organization: 9999 } : line))
  await writeFile(file, [...rest, ...missing.slice(1)].map(line => JSON.stringify(line)).join('\n'))
  const refused = await moveIn('--on-collision', file)
  t.deepEqual([refused.code, printed(refused).unsettled.map(({ id }: { id: number }) => id)], [5, [7, 41]])
  await writeFile(file, [...rest, ...decisions].map(line => JSON.stringify(line)).join('\n'))
  const run = await moveIn('--on-collision', file)
  t.deepEqual([run.code, outcome(printed(run))], [6, [count - 1 - rest.length, 0, 1, rest.length]])
  t.deepEqual(
    await ask(
      env.DATABASE_URL,
      'SELECT username, role, organization_id FROM users WHERE id IN (7, 31, 41) ORDER BY id',
    ),
    [
      { username: 'outra pessoa', role: 'ROLE_CLIENT', organization_id: 8 },
      { username: usernameOf(31), role: 'ROLE_INSTITUTION', organization_id: null },
      { username: usernameOf(41), role: 'ROLE_CLIENT', organization_id: 8 },
    ],
  )

  // Another decision about a user is a change of it.
  const others = decisions.map(line => (line.id === 7 ? { ...line, username: 'mais uma pessoa' } : line))
  await writeFile(file, [...rest, ...others].map(line => JSON.stringify(line)).join('\n'))
  const again = await moveIn('--on-collision', file)
  t.deepEqual([again.code, outcome(printed(again))], [6, [0, 1, count - 1 - rest.length, rest.length]])
  t.deepEqual(await ask(env.DATABASE_URL, 'SELECT username FROM users WHERE id = 7'), [{ username: 'mais uma pessoa' }])
})

test('a dry run reports counts, and writes nothing', async t => {
  const { env, from } = await open(t)
  const before = await usersHere(env.DATABASE_URL)
  const run = await runCli(env, ['import', 'database', from, '--json', '--dry-run', '--on-collision', 'suffix'])
  t.deepEqual([run.code, outcome(printed(run))], [0, [count - 1, 0, 1, 0]])
  t.deepEqual(await usersHere(env.DATABASE_URL), before)
  t.deepEqual(await ask(env.DATABASE_URL, 'SELECT id FROM imports'), [])
})

test('a second run imports only records that are new or changed at the source', async t => {
  const { env, from, moveIn } = await open(t)
  t.is((await moveIn('--on-collision', 'suffix')).code, 0)
  const before = await usersHere(env.DATABASE_URL)
  const again = printed(await moveIn('--on-collision', 'suffix'))
  t.deepEqual(outcome(again), [0, 0, count, 0])
  t.deepEqual(await usersHere(env.DATABASE_URL), before)

  // A login renews the hash in the registry; a change at the source takes precedence.
  const service = await startTestService(t, { ...env, AUTH_BCRYPT_COST: '5' })
  await service.login(usernameOf(2), passwordOf(2))
  const token = await service.login(usernameOf(3), passwordOf(3))
  await ask(
    from,
    `UPDATE auth.users SET city = 'Ubatuba' WHERE id = 2;
     UPDATE auth.users SET password = (SELECT password FROM auth.users WHERE id = 5) WHERE id = 3;
     INSERT INTO auth.forgotpassword_questions_users_answers (forgotpassword_questions_id, users_id, answer) VALUES (1, 5, 'nova');
     UPDATE auth.users SET username = 'troca' WHERE id = 10; UPDATE auth.users SET username = '${usernameOf(10)}' WHERE id = 11;
     UPDATE auth.users SET username = '${usernameOf(11)}' WHERE id = 10;
     INSERT INTO auth.users (username, nickname, password, state, city, termsofusage, active)
       SELECT 'nova', 'nova', password, state, city, true, 1 FROM auth.users WHERE id = 5;
     INSERT INTO auth.users_roles VALUES (${count + 1}, 2);
     UPDATE auth.educemaden_organizations SET phone = '123' WHERE id = 7`,
  )
  const run = await moveIn('--on-collision', 'suffix')
  t.is(run.code, 0, run.stderr)
  const third = printed(run)
  t.deepEqual(outcome(third), [1, 5, count - 5, 0])
  t.deepEqual(third.organizations, { created: 0, updated: 1, unchanged: 206 })
  await service.login('nova', passwordOf(5))
  await service.login(usernameOf(3), passwordOf(5))
  // A changed password revokes tokens.
  t.is((await service.request('GET', '/users/me', { token })).status, 500)
  const [swapped] = await ask(
    env.DATABASE_URL,
    'SELECT array_agg(username ORDER BY id) AS names FROM users WHERE id IN (10, 11)',
  )
  t.deepEqual(swapped!.names, [usernameOf(11), usernameOf(10)])

  await service.signUp('ROLE_CLIENT')
  const refused = await moveIn('--on-collision', 'suffix')
  t.is(refused.code, 5)
  t.regex(refused.stderr, /has users that were not imported/)
})

test('an import is refused once a user was changed in the registry, or if the registry has users that weren’t imported', async t => {
  const { env, moveIn } = await open(t)
  t.is((await moveIn('--on-collision', 'suffix')).code, 0)
  const service = await startTestService(t, env)
  const token = await service.login(usernameOf(2), passwordOf(2))
  const query = { username: usernameOf(2), newPassword: 'uma senha bem nova 5' }
  t.is((await service.request('POST', '/forgotpasswords/passwordupdatebyusername', { token, query })).status, 200)
  const refused = await moveIn('--on-collision', 'suffix')
  t.is(refused.code, 5)
  t.regex(refused.stderr, /Users were changed here/)
})

test('the id of the registry’s administrator is a collision, unless the username is the same', async t => {
  const { env, from, moveIn } = await open(t)
  await ask(
    from,
    `UPDATE auth.users SET username = 'root' WHERE id = 1;
      UPDATE auth.users u SET username = 'Admin', nickname = upper(o.nickname) FROM auth.users o WHERE u.id = 4 AND o.id = 5`,
  )
  const refused = await moveIn()
  const { unsettled, administrator } = printed(refused)
  t.is(administrator, 4)
  t.deepEqual(unsettled[0].problems, [{ field: 'id', problem: 'administrator’s', by: [1] }])
  // Of the administrator nothing is imported, so that its nickname collides with no other.
  t.false(unsettled.some(({ id }: { id: number }) => [4, 5].includes(id)))
  const run = await moveIn('--on-collision', 'suffix')
  t.deepEqual([run.code, outcome(printed(run))], [6, [count - 2, 0, 1, 1]])
  t.deepEqual(await ask(env.DATABASE_URL, 'SELECT username FROM users WHERE id IN (1, 4)'), [{ username: 'admin' }])
})

test('answers in the clear never reach the registry', async t => {
  const { env, moveIn } = await open(t)
  const { code, stderr } = await moveIn('--on-collision', 'suffix')
  t.is(code, 0, stderr)
  const stored = 'SELECT answer_hash AS hash FROM answers UNION ALL SELECT answer_hash FROM unmatched_answers'
  const keyed = await ask(env.DATABASE_URL, stored)
  t.true(keyed.length > count)
  t.true(keyed.every(({ hash }) => /^keyed1:[\w+/]{64}$/.test(String(hash))))
  const [text] = await ask(env.DATABASE_URL, 'SELECT question FROM unmatched_answers LIMIT 1')
  t.is(text!.question, ownQuestion)
  t.deepEqual(await ask(env.DATABASE_URL, `SELECT FROM users WHERE to_jsonb(users)::text ~ 'Azul|Resposta'`), [])
})

test('without a confirmation or a reason nothing is read', async t => {
  const { env, from } = await open(t)
  const confirmed = await runCli(env, ['import', 'database', from, '--json', '--reason', 'x'])
  t.deepEqual([confirmed.code, /--yes/.test(confirmed.stderr)], [2, true])
  const reasoned = await runCli(env, ['import', 'database', from, '--json', '--yes'])
  t.deepEqual([reasoned.code, /--reason/.test(reasoned.stderr)], [2, true])
  const none = await runCli(env, ['import', 'database', env.DATABASE_URL, '--json', '--yes', '--reason', 'x'])
  t.is(none.code, 1)
  t.regex(none.stderr, /no schema `auth`/)
  t.true(odd.noRole(31))
})
