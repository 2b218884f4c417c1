/** Import and export of organizations and users are lossless, with any encoding, separator and text. */
import { randomUUID } from 'node:crypto'
import { readFile, stat, symlink, writeFile } from 'node:fs/promises'
import { basename } from 'node:path'
import ava from 'ava'
import bcrypt from 'bcrypt'
import fc from 'fast-check'
import iconv from 'iconv-lite'
import { organizationColumns, userColumns } from '../../cli/files/columns.js'
import { openSink } from '../../cli/files/sink.js'
import { openSource, readRows } from '../../cli/files/source.js'
import { assertRefusals, installedRegistry, runCli } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'
import { folderForFile } from '../_helpers/files.js'
import { password, serviceForFile } from '../_helpers/service.js'
import { waitForValue } from '../_helpers/wait.js'

const test = ava.serial

const service = serviceForFile()
const cli = (...args: string[]) => runCli(service.env, args)
const sql = (text: string) => ask(service.env.DATABASE_URL!, text)

const { at, file } = folderForFile()

/** Imports a file, and returns the document with the exit code. */
async function imported(noun: string, path: string, ...options: string[]) {
  const { code, stdout, stderr } = await cli(noun, 'import', path, '--json', ...options)
  const document = stdout === '' ? {} : JSON.parse(stdout)
  return { code, stderr, ...document }
}

const withoutTerms = 'No column termsofusage: new users are registered as not having accepted the terms.\n'

