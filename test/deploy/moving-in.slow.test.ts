/** The move from the older implementation, by the commands of docs/moving-in.md as printed: no user is lost. */
import { execFile } from 'node:child_process'
import { copyFile, readFile, writeFile } from 'node:fs/promises'
import { delimiter, join } from 'node:path'
import { parse } from 'csv-parse/sync'
import { stringify } from 'csv-stringify/sync'
import { program } from '../_helpers/cli.js'
import { ask, createDatabase, freshDatabase } from '../_helpers/database.js'
import { runs } from '../_helpers/examples.js'
import { ownSettings } from '../_helpers/installed.js'
import {
  answerOf,
  makePredecessor,
  odd,
  organizationKey,
  ownQuestion,
  passwordOf,
  providerKey,
  usernameOf,
} from '../_helpers/predecessor.js'
import { startTestService } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { testWith } from '../_helpers/tools.js'
import { root } from '../_helpers/versions.js'

/** Users of the source. */
const count = 1050

/** The rows of a list. */
const rowsOf = async (path: string): Promise<Record<string, string>[]> => parse(await readFile(path), { columns: true })

const withPsql = testWith('psql', runs('psql', '--version'))

withPsql('the page moves all users: passwords, answers, organizations, keys and ids work as before', async t => {
  const from = await createDatabase({ from: 'template0' })
  t.teardown(async () => void (await from.drop()))
  await makePredecessor(from.url, count)
  // A date that sign-up refuses, and a provider key of a client.
  await ask(
    from.url,
    `UPDATE auth.users SET dateofborn = '2999-01-01' WHERE id = 4;
     INSERT INTO auth.users_provider_activationkey (users_id, activationkey) VALUES (5, gen_random_uuid())`,
  )
  const folder = await temporaryFolder(t)
  const at = (name: string) => join(folder, name)
  await copyFile(join(root, 'deploy/predecessor/export.sql'), at('export.sql'))
  await writeFile(at('passphrase'), 'uma senha bem comprida\n')
  await writeFile(at('auth-admin'), `#!/bin/sh\nexec '${process.execPath}' '${program}' "$@"\n`, { mode: 0o700 })
  const env = { ...ownSettings, DATABASE_URL: await freshDatabase(t), AUTH_DATA_DIR: folder }
  const path = `${folder}${delimiter}${process.env.PATH}`
  const type = (block: string) =>
    new Promise<{ code: number; stdout: string; stderr: string }>(resolve => {
      const options = { cwd: folder, env: { ...process.env, ...env, OLD: from.url, PATH: path } }
      execFile('sh', ['-c', block], options, (error, stdout, stderr) =>
        resolve({ code: Number(error?.code ?? 0), stdout, stderr }),
      )
    })
  const page = await readFile(join(root, 'docs/moving-in.md'), 'utf8')
  const blocks = [...page.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, block = '']) => block)
  const [install, write, questions, organizations, users, corrected, finish, remove, ...others] = blocks
  t.deepEqual(others, [])

  t.is((await type(install!)).code, 0)
  const written = await type(write!)
  t.deepEqual([written.code, written.stderr], [0, ''])
  t.regex(written.stdout, new RegExp(`^207 organizations, ${count} users$`, 'm'))
  t.is((await type(questions!)).code, 0)
  const first = await type(organizations!)
  t.deepEqual([first.code, /207 created, .* 0 rejected/.test(first.stdout)], [0, true], first.stdout + first.stderr)

  const imported = await type(users!)
  t.is(imported.code, 6, imported.stderr)
  const counted = /(\d+) created, 0 updated, 0 unchanged, (\d+) rejected/.exec(imported.stdout)!.slice(1).map(Number)
  t.is(counted[0]! + counted[1]!, count)
  const rejected = await rowsOf(at('rejected-users.csv'))
  t.is(rejected.length, counted[1]!)
  const fieldOf = new Map(rejected.map(row => [Number(row.id), row.error_field]))
  const wrong: readonly [field: string, has: (id: number) => boolean][] = [
    ['id', id => id === 1],
    ['dateofborn', id => id === 4],
    ['username', id => odd.sameUsername(id) || id % 1000 === 21],
    ['nickname', id => odd.sameNickname(id) || odd.refusedName(id)],
    ['role', id => id === 9 || odd.noRole(id) || odd.twoRoles(id)],
    ['organization_id', odd.missingOrganization],
  ]
  const expected = (id: number) => wrong.find(([, has]) => has(id))?.[0]
  for (let id = 1; id <= count; id++) t.is(fieldOf.get(id), expected(id), String(id))
  // A report says why, and not what a secret is.
  for (const { error_reason: why } of rejected) t.notRegex(why!, /\$2a|Resposta|[\da-f]{8}-[\da-f]{4}/)
  const notes = await rowsOf(at('notes.csv'))
  const noteOf = (id: number) => notes.filter(row => Number(row.id) === id).map(({ note }) => note)
  t.true(noteOf(31).includes('has no role: choose one'))
  t.true(noteOf(32).includes('has several roles: choose one'))
  t.true(
    noteOf(41).includes('is a member of organization 9999, which is missing; the key used is of none that is known'),
  )
  t.true(noteOf(402).some(note => /^has 2 provider keys/.test(note!)))
  t.true(noteOf(5).some(note => /^has a provider key, but/.test(note!)))
  t.true(noteOf(10).some(note => /^has an avatar, which is not moved: avatar10/.test(note!)))
  t.true(noteOf(15).some(note => /^is active without an organization/.test(note!)))
  t.true(noteOf(6).some(note => /^has the question of a sign-up without its answer/.test(note!)))

  const corrections: Record<string, (row: Record<string, string>) => object> = {
    username: ({ id }) => ({ username: `pessoa-${id}` }),
    nickname: ({ id }) => ({ nickname: `Pessoa-${id}` }),
    role: () => ({ role: 'ROLE_CLIENT' }),
    dateofborn: () => ({ dateofborn: '' }),
    organization_id: () => ({ organization_id: '8' }),
  }
  const rows = rejected
    .filter(({ role }) => role !== 'ROLE_ADMIN')
    .map(row => ({ ...row, ...corrections[row.error_field!]!(row) }))
  await writeFile(at('rejected-users.csv'), stringify(rows, { header: true }))
  const rest = await type(corrected!)
  t.is(rest.code, 0, rest.stdout + rest.stderr)
  t.regex(rest.stdout, new RegExp(`: ${rows.length} created, `))
  const [here] = await ask(env.DATABASE_URL, 'SELECT count(*)::int AS users, max(id) AS last FROM users')
  // The administrator 1 is that of the new registry, and 9 wasn’t imported.
  t.deepEqual(here, { users: count - 1, last: count })
  // A repetition changes nothing, with keys and answers too.
  const again = await type(users!)
  t.is(/(\d+) unchanged/.exec(again.stdout)![1], String(counted[0]))
  t.is((await type(finish!)).code, 0)

  const { request, login, signUp } = await startTestService(t, { ...env, AUTH_COMPATIBILITY: 'predecessor' })
  for (const id of [2, 3, 6, 41, 56, 57, 99, 100, 120]) await login(usernameOf(id), passwordOf(id))
  await login('pessoa-7', passwordOf(7))
  const own = async (id: number) =>
    (await request('GET', '/users/me', { token: await login(usernameOf(id), passwordOf(id)) })).json
  const provider = await own(2)
  t.like(provider, { id: 2, role: 'ROLE_INSTITUTION', active: 1, dateofborn: '03/01/1970' })
  t.deepEqual(
    [provider.partnerOrganization.id, provider.partnerOrganization.activationkey, provider.securityquestion],
    [3, organizationKey(3), ownQuestion],
  )
  t.is(provider.providerActivationKey.activationkey, providerKey(2))
  const none = await own(4)
  t.deepEqual(
    [none.active, none.dateofborn, none.institution, none.institutiontype],
    [0, undefined, undefined, undefined],
  )
  for (const id of [3, 11, 119]) {
    const questions = await request('GET', '/forgotpasswords/findallforgotpasswordquestions')
    const idOf = (text: string) => questions.json.find((each: { question: string }) => each.question === text).id
    const texts = { 1: 'Qual é o nome da sua mãe?', 3: 'Qual é a sua cor preferida?' } as const
    const body = ([1, 3] as const).map(question => ({
      forgotpasswordquestionsid: idOf(texts[question]),
      answer: answerOf(id, question),
    }))
    const path = `/forgotpasswords/loginbyusernameandanswers?username=${usernameOf(id)}`
    t.is((await request('POST', path, { body })).status, 200, String(id))
    const wrong = body.map(answer => ({ ...answer, answer: 'Antes' }))
    t.is((await request('POST', path, { body: wrong })).status, 422)
  }
  for (const [role, activationkey, status] of [
    ['ROLE_CLIENT', providerKey(402), 200],
    ['ROLE_CLIENT', providerKey(402, true), 422],
    ['ROLE_INSTITUTION', organizationKey(6), 200],
  ] as const) {
    const { token, username } = await signUp(role)
    const answer = await request('POST', '/users/activate', { token, query: { username, activationkey } })
    t.is(answer.status, status, `${activationkey} ${answer.text}`)
  }
  t.is((await type(remove!)).code, 0)
})
