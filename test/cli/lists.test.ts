/** All lists of `auth-admin` have one format. The tests find them among the commands, including new ones. */
import test from 'ava'
import { createProgram } from '../../cli/program.js'
import { installedRegistry, jsonLines, leaves, openTerminal, runCli } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'
import { profileFields, profileNames, storedValues } from '../_helpers/fields.js'
import { teardownOfFile } from '../_helpers/service.js'

const all = leaves(createProgram())
const paths = all.map(({ path }) => path)
const lists = all
  .filter(({ command }) => command.options.some(({ long }) => long === '--page-token'))
  .map(({ path }) => path)

/** Fields with names and types of the contract, or names of file columns, by the noun of the list. */
const contract: Record<string, readonly string[]> = {
  users: [
    ...profileNames,
    ...['id', 'username', 'securityquestion', 'termsofusage', 'active', 'role', 'partnerOrganization'],
  ],
  organizations: [
    ...['id', 'active', 'address', 'creation_date', 'inep_code', 'login', 'name', 'phone', 'responsible', 'type'],
    ...['website', 'email'],
  ],
  questions: ['id', 'question', 'active'],
}

const columns = Object.values(profileFields).map(({ column }) => column)
const literals = Object.entries(storedValues).map(([name, value]) => (name === 'nickname' ? 'name' : `'${value}'`))

/** More rows of each kind than a list shows, with a value in every field. */
const plenty = `
  INSERT INTO organizations (name, name_key, address, inep_code, login, phone, responsible, type, website, email,
      activation_key_digest, activation_key_sealed)
    SELECT 'Escola ' || n, 'escola ' || n, 'Rua A, 1', n, 'l', '(11) 3222-1000', 'Ana Lima', 'E', 'https://e.example',
      'e@e.example', sha256(n::text::bytea), '' FROM generate_series(1, 150) n;
  INSERT INTO users (username, username_key, username_skeleton, ${columns}, nickname_key, nickname_skeleton, password_hash,
      email, security_question, terms_of_usage, role, active, organization_id)
    SELECT name, name, name, ${literals}, name, name, '', 'ana@example.org', 'Qual?', true, 'ROLE_CLIENT', true, NULL
    FROM generate_series(1, 150) n, format('ana%s', n) name;
  UPDATE users SET organization_id = (SELECT min(id) FROM organizations);
  INSERT INTO questions (question, question_key) SELECT 'Qual ' || n, 'qual ' || n FROM generate_series(1, 150) n;
  INSERT INTO unmatched_answers SELECT id, 'Onde ' || id, 'onde ' || id, '' FROM users;
  INSERT INTO emails (kind, parameters, locale, next_attempt_at, last_error)
    SELECT 'password-changed', '{"userId": 1}', 'en', CASE WHEN n % 2 = 0 THEN now() END, 'Error ECONNREFUSED' FROM generate_series(1, 150) n;
  INSERT INTO services (name, scopes) SELECT 'notas-' || n, '{users.read}' FROM generate_series(1, 150) n;
  INSERT INTO service_keys (service_id, beginning, digest, expires_at, last_used_on)
    SELECT id, 'authsvc_', sha256(name::bytea), now(), now() FROM services;
  INSERT INTO audit_events SELECT 1000 + n, now(), 'user.edit', 'ok', 'porque', 'user', 1, 1, 'fields:city', '192.0.2.7', 'id',
      NULL, NULL, '', '' FROM generate_series(1, 150) n;
  INSERT INTO totp_secrets (user_id, secret_sealed, day_failures, day_ends, locked_at) SELECT id, '', 50, now() + interval '1 day', now() FROM users WHERE id > 1;
  INSERT INTO imports (kind, state, source_digest, dry_run, all_or_nothing, change_accounts, keep_ids, actor, actor_id)
    SELECT 'users', 'finished', 'd', false, false, '{}', false, 'user', 1 FROM generate_series(1, 150) n;
  UPDATE audit_head SET id = 1150;`