/** A list of schools as a ministry publishes it; with ids that another system gave, one of them out of range. */
function schools({ withIds = false } = {}): string {
  const head = 'INEP_CODE;name;active;Address;phone;responsible;creation_date;município'
  const lines = [withIds ? `id;${head}` : head]
  for (let number = 0; number < 207; number++) {
    const name = number % 3 === 0 ? 'ESCOLA MUNICIPAL SÃO JOÃO' : `Escola "Nova" ${number}`
    const address = number % 5 === 0 ? `Rua ${number};\r\nCentro` : number % 7 === 0 ? 'NULL' : `Av. ${number}`
    const cells = [
      number % 2 === 0 ? String(11_000_000 + number) : '',
      name,
      ['True', 'False', 't', 'f', '1', '0'][number % 6]!,
      address,
      number % 4 === 0 ? 'NULL' : `(14) 3235-${1000 + number}`,
      number % 11 === 0 ? 'Ana\nLima' : '',
      number % 2 === 0 ? '2001-03-04 00:00:00' : '04/03/2001',
      'Bauru',
    ]
    if (withIds) {
      cells.unshift(number === 150 ? '2147483647' : String(620 - 3 * number))
      if (number === 1) cells[2] = '=SOMA(1)'
    }
    lines.push(cells.map(cell => (/[";\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell)).join(';'))
  }
  return `${lines.join('\r\n')}\r\n`
}

test('207 organizations with repeated names, NULL, True/False and quoted line breaks survive import, export and import unchanged', async t => {
  const source = await file(iconv.encode(schools(), 'win1252'))
  const first = await imported('organizations', source)
  t.like(first, { code: 0, kind: 'organizations', state: 'finished', created: 207, rejected: 0, nextRow: 207 })
  t.regex(first.sourceDigest, /^[\da-f]{64}$/)
  t.is(first.stderr, 'Ignored columns: município.\nThe file is not UTF-8: it is read as Windows-1252.\n')
  const rows = await sql('SELECT * FROM organizations ORDER BY id')
  t.is(rows.length, 207)
  t.is(rows.filter(({ active }) => active).length, 104)
  t.is(rows.filter(({ name }) => name === 'ESCOLA MUNICIPAL SÃO JOÃO').length, 69)
  t.like(rows[0], {
    inep_code: '11000000',
    address: 'Rua 0;\nCentro',
    phone: null,
    responsible: 'Ana Lima',
    active: true,
  })
  t.like(rows[7], { inep_code: null, address: null, name: 'Escola "Nova" 7' })
  const dates = await sql(`SELECT DISTINCT creation_date::text AS day FROM organizations`)
  t.deepEqual(dates, [{ day: '2001-03-04' }])

  const out = at('organizations.csv')
  t.is((await cli('organizations', 'export', out)).code, 0)
  const [head, ...lines] = (await readFile(out, 'utf8')).split('\r\n')
  t.is(head, 'id,name,active,address,creation_date,inep_code,login,phone,responsible,type,website,email')
  t.is(lines.length, 208)
  t.like(await imported('organizations', out), { code: 0, unchanged: 207, created: 0, updated: 0, changes: {} })
  const before = await readFile(out, 'utf8')
  await cli('organizations', 'export', out)
  t.is(await readFile(out, 'utf8'), before)
  t.deepEqual(await sql('SELECT * FROM organizations ORDER BY id'), rows)
})

test('207 organizations keep the ids of another system: at the first import, repeated, exported, and with a mended reject', async t => {
  const env = await installedRegistry(t)
  const run = async (noun: string, path: string, ...options: string[]) => {
    const { code, stdout } = await runCli(env, [noun, 'import', path, '--keep-ids', '--json', ...options])
    const { created, unchanged, rejected } = JSON.parse(stdout)
    return { code, created, unchanged, rejected }
  }
  const list = schools({ withIds: true })
  const first = await run('organizations', await file(list))
  t.deepEqual(first, { code: 6, created: 206, unchanged: 0, rejected: 1 })
  const mended = await file(list.replace('2147483647', '1'))
  t.deepEqual(await run('organizations', mended), { code: 0, created: 1, unchanged: 206, rejected: 0 })
  t.deepEqual(await run('organizations', mended), { code: 0, created: 0, unchanged: 207, rejected: 0 })
  const named = await ask(env.DATABASE_URL, 'SELECT id, name FROM organizations WHERE id IN (1, 617, 620) ORDER BY id')
  t.deepEqual(
    named.map(({ id, name }) => [id, name]),
    [
      [1, 'ESCOLA MUNICIPAL SÃO JOÃO'],
      [617, '=SOMA(1)'],
      [620, 'ESCOLA MUNICIPAL SÃO JOÃO'],
    ],
  )
  const out = at('with-ids.csv')
  t.is((await runCli(env, ['organizations', 'export', out])).code, 0)
  t.deepEqual(await run('organizations', out), { code: 0, created: 0, unchanged: 207, rejected: 0 })
  const created = await runCli(env, ['organizations', 'create', '--name', 'Nova', '--json'])
  t.is(JSON.parse(created.stdout).id, 621)
  const users = await file(
    'id;username;state;city;role;termsofusage;organization_id\n9;ana;SP;Bauru;ROLE_CLIENT;1;620\n',
  )
  t.deepEqual(await run('users', users), { code: 0, created: 1, unchanged: 0, rejected: 0 })
})

test('users with and without an organization survive export and import unchanged, in CSV and JSON lines', async t => {
  const organization = await service.organization()
  await service.institution(organization)
  await service.signUp('ROLE_CLIENT', {
    dateofborn: '01/02/1990',
    gender: 'F',
    institution: 'NULL',
    email: 'a@example.org',
  })
  for (const extension of ['csv', 'jsonl']) {
    const out = at(`users.${extension}`)
    t.is((await cli('users', 'export', out)).code, 0)
    const { users } = JSON.parse((await cli('users', 'list', '--all', '--json')).stdout)
    const result = await imported('users', out)
    t.like(result, { code: 0, unchanged: users.length, created: 0, updated: 0, rejected: 0 })
    t.false((await readFile(out, 'utf8')).includes('$2b$'))
  }
})

test('exports hold secrets only on request, in a file that only its owner can read, with an event', async t => {
  await service.institution(await service.organization())
  const count = async () =>
    (await sql(`SELECT count(*)::int AS n FROM audit_events WHERE action LIKE '%.export-secrets'`))[0]!.n
  const before = Number(await count())
  const out = at('secrets.csv')
  t.is((await cli('users', 'export', out, '--with-secrets')).code, 0)
  const text = await readFile(out, 'utf8')
  t.regex(text.split('\r\n')[0]!, /password_hash,provider_key$/)
  t.regex(text, /hmac1:\$2b\$/)
  t.is((await stat(out)).mode & 0o777, 0o600)
  t.is((await cli('organizations', 'export', out, '--with-secrets')).code, 0)
  // Events are sealed within a moment.
  await waitForValue(async () => Number(await count()), before + 2)
  // Without --keep-ids, an import ignores keys.
  t.like(await imported('organizations', out), {
    code: 0,
    stderr: 'Ignored columns: activation_key.\n',
    updated: 0,
    created: 0,
  })
})

test('rejected rows are counted, reported unchanged, and can be imported once corrected', async t => {
  const source = await file(
    [
      'Username;State;City;Role;nota',
      'rep-ana;SP;Bauru;ROLE_CLIENT;a',
      'rep-bia;SPX;"Ba""u;ru";ROLE_CLIENT;b',
      '"rep-\ncaio";SP;NULL;ROLE_CLIENT;c',
      '',
      '',
      'rep-duda;SP;Bauru',
      'rep-eva;SP;Bauru;ROLE_KING;d',
    ].join('\n'),
  )
  const report = at('report.csv')
  const { code, ...rest } = await imported('users', source, '--report', report)
  t.like({ code, ...rest }, { code: 6, created: 1, rejected: 4, nextRow: 5 })
  t.is(rest.stderr, `Ignored columns: nota.\n${withoutTerms}`)
  t.deepEqual((await readFile(report, 'utf8')).split(/\n(?!caio)/), [
    'Username;State;City;Role;nota;error_line;error_field;error_reason',
    'rep-bia;SPX;"Ba""u;ru";ROLE_CLIENT;b;3;state;Give the code of the state, exactly 2 characters.',
    '"rep-\ncaio";SP;;ROLE_CLIENT;c;4;city;Fill in this field.',
    'rep-duda;SP;Bauru;;;8;;The row has 3 cells, the head 5.',
    'rep-eva;SP;Bauru;ROLE_KING;d;9;role;Use ROLE_INSTITUTION or ROLE_CLIENT.',
    '',
  ])
  const mended = (await readFile(report, 'utf8'))
    .replace('SPX', 'SP')
    .replace('SP;;', 'SP;Jaú;')
    .replace('Bauru;;;', 'Bauru;ROLE_CLIENT;;')
    .replace('ROLE_KING', 'ROLE_CLIENT')
  const again = await imported('users', await file(mended))
  t.like(again, { code: 0, created: 4, rejected: 0 })
  t.is((await sql(`SELECT 1 FROM users WHERE username LIKE 'rep-%'`)).length, 5)
})

test('a report has the encoding, byte order mark, separator and line ends of its source', async t => {
  const head = 'username;city;state;role'
  for (const [index, [encoding, beginning, end]] of (
    [
      ['win1252', '', '\r\n'],
      ['utf8', '\ufeff', '\n'],
      ['utf8', '', '\r'],
      ['utf-16le', '\ufeffsep=;\r\n', '\r\n'],
    ] as const
  ).entries()) {
    const source = at(`like-${index}.csv`)
    const row = `like-${index};Conceição;SPX;ROLE_CLIENT`
    await writeFile(source, iconv.encode(beginning + [head, row, ''].join(end), encoding))
    const report = at(`like-${index}-report.csv`)
    t.is((await cli('users', 'import', source, '--report', report)).code, 6)
    const text = iconv.decode(await readFile(report), encoding, { stripBOM: false })
    const [first, second, ...rest] = text.slice(beginning.length).split(end)
    t.is(text.slice(0, beginning.length), beginning)
    t.deepEqual([first, rest], [`${head};error_line;error_field;error_reason`, ['']])
    t.true(second!.startsWith(`${row};${beginning.includes('sep') ? 3 : 2};state;`), second)
    await writeFile(report, iconv.encode(text.replace('SPX', 'SP'), encoding))
    t.is((await cli('users', 'import', report)).code, 0)
    t.deepEqual(await sql(`SELECT city FROM users WHERE username = 'like-${index}'`), [{ city: 'Conceição' }])
  }
})

test('what a spreadsheet shows for an error is rejected by field, and other texts with # are texts', async t => {
  const errors = [
    '#N/A',
    '#N/D',
    '#REF!',
    '#DIV/0!',
    '#VALUE!',
    '#VALOR!',
    '#NAME?',
    '#NOME?',
    '#NUM!',
    '#NÚM!',
    '#NULO!',
  ]
  errors.push('#NULL!', '#ERROR!', '#SPILL!', '#CÁLC!', 'Err:502', 'Erro:508', '########', ' #N/D ')
  const texts = ['#1 da turma', '#turma', 'Err', '# # #', 'N/D']
  const rows = [...errors, ...texts].map((text, index) => `error-${index},${text},SP,Bauru,ROLE_CLIENT,`)
  const more = [
    '#N/D,,SP,Bauru,ROLE_CLIENT,',
    'error-a,a,SP,########,ROLE_CLIENT,',
    'error-b,b,SP,Bauru,ROLE_CLIENT,########',
  ]
  const source = await file(['username,nickname,state,city,role,password', ...rows, ...more].join('\n'))
  const report = at('errors.csv')
  t.like(await imported('users', source, '--report', report), { created: texts.length, rejected: errors.length + 3 })
  const fields = [...(await readFile(report, 'utf8')).matchAll(/,([a-z]+),A spreadsheet/g)].map(([, field]) => field)
  t.deepEqual(fields, [...errors.map(() => 'nickname'), 'username', 'city', 'password'])
})

test('a new user without a nickname gets its username or a free one, which the report says, and an existing one keeps its own', async t => {
  await service.signUp('ROLE_CLIENT', { username: 'nick-old', nickname: 'Velho' })
  await service.signUp('ROLE_CLIENT', { username: 'nick-other', nickname: 'nick-taken' })
  const rows = [
    'nick-free,',
    'nick-blank,"  "',
    'nick-taken,',
    'nick-first,nick-second',
    'nick-second,',
    'nick-third,',
    'nick-fourth,nick-third',
    'nick-old,',
  ]
  const head = 'username,nickname,state,city,role'
  const source = await file([head, ...rows.map(row => `${row},SP,Bauru,ROLE_CLIENT`)].join('\n'))
  const report = at('nicknames.csv')
  const nicknameOf = async (username: string) => {
    const { stdout } = await cli('users', 'show', username, '--json')
    return JSON.parse(stdout).nickname as string
  }
  for (const more of [['--dry-run'], []]) {
    const result = await imported('users', source, '--report', report, ...more)
    t.like(result, { code: 6, created: 6, updated: 1, unchanged: 0, rejected: 1 }, more.join())
    const lines = (await readFile(report, 'utf8')).split('\n')
    const said = lines.flatMap(line => /^([^,]+),.*,nickname,(.*)$/.exec(line)?.slice(1, 3) ?? [])
    const free = (name: string) => [name, 'The username isn’t free as a nickname: the nickname is ']
    const whys = said.map((text, index) => (index % 2 ? text.replace(/(?<=nickname is ).*/, '') : text))
    t.deepEqual(whys, [...free('nick-taken'), ...free('nick-second'), 'nick-fourth', whys.at(-1)!])
    if (more.length > 0) continue
    for (const [name, want] of [
      ['nick-free', /^nick-free$/],
      ['nick-blank', /^nick-blank$/],
      ['nick-taken', /^nick-taken\d+$/],
      ['nick-second', /^nick-second\d+$/],
      ['nick-third', /^nick-third$/],
      ['nick-old', /^Velho$/],
    ] as const) {
      t.regex(await nicknameOf(name), want)
      if (said.includes(name)) t.true(said[said.indexOf(name) + 1]!.includes(` ${await nicknameOf(name)}.`))
    }
  }
  // Again, nothing changes, and nothing is said.
  t.like(await imported('users', source), { created: 0, unchanged: 7, rejected: 1 })
})

test('a dry run reports the changes by field, and a later import rejects records that changed since', async t => {
  await service.signUp('ROLE_CLIENT', { username: 'dry-ana' })
  await service.signUp('ROLE_CLIENT', { username: 'dry-bia' })
  const source = await file('username,city,gender\ndry-ana,Jaú,F\ndry-bia,Jaú,F\n')
  const dry = await imported('users', source, '--dry-run')
  t.like(dry, { code: 0, dryRun: true, updated: 2, changes: { city: 2, gender: 2 } })
  const { stdout } = await cli('users', 'import', source, '--dry-run')
  t.regex(
    stdout,
    /^Dry run \d+, nothing is changed: 0 created, 2 updated, 0 unchanged, 0 rejected\.\nChanges by field: gender 2, city 2\.\n/,
  )
  await cli('users', 'edit', 'dry-bia', '--city', 'Assis')
  const report = at('stale.csv')
  const after = await imported('users', source, '--after-dry-run', String(dry.id), '--report', report)
  t.is(after.stderr, '')
  t.like(after, { code: 6, updated: 1, rejected: 1, afterDryRun: dry.id })
  t.regex(await readFile(report, 'utf8'), /dry-bia,Jaú,F,3,,STALE: /)
})

test('a username that a file has twice is rejected with both lines of the file, far apart and in a dry run, too', async t => {
  const row = (name: string, city: string) => `${name},"${city}\n",SP,ROLE_CLIENT,1`
  const others = Array.from({ length: 150 }, (_, n) => row(`twice-${n}`, 'Bauru'))
  const lines = ['username,city,state,role,termsofusage', row('twice-ana', 'Jaú'), ...others, row('Twice-ANA', 'Assis')]
  const source = await file(lines.join('\n'))
  const report = at('twice.csv')
  for (const options of [['--dry-run'], []]) {
    t.like(await imported('users', source, '--report', report, ...options), {
      code: 6,
      created: 151,
      updated: 0,
      rejected: 1,
    })
    // Each row has two lines.
    t.regex(
      await readFile(report, 'utf8'),
      /Twice-ANA.*,304,username,"This line \(304\) means the same user as line 2\b/s,
    )
  }
  t.deepEqual(await sql(`SELECT city FROM users WHERE username = 'twice-ana'`), [{ city: 'Jaú' }])
})

test('--change-accounts names the columns that may open access, and the report those that it lacks', async t => {
  await service.signUp('ROLE_CLIENT', { username: 'opens-ana' })
  const source = await file('username,email,active\nopens-ana,ladra@example.org,1\n')
  const report = at('opens.csv')
  t.like(await imported('users', source, '--report', report), { code: 6, updated: 0, rejected: 1 })
  const all = /"email, active".*--change-accounts email\..*--change-accounts active\./s
  t.regex(await readFile(report, 'utf8'), all)
  t.like(await imported('users', source, '--change-accounts', 'email', '--report', report), { code: 6, rejected: 1 })
  t.notRegex(await readFile(report, 'utf8'), /--change-accounts email/)
  const done = await imported('users', source, '--change-accounts', 'active,email')
  t.like(done, { code: 0, updated: 1, changes: { email: 1, active: 1 }, changeAccounts: ['active', 'email'] })
  const { import: kept } = JSON.parse((await cli('api', 'GetImport', `{"id": ${done.id}}`)).stdout)
  t.deepEqual(kept.change_accounts, ['active', 'email'])
  // Without a report, the reasons are on standard error.
  const cleared = await file('username,email\nopens-ana,\n')
  for (const options of [['--dry-run'], []])
    t.regex(
      (await cli('users', 'import', cleared, ...options)).stderr,
      /^Line 2, email: This would clear email of an existing user, .*--change-accounts email\.$/m,
    )
  t.notRegex((await cli('users', 'import', cleared, '--report', report)).stderr, /^Line/m)
  await assertRefusals(t, cli, [
    [/Use columns among/, 2, 'users', 'import', source, '--change-accounts', 'role'],
    [/Use columns among/, 2, 'users', 'import', source, '--change-accounts', ''],
    [/Use columns among/, 2, 'organizations', 'import', source, '--change-accounts', 'password'],
  ])
})

test('without a report, the first ten rejected rows are shown with their reasons', async t => {
  const source = await file(`username,state,city,role\n${'papel,SP,Bauru,ROLE_KING\n'.repeat(12)}`)
  for (const options of [['--dry-run'], ['--all-or-nothing']]) {
    const { stderr, stdout } = await cli('users', 'import', source, ...options)
    const shown = stderr.split('\n').filter(line => line.startsWith('Line '))
    t.deepEqual(
      shown,
      Array.from({ length: 10 }, (_, index) => `Line ${index + 2}, role: Use ROLE_INSTITUTION or ROLE_CLIENT.`),
    )
    t.regex(stdout, /12 rejected/)
  }
})

test('an import of new users without the column termsofusage warns once, also in a dry run', async t => {
  const user = (username: string) => ({ username, state: 'SP', city: 'Bauru', role: 'ROLE_CLIENT' })
  const users = [user('terms-a'), user('terms-b')]
  const csv = await file(`username,state,city,role\n${users.map(each => Object.values(each).join(',')).join('\n')}\n`)
  const jsonl = await file(users.map(each => JSON.stringify(each)).join('\n'), 'jsonl')
  for (const [path, ...options] of [[csv, '--dry-run'], [jsonl, '--dry-run'], [csv]] as const) {
    t.like(await imported('users', path, ...options), { code: 0, created: 2, stderr: withoutTerms })
  }
  const accepted = await sql(`SELECT terms_of_usage FROM users WHERE username LIKE 'terms-%'`)
  t.deepEqual(accepted, [{ terms_of_usage: false }, { terms_of_usage: false }])

  const [first, second] = [user('terms-c'), { ...user('terms-d'), TermsOfUsage: true }]
  const some = await file([first, second].map(each => JSON.stringify(each)).join('\n'), 'jsonl')
  t.like(await imported('users', some, '--dry-run'), { code: 0, created: 2, stderr: '' })
  const all = await file('username,state,city,role,TERMSOFUSAGE\nterms-c,SP,Bauru,ROLE_CLIENT,1\n')
  t.like(await imported('users', all, '--dry-run'), { code: 0, created: 1, stderr: '' })
})

test('--report refuses to overwrite the file to import, in any spelling of its path', async t => {
  const source = await file('username,role,state,city\nsobre.escrita,ROLE_CLIENT,SP,Bauru\n')
  const before = await readFile(source, 'utf8')
  const linked = `${source}.link`
  await symlink(source, linked)
  for (const report of [source, `${at('.')}/./${basename(source)}`, linked]) {
    const { code, stderr } = await cli('users', 'import', source, '--report', report)
    t.is(code, 2, report)
    t.regex(stderr, /^error: --report names the file to import, and would overwrite it/)
    t.is(await readFile(source, 'utf8'), before)
  }
})

test('an all-or-nothing import applies no row if one is rejected, and reports it', async t => {
  const report = at('all.csv')
  const wrong = await file('username,state,city,role\nall-a,SP,Bauru,ROLE_CLIENT\nall-b,SPX,Bauru,ROLE_CLIENT\n')
  t.like(await imported('users', wrong, '--all-or-nothing', '--report', report), {
    code: 1,
    state: 'aborted',
    rejected: 1,
  })
  t.regex(await readFile(report, 'utf8'), /all-b,SPX/)
  t.deepEqual(await sql(`SELECT 1 FROM users WHERE username LIKE 'all-%'`), [])
  const good = await file('username,state,city,role\nall-a,SP,Bauru,ROLE_CLIENT\n')
  t.like(await imported('users', good, '--all-or-nothing'), { code: 0, state: 'finished', created: 1 })
})

test('an import takes hashes, and reports in advance the time to hash passwords', async t => {
  const hash = await bcrypt.hash('senha de antes', 4)
  const lines = [`has-a,,${hash}`, `has-b,,${hash}`, `has-c,${password},`].map(line => `${line},SP,Bauru,ROLE_CLIENT,1`)
  const source = await file(['username,password,password_hash,state,city,role,termsofusage', ...lines].join('\n'))
  const { code, stderr } = await cli('users', 'import', source)
  t.is(code, 0)
  t.regex(stderr, /\.\nPasswords to hash: 1, at most \d+ s\.\n$/)
  for (const name of ['has-a', 'has-b']) t.truthy(await service.login(name, 'senha de antes'))
  t.truthy(await service.login('has-c', password))
})

test('an import hashes at most 16 passwords in a transaction', async t => {
  const lines = Array.from({ length: 17 }, (_, n) => `sixteen-${n},${password},SP,Bauru,ROLE_CLIENT,1`)
  const source = await file(['username,password,state,city,role,termsofusage', ...lines].join('\n'))
  t.like(await imported('users', source), { code: 0, created: 17 })
  const batches = await sql(`SELECT count(*)::int AS users FROM users WHERE username LIKE 'sixteen-%'
    GROUP BY xmin ORDER BY 1`)
  t.deepEqual(batches, [{ users: 1 }, { users: 16 }])
})

test('the documentation lists the columns of users and organizations', async t => {
  const text = await readFile(new URL('../../../docs/imports.md', import.meta.url), 'utf8')
  for (const [noun, columns] of Object.entries({ Organizations: organizationColumns, Users: userColumns })) {
    const section = text.split(`## Columns: ${noun}`)[1]!.split('\n## ')[0]!
    t.deepEqual(
      [...section.matchAll(/^\| `(\w+)` /gm)].map(([, name]) => name),
      Object.keys(columns),
    )
  }
})

/** Texts that a file can hold. */
const texts = fc.oneof(
  fc.string({ unit: 'grapheme' }),
  fc.string({ unit: fc.constantFrom(',', ';', '\t', '"', '\n', '\r', ' ', 'a', 'é', "'", '=', '\\') }),
  fc.constantFrom('NULL', 'null', '', ' ', '"', '""', '\ufeff', 'True', '-1', '+1', '@a', '=A1', '😀'),
)

/** Cells as an export writes them, and as they are read. */
const read = (value: string | null) => value ?? ''

test('any texts written to a file are read back unchanged, with every separator, in UTF-8', async t => {
  const property = fc.asyncProperty(
    // Rows without a text are none.
    fc.array(
      fc.tuple(
        texts,
        texts.filter(text => text.trim() !== ''),
        fc.option(texts),
      ),
      { minLength: 1, maxLength: 20 },
    ),
    fc.constantFrom(',', ';', '\t'),
    fc.boolean(),
    async (rows, delimiter, hasMark) => {
      const path = at(`property-${randomUUID()}.csv`)
      const columns = ['a', 'b', 'c']
      const sink = await openSink(path, { format: 'csv', columns, delimiter, cells: 'verbatim' })
      await sink.write(rows.map(([a, b, c]) => ({ a, b, c })))
      await sink.close()
      if (hasMark) await writeFile(path, Buffer.concat([Buffer.from('\ufeff'), await readFile(path)]))
      const source = await openSource(path, undefined)
      t.deepEqual([source.delimiter, source.encoding, source.head], [delimiter, 'utf8', columns])
      const cells: unknown[] = []
      for await (const row of readRows(source)) {
        t.is(row.problem, undefined)
        cells.push(Object.values(row.cells))
      }
      t.deepEqual(
        cells,
        rows.map(row => row.map(read)),
      )
    },
  )
  await fc.assert(property, { numRuns: 150 })
})

test('a file in Windows-1252 is decoded correctly', async t => {
  const all = Array.from({ length: 256 }, (_, byte) => byte).filter(
    byte => ![0x81, 0x8d, 0x8f, 0x90, 0x9d, 0x22].includes(byte),
  )
  const cell = iconv.decode(Buffer.from(all), 'win1252')
  const source = await openSource(await file(iconv.encode(`a;b\r\n"${cell}";€\r\n`, 'win1252')), undefined)
  t.is(source.encoding, 'win1252')
  for await (const { cells } of readRows(source)) t.deepEqual(cells, { a: cell, b: '€' })
})

test('JSON lines are read back as written, with null as NULL and a missing field as a missing column', async t => {
  const property = fc.asyncProperty(
    fc.array(fc.dictionary(fc.constantFrom('a', 'b', 'c'), fc.option(texts)), { minLength: 1, maxLength: 10 }),
    async rows => {
      const path = at(`property-${randomUUID()}.jsonl`)
      const sink = await openSink(path, { format: 'jsonl', columns: [] })
      await sink.write(rows)
      await sink.close()
      const cells: unknown[] = []
      for await (const row of readRows(await openSource(path, undefined))) cells.push({ ...row.cells })
      t.deepEqual(
        cells,
        rows.map(row => ({ ...row })),
      )
    },
  )
  await fc.assert(property, { numRuns: 50 })
  const broken = await openSource(await file('{"a":1}\n[1]\n{"a":{}}\n\n{', 'jsonl'), undefined)
  const problems: unknown[] = []
  for await (const { line, problem } of readRows(broken)) problems.push([line, problem])
  t.deepEqual(problems, [
    [1, undefined],
    [2, 'The line is not a JSON object.'],
    [3, 'a must not be an object or an array.'],
    [5, 'The line is not a JSON object.'],
  ])
})

test('--keep-ids keeps the ids of another system, and the report names the lines whose ids can’t be kept', async t => {
  const env = await installedRegistry(t)
  const run = async (noun: string, path: string, ...options: string[]) => {
    const { code, stdout, stderr } = await runCli(env, [noun, 'import', path, '--json', ...options])
    return { code, stderr, ...JSON.parse(stdout) }
  }
  const rows = (text: string) => ask(env.DATABASE_URL, text)
  const list = await file('id,active,name,inep_code\n3,True,Escola 1,11000001\n618,False,Escola 2,NULL\n')
  const report = at('ids.csv')
  t.like(await run('organizations', list, '--report', report), { code: 6, created: 0, rejected: 2 })
  t.regex((await readFile(report, 'utf8')).split('\n')[1]!, /id,.*--keep-ids/)
  t.like(await run('organizations', list, '--keep-ids', '--dry-run'), { code: 0, created: 2, keepIds: true })
  t.like(await run('organizations', list, '--keep-ids'), { code: 0, created: 2, rejected: 0, stderr: '' })
  const wrong = await file('id,name\n2147483647,Alto\n99999999999,Telefone\n3,Outra\n650,Boa\n')
  t.like(await run('organizations', wrong, '--keep-ids', '--report', report), { code: 6, created: 1, rejected: 3 })
  const rejected = (await readFile(report, 'utf8')).matchAll(/,(\d+,\w+),"?[^\n]*\n/g)
  t.deepEqual([...rejected].map(([, at]) => at).join(' '), '2,id 3,id 4,id')

  const head = 'id;username;state;city;role;active;termsofusage;organization_id'
  const user = (id: number, organization: number) => `${id};ana${id};SP;Bauru;ROLE_CLIENT;0;1;${organization}`
  const users = await file([head, user(60, 3), user(41, 650), user(43, 9)].join('\n'))
  t.like(await run('users', users, '--keep-ids'), { code: 6, created: 2, rejected: 1 })
  t.deepEqual(await rows('SELECT id, organization_id FROM users WHERE id > 1 ORDER BY id'), [
    { id: 41, organization_id: 650 },
    { id: 60, organization_id: 3 },
  ])
  for (const noun of ['organizations', 'users']) {
    const out = at(`kept-${noun}.csv`)
    t.is((await runCli(env, [noun, 'export', out])).code, 0)
    for (const options of [[], ['--keep-ids']])
      t.like(await run(noun, out, ...options), { code: 0, created: 0, updated: 0, rejected: 0 })
  }
})