let env: Record<string, string>
const hooks = teardownOfFile()
test.before('prepare a registry with many records of each kind', async () => {
  env = await installedRegistry(hooks)
  const fields = {
    ...{ name: 'Escola Azul', email: 'e@e.example', address: 'Rua A, 1', 'inep-code': '12345678', login: 'l' },
    ...{ phone: '7', responsible: 'Ana Lima', type: 'E', website: 'https://e.example' },
  }
  const flags = Object.entries(fields).flatMap(([name, value]) => [`--${name}`, value])
  const created = await runCli(env, ['organizations', 'create', ...flags])
  if (created.code !== 0) throw new Error(created.stderr)
  await ask(env.DATABASE_URL!, plenty)
})

const command = (path: string) => path.split(' ')
type Row = Record<string, unknown>

test('lists are found', t => {
  for (const path of ['users list', 'audit list', 'questions unmatched list', 'mail list']) t.true(lists.includes(path))
})

for (const path of lists) {
  const run = (...more: string[]) => runCli(env, [...command(path), ...more])

  test(`${path} prints 100 rows and how to continue, as a document, as lines and in columns`, async t => {
    const read = async (...more: string[]) => {
      const { code, stdout, stderr } = await run('--json', ...more)
      t.deepEqual([code, stderr], [0, ''])
      const { nextPageToken, ...rest } = JSON.parse(stdout)
      const [[noun, rows], ...others] = Object.entries(rest) as [[string, Row[]]]
      t.deepEqual(others, [])
      t.regex(noun, /^[a-z]+s$/)
      return { rows, nextPageToken }
    }
    const first = await read()
    t.is(first.rows.length, 100)
    t.regex(first.nextPageToken, /./)
    const second = await read('--all', '--page-token', first.nextPageToken)
    t.true(second.rows.length >= 50)
    t.is(second.nextPageToken, '')
    const all = [...first.rows, ...second.rows]
    t.is(new Set(all.map(row => JSON.stringify(row))).size, all.length)
    t.deepEqual(await read('--all'), { rows: all, nextPageToken: '' })
    t.deepEqual((await read('--limit', '101')).rows, all.slice(0, 101))

    const lines = await run('--jsonl')
    t.deepEqual(jsonLines(lines.stdout), first.rows)
    const columns = await run()
    t.is(columns.stdout.split('\n').length, 1 + 100 + 1, columns.stdout)
    for (const { code, stderr } of [lines, columns]) {
      t.is(code, 0)
      const { token } = /^There are more: pass --all, or --page-token (?<token>\S+)\n$/.exec(stderr)?.groups ?? {}
      t.deepEqual(await read('--all', '--page-token', token!), second)
    }
    t.is((await run('--page-token', 'forged')).code, 2)
  })

  test(`${path} uses consistent field names and types, or those of the contract`, async t => {
    const document = JSON.parse((await run('--json')).stdout)
    const noun = Object.keys(document)[0]!
    const check = (row: Row, exempt: readonly string[] = []) => {
      for (const [name, value] of Object.entries(row)) {
        if (exempt.includes(name)) continue
        t.regex(name, /^[a-z]+([A-Z][a-z]+)*$/)
        t.not(value, null, name)
        if (name === 'id') t.is(typeof value, 'number')
        if (/time$/i.test(name)) t.regex(String(value), /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/, name)
        else t.notRegex(String(value), /^\d{4}-\d\d-\d\dT/, name)
        if (typeof value === 'string') t.notRegex(value, /^(true|false|yes|no)$/, name)
        for (const each of [value].flat()) if (typeof each === 'object') check(each as Row)
      }
    }
    for (const row of document[noun]) check(row, contract[noun])
  })
}

for (const path of paths.filter(path => path.endsWith(' show') && lists.includes(path.replace('show', 'list')))) {
  // Before the lists, because showing keys adds an event to the audit log.
  test.serial(`${path} prints a record with the same fields and values as the list`, async t => {
    const noun = path.split(' ')[0]!
    const row: Row = JSON.parse((await runCli(env, [noun, 'list', '--jsonl', '--limit', '1'])).stdout)
    const name = row.id === undefined ? String(row.name) : `#${row.id}`
    const { code, stdout, stderr } = await runCli(env, [noun, 'show', name, '--json'])
    t.is(code, 0, stderr)
    t.like(JSON.parse(stdout), row)
  })
}

test('the STATUS of columns is a field', async t => {
  for (const [noun, words] of [
    ['users', ['active', 'suspended']],
    ['questions', ['offered', 'retired']],
  ] as const) {
    t.regex((await runCli(env, [noun, 'list'])).stdout, /^ID .*STATUS/)
    const { stdout } = await runCli(env, [noun, 'list', '--jsonl'])
    for (const { status } of jsonLines(stdout)) t.true((words as readonly string[]).includes(status), status)
  }
})

test('a very long name is cut at a terminal, where every other line keeps its width, and whole in a pipe', async t => {
  const own = await installedRegistry(t)
  const long = {
    latin: 'a'.repeat(255),
    wide: '漢字'.repeat(60),
    emoji: '👩‍👩‍👧漢'.repeat(28),
    marks: 'e\u0301'.repeat(100),
  }
  const values = Object.values(long).map(
    (name, n) => `('${name}', '${n}', '', '${name}', '${n}', '', '', 'SP', 'Bauru', true, 'ROLE_CLIENT', true)`,
  )
  await ask(
    own.DATABASE_URL,
    `INSERT INTO users (username, username_key, username_skeleton, nickname, nickname_key, nickname_skeleton, password_hash, state,
       city, terms_of_usage, role, active) VALUES ${values.join(', ')}`,
  )
  const terminal = openTerminal(own, ['users', 'list'])
  t.is(await terminal.ended, 0, terminal.screen())
  const lines = terminal.screen().replaceAll('\r', '').trim().split('\n')
  t.is(lines.length, 6, terminal.screen())
  const starts = lines.map(line => columnsOf(line.slice(0, line.indexOf(line.startsWith('ID') ? 'ROLE' : 'ROLE_'))))
  t.is(new Set(starts).size, 1, terminal.screen())
  for (const line of lines) t.true(columnsOf(line) <= 80, line)
  t.is(lines.filter(line => line.includes('…')).length, 4)
  t.notRegex(terminal.screen(), /[\ufffd\ud800-\udbff](?![\udc00-\udfff])/)
  const { stdout } = await runCli(own, ['users', 'list'])
  for (const name of Object.values(long)) t.true(stdout.includes(` ${name} `))
})

/** Columns of a text that a terminal shows: of 漢 and of a family two, of a mark none. */
function columnsOf(text: string): number {
  return text
    .replaceAll('👩‍👩‍👧', '##')
    .replace(/[漢字]/g, '##')
    .replaceAll('\u0301', '').length
}

test('at a terminal, no word is broken, and values for copying are not wrapped', async t => {
  const own = await installedRegistry(t)
  const name = 'Associação dos Moradores do Bairro de Nossa Senhora das Graças e Adjacências'
  const email = `${'muito.comprido.'.repeat(3)}x@example.org`
  await ask(
    own.DATABASE_URL,
    `INSERT INTO organizations (name, name_key, email, activation_key_digest, activation_key_sealed)
       VALUES ('${name}', 'associacao', '${email}', '', '');
     UPDATE users SET username = 'Ana Maria da Silva Souza de Oliveira', active = false;
     INSERT INTO audit_events SELECT id + 1, now(), 'organization.rotate-key', 'ok', NULL, 'user', 1, NULL, 'organization:1',
       '192.0.2.7', 'id', NULL, NULL, '', '' FROM audit_head;
     UPDATE audit_head SET id = id + 1`,
  )
  const show = async (...args: string[]) => {
    const terminal = openTerminal(own, args)
    t.is(await terminal.ended, 0, terminal.screen())
    return terminal.screen().replaceAll('\r', '')
  }
  const screen = await show('organizations', 'list')
  t.false(screen.includes(name))
  for (const word of [...name.split(' '), email]) t.true(screen.split(/\s+/).includes(word), screen)
  t.regex(await show('users', 'list'), /^1 +Ana Maria da Silva Souza de Oliveira /m)
  t.regex(await show('audit', 'list', '--limit', '1'), / Ana Maria da Silva Souza de Oliveira #1 /)
  const why = await show('users', 'why', '1')
  t.regex(why, / auth-admin users edit 1 --email ADDRESS --reason REASON$/m)
  t.regex(why, /^PREVENTS /)
})
