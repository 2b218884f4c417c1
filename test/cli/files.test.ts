/** Files as spreadsheets, databases and scripts leave them are read as meant, or refused with file, line and remedy. */
import { execFile, spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { chmod, chown, lstat, mkdir, open, readdir, readFile, stat, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import test from 'ava'
import fc from 'fast-check'
import iconv from 'iconv-lite'
import { assertRefusals, installedRegistry, program, runCli, spawnCli, uncounted } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'
import { folderForFile } from '../_helpers/files.js'
import { serviceForFile } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

const service = serviceForFile()
const cli = (...args: string[]) => runCli(service.env, args)
const sql = (text: string) => ask(service.env.DATABASE_URL!, text)

const { at, file } = folderForFile()

const imports = () => sql('SELECT count(*)::int AS n FROM imports')

/** Text whose first part is in UTF-8, its second in Windows-1252. */
const both = (first: string, second: string) => Buffer.concat([Buffer.from(first), iconv.encode(second, 'win1252')])

const utf16 = (text: string, encoding: 'utf-16le' | 'utf-16be', addBOM: boolean) =>
  iconv.encode(text, encoding, { addBOM })

/** A table of organizations, and their names as they are to be read. */
const readable: Record<string, [content: string | Buffer, names: readonly string[], extension?: string]> = {
  'a quote within an unquoted cell': ['name,type\nAna "Nana" Lima,E\n', ['Ana "Nana" Lima']],
  'a quote at the end of an unquoted cell': ['name,type\nTubo 3",E\nTubo 4" ,E\n', ['Tubo 3"', 'Tubo 4"']],
  'doubled quotes within an unquoted cell': ['name,type\nAna ""Nana"" Lima,E\n', ['Ana ""Nana"" Lima']],
  'a text as formula': ['name,type\n="11987654388",E\n', ['11987654388']],
  'a text as formula, quoted': ['name,type\n"=""00123""",E\n', ['00123']],
  'a text as formula with a quote': ['name;type\n="a ""b"" c";E\n', ['a "b" c']],
  'a guarded formula': ["name;type\n'=1+1;E\n'+5511;E\na;E\n", ['=1+1', '+5511', 'a']],
  'an apostrophe': ["name;type\nD'Ávila;E\n'Ana;E\n", ["D'Ávila", "'Ana"]],
  'line ends of CR only': ['name,type\rEscola A,E\r"Escola\rB",E\r', ['Escola A', 'Escola B']],
  'line ends of CR LF': ['name,type\r\nEscola A,E\r\nEscola B,E', ['Escola A', 'Escola B']],
  'mixed line ends': ['name,type\nEscola A,E\r\nEscola B,E\rEscola C,E\n', ['Escola A', 'Escola B', 'Escola C']],
  'blank lines': ['\n\r\nname,type\n\nEscola A,E\n   \n\t\nEscola B,E\n\n', ['Escola A', 'Escola B']],
  'lines of separators only': ['name;type\n;\nEscola A;E\n" ";\n; ;;\n', ['Escola A']],
  'separators before the header': [';;\nname;type;\nEscola A;E;\n', ['Escola A']],
  'separators at the end of each line': ['name;type;;\nEscola A;E;;\nEscola B;E;;\n', ['Escola A', 'Escola B']],
  'separators at the end of the rows': ['name;type\nEscola A;E;\nEscola B;E;;;\n', ['Escola A', 'Escola B']],
  'separated by tabs': ['name\ttype\nEscola A\tE\n', ['Escola A']],
  'separated by bars': ['name|type|phone\nEscola A; B|E|1,2\n', ['Escola A; B']],
  'a quoted header': ['"name","type"\n"Escola A","E"\n', ['Escola A']],
  'a header with invisible characters': ['\u200bname\u00a0;\u2060type;ci\u00adty\nEscola A;E;Jaú\n', ['Escola A']],
  'a header with mark, spaces and capitals': ['\ufeff Name ; TYPE \nEscola A;E\n', ['Escola A']],
  'a quoted header after a mark': ['\ufeff"Name";"Type"\nEscola A;E\n', ['Escola A']],
  'two marks': ['\ufeff\ufeffname;type\nEscola A;E\n', ['Escola A']],
  'sep=;': ['sep=;\nname;type\nEscola, A;E\n', ['Escola, A']],
  'SEP=, and CR LF': ['SEP=,\r\nname,type\r\nEscola; A,E\r\n', ['Escola; A']],
  'sep=; with mark and quotes': ['\ufeff"sep=;"\nname;type\nEscola A;E\n', ['Escola A']],
  'sep= with a tab': ['sep=\t\nname\ttype\nEscola A\tE\n', ['Escola A']],
  'a rare separator by sep=': ['sep=^\nname^type\nEscola, A;^E\n', ['Escola, A;']],
  'Unicode text, little endian': [utf16('name\ttype\r\nSão João 😀\tE\r\n', 'utf-16le', true), ['São João 😀']],
  'Unicode text, big endian': [utf16('name\ttype\r\nSão João 😀\tE\r\n', 'utf-16be', true), ['São João 😀']],
  'UTF-16 without mark, little endian': [utf16('name;type\nSão João;E\n', 'utf-16le', false), ['São João']],
  'UTF-16 without mark, big endian': [utf16('"name";type\nSão João;E\n', 'utf-16be', false), ['São João']],
  'Windows-1252': [iconv.encode('name;type\nSão João – €;E\n', 'win1252'), ['São João – €']],
  'Windows-1252 in capitals, beside quotation marks': [
    iconv.encode('name;type\n“IRMÔ, CAFÉ»;E\nMANHÖTARDE, AMANHÃ…;E\n', 'win1252'),
    ['“IRMÔ, CAFÉ»', 'MANHÖTARDE, AMANHÃ…'],
  ],
  'JSON lines with mark, CR LF and blank lines': [
    '\ufeff{"name":"Escola A"}\r\n\r\n  {"NAME":"Escola B"}  \r{"name":"Escola C"}',
    ['Escola A', 'Escola B', 'Escola C'],
    'jsonl',
  ],
  'JSON lines in UTF-16': [utf16('{"name":"São João"}\n', 'utf-16le', true), ['São João'], 'jsonl'],
  'JSON lines by another name': ['{"name":"Escola A"}\n{"name":"Escola B"}\n', ['Escola A', 'Escola B'], 'json'],
  'the header alone': ['name;type\n', []],
  'the header alone, without a line end': ['\ufeffname', []],
}

for (const [title, [content, names, extension]] of Object.entries(readable)) {
  test.serial(`a file is read: ${title}`, async t => {
    const before = (await sql('SELECT coalesce(max(id), 0) AS id FROM organizations'))[0]!.id
    const { code, stdout, stderr } = await cli('organizations', 'import', await file(content, extension), '--json')
    t.is(code, 0, stderr)
    t.is(JSON.parse(stdout).nextRow, names.length)
    const rows = await sql(`SELECT name FROM organizations WHERE id > ${before} ORDER BY id`)
    t.deepEqual(
      rows.map(({ name }) => name),
      [...names],
    )
  })
}

const zip = Buffer.concat([Buffer.from('PK\x03\x04\x14\0\x06\0'), Buffer.alloc(500, 7)])
const ole = Buffer.concat([Buffer.from('d0cf11e0a1b11ae1', 'hex'), Buffer.alloc(500)])

/** Content that is no table, and what the command says. */
const refused: Record<string, [content: string | Buffer, says: RegExp, extension?: string]> = {
  'a workbook (XLSX, ODS)': [zip, /is not a table as text\. Save it as CSV/],
  'a workbook by its own name': [zip, /is not a table as text\. Save it as CSV/, 'xlsx'],
  'a workbook as JSON lines': [zip, /is not a table as text\. Save it as CSV/, 'jsonl'],
  'a workbook (XLS)': [ole, /is not a table as text\. Save it as CSV/],
  'a PDF': ['%PDF-1.7\n%âã\nusername,name\n', /is not a table as text\. Save it as CSV/],
  'a compressed file': [Buffer.from('1f8b08000000000000ff', 'hex'), /is not a table as text\. Save it as CSV/],
  'a page of HTML': [
    '<!DOCTYPE html>\n<html><body>Sign in, please</body></html>',
    /is not a table as text\. Save it as CSV/,
  ],
  'a page of HTML after a mark': ['\ufeff\n  <html>username;name</html>', /is not a table as text\. Save it as CSV/],
  'a page of HTML as JSON lines': ['<html></html>', /is not a table as text\. Save it as CSV/, 'jsonl'],
  'a table of XML': ['<?xml version="1.0"?>\n<Workbook/>', /is not a table as text\. Save it as CSV/],
  'an empty file': ['', /is empty/],
  'an empty file of JSON lines': ['', /is empty/, 'jsonl'],
  'a mark alone': ['\ufeff', /is empty/],
  'blank lines alone': ['\r\n \n;;;\n', /is empty/],
  'sep=; alone': ['sep=;\n', /is empty/],
  'rows without a header': ['Escola A;E\nEscola B;E\n', /line 1: .* no column/],
  'a title before the header': ['Lista de 2026\nusername;name\nana;Ana\n', /line 1: .* no column/],
  'a header without an identifying column, and no rows': ['city;state\n', /line 1: .* no column/],
  'JSON lines without an identifying field': ['{"city":"Bauru"}\n', /no column/, 'jsonl'],
  'a JSON array': ['[{"username":"ana","name":"Ana"}]', /one object on each line/],
  'a JSON array over many lines': ['[\n  {\n    "username": "ana"\n  }\n]\n', /one object on each line/, 'json'],
  'a JSON array as JSON lines': ['\n[{"username":"ana"}]', /one object on each line/, 'jsonl'],
  'a JSON document over many lines': ['{\n  "users": []\n}\n', /one object on each line/, 'json'],
  'two columns of a name': ['username;name;Username\na;b;c\n', /two columns username/],
  bytes: [Buffer.from([1, 0, 0, 7, 0, 255, 0, 9, 0, 0, 3]), /is not a table as text\. Save it as CSV/],
  'UTF-32': [iconv.encode('username,name\n', 'utf-32le', { addBOM: true }), /is not a table as text\. Save it as CSV/],
}

for (const [title, [content, says, extension]] of Object.entries(refused)) {
  test.serial(`a file is refused, with exit code 2 and nothing written: ${title}`, async t => {
    const path = await file(content, extension)
    const before = await imports()
    for (const noun of ['users', 'organizations'])
      for (const more of [[], ['--dry-run']])
        await assertRefusals(t, cli, [
          [new RegExp(`^error: ${path}.*${says.source}`), 2, noun, 'import', path, ...more],
        ])
    t.deepEqual(await imports(), before)
  })
}

const quote = /quote/
const long = /262,144 characters/
const encoding = /neither UTF-8 nor Windows-1252.*Save the file as UTF-8/

/** Files that end in the middle, have a row that doesn't, or are in no encoding or in two: the line, and what is wrong. */
const broken: Record<string, [content: string | Buffer, line: number, says: RegExp, extension?: string]> = {
  'a quote that never closes': ['name,type\nA,E\n"B,E\nC,E\n', 3, quote],
  'a quote that never closes, after line breaks': ['name,type\r\n"A\r\nA",E\r\n\r\n"B,E\r\n', 5, quote],
  'a quote that never closes in the header': ['"name,type\nA,E\n', 1, quote],
  'a quote that never closes in a long file': [`name\nA\n"B\n${'abcdefg\n'.repeat(100_000)}`, 3, long],
  'a long line': [`name\nA\n${'x'.repeat(300_000)}\nB\n`, 3, long],
  'a long header': [`name${','.repeat(300_000)}\n`, 1, long],
  'a long line of JSON': [`{"name":"A"}\n\n{"name":"${'x'.repeat(300_000)}"}\n`, 3, long, 'jsonl'],
  'old Macintosh': [iconv.encode('name,type\rSão João,E\rConceição,E\r', 'macroman'), 3, encoding],
  'old Macintosh, as JSON lines': [
    iconv.encode('name,type\rSão João,E\rConceição,E\r', 'macroman'),
    3,
    encoding,
    'jsonl',
  ],
  'UTF-8, and then Windows-1252': [both('name;type\n\nConceição;E\n', 'João;E\n'), 3, encoding],
  'Windows-1252, and then UTF-8': [
    Buffer.concat([iconv.encode('name;type\r\nJoão;E\r\n', 'win1252'), Buffer.from('Conceição;E\r\n')]),
    ...([3, encoding] as const),
  ],
  'UTF-8 in capitals, and then Windows-1252': [both('name;type\nCONCEIÇÃO;E\n', 'JOÃO;E\n'), 2, encoding],
  'UTF-8 that was cut': [Buffer.from('name;type\nConceição;E\nJoão').subarray(0, -2), 2, encoding],
}

for (const [title, [content, line, says, extension]] of Object.entries(broken)) {
  test.serial(`a file is refused with the line: ${title}`, async t => {
    const path = await file(content, extension)
    const before = await imports()
    const { code, stderr } = await cli('organizations', 'import', path)
    // It ends before the first row is applied if the encoding is unknown.
    t.is(code, says === encoding ? 2 : 1)
    if (says === encoding) t.deepEqual(await imports(), before)
    t.true(stderr.startsWith(`error: ${path}, line ${line}: `), stderr.slice(0, 300))
    t.regex(stderr, says)
    t.notRegex(stderr, /CSV_|Internal|RangeError/)
  })
}

/** Rows that are rejected while the rest of their file is read. */
const rejected: Record<string, [row: string, says: RegExp]> = {
  'text after a closing quote': ['"Ana" Lima;E', /closing quote/],
  'quotes that aren’t doubled': ['"Ana "Nana" Lima";E', /closing quote/],
  'too few cells': ['Ana', /1 cells?, the head 2/],
  'too many cells': ['Ana;E;x', /3 cells, the head 2/],
  'a NUL': ['An\0a;E', /control characters/],
}

for (const [title, [row, says]] of Object.entries(rejected)) {
  test.serial(`a row is rejected with its line, and the others are read: ${title}`, async t => {
    const [path, report] = [await file(`name;type\n\nbefore;E\n${row}\nafter;E\n`), at(`${randomUUID()}.report`)]
    const { code, stdout, stderr } = await cli('organizations', 'import', path, '--json', '--report', report)
    t.is(code, 6, stderr)
    t.like(JSON.parse(stdout), { created: 2, rejected: 1 })
    const { stdout: shown } = await cli('organizations', 'import', report, '--json', '--dry-run')
    t.like(JSON.parse(shown), { nextRow: 1 })
    const [, reported] = (await readFile(report, 'utf8')).split('\n')
    t.regex(reported!, /;4;/)
    t.regex(reported!, says)
  })
}

const head = 'username;state;city;role;termsofusage;active'
const users = (...names: string[]) => `${[head, ...names.map(name => `${name};SP;Bauru;ROLE_CLIENT;1;1`)].join('\n')}\n`

test.serial('what can be read only once is refused with a sentence that says why', async t => {
  const pipe = at('pipe')
  await promisify(execFile)('mkfifo', [pipe])
  const says = /^error: \S+ is not a regular file, which an import reads more than once\./
  for (const path of [pipe, '/dev/null', at('.')]) await assertRefusals(t, cli, [[says, 2, 'users', 'import', path]])
})

test.serial('telephone numbers that a spreadsheet changed are rejected as usernames, in a dry run too', async t => {
  const damaged = [
    ...['5,51199E+12', '5.51199E+12', '1.1987654321E10', '1,1987654321e+10', '5E+12', '1,19877E+010', '119876543E2'],
    ...['11987654321,00', '11987654321,0', '11987654399.0', '5511987654321.00', '1198765432.0', '11987654321,'],
    ...['11,987,654,321', '11.987.654.321,00', '11,987,654,321.00', "'11987654321", '="11987654321', '=11987654321'],
    ...['１１９８７６５４３２１,００', '+5,51199E+12', '11 987654321,00', 'R$ 11.987.654.321,00'],
  ]
  const intact = [
    ...['11.987.654.321', '11 98765-4322', '(011) 98765-4323', '5511987654324', 'maria.e12', '2e', 'turma 1,5'],
  ]
  for (const more of [['--dry-run'], []]) {
    for (const extension of ['csv', 'jsonl']) {
      const row = { state: 'SP', city: 'Bauru', role: 'ROLE_CLIENT', termsofusage: true, active: true }
      const content =
        extension === 'csv'
          ? users(...damaged.map(name => `"${name.replaceAll('"', '""')}"`))
          : damaged.map(username => JSON.stringify({ username, ...row })).join('\n')
      const report = at(`${randomUUID()}.report.${extension}`)
      const path = await file(content, extension)
      const { code, stdout } = await cli('users', 'import', path, '--json', '--report', report, ...more)
      t.is(code, 6)
      t.like(JSON.parse(stdout), { created: 0, updated: 0, rejected: damaged.length })
      const reasons = (await readFile(report, 'utf8')).match(/A spreadsheet has changed this telephone number/g)
      t.is(reasons?.length, damaged.length)
    }
  }
  const { stdout } = await cli('users', 'import', await file(users(...intact)), '--json')
  t.like(JSON.parse(stdout), { created: intact.length, rejected: 0 })
})

test.serial('INEP codes that a spreadsheet changed are rejected', async t => {
  for (const code of ['3,5E+07', '35000000,00', '35000000.0', '="35000000', '35,123,456']) {
    const { code: exitCode, stderr } = await cli(
      'organizations',
      'import',
      await file(`name;inep_code\nTrocada;${code}\n`),
    )
    t.is(exitCode, 6, code)
    t.regex(stderr, /^Line 2, inep_code: A spreadsheet has changed this INEP code: enter it again,/m, code)
  }
  const { stdout } = await cli('organizations', 'import', await file('name;inep_code\nInteira;35000001\n'), '--json')
  t.like(JSON.parse(stdout), { created: 1, rejected: 0 })
})

test.serial('a user whose username is such a number already is changed as before, and no other user is', async t => {
  for (const username of ['5,51199E+13', '1132221000', '11987650000'])
    await service.signUp('ROLE_CLIENT', { username, nickname: `n ${username}` })
  const id = (await sql(`SELECT id FROM users WHERE username = '11987650000'`))[0]!.id
  const content = `id;username;city\n;5,51199E+13;Jaú\n;5,51199e+13;Jaú\n;1132221000.0;Jaú\n${id};1,1E+10;Jaú\n`
  const { stdout } = await cli('users', 'import', await file(content), '--json')
  // The second row means the same user as the first one.
  t.like(JSON.parse(stdout), { updated: 1, unchanged: 0, rejected: 3 })
  const rows = await sql(`SELECT username FROM users WHERE city = 'Jaú' ORDER BY id`)
  t.deepEqual(rows, [{ username: '5,51199E+13' }])
})

test.serial('dates of files are read as spreadsheets and programs write them', async t => {
  const days = [
    ...['01/02/2010', '01/02/2010 00:00', '01/02/2010 0:00', '01/02/2010 00:00:00', ' 01/02/2010  23:59:59 '],
    ...['2010-02-01', '2010-02-01 00:00:00', '2010-02-01 00:00', '2010-02-01 00:00:00.000', '2010-02-01T00:00:00'],
    ...['2010-02-01T00:00:00Z', '2010-02-01T00:00:00.000Z', '2010-02-01T00:00:00+00:00', '2010-02-01 00:00:00+00'],
    '2010-02-01T00:00:00-03:00',
  ]
  const before = ['2010-02-01T01:30:00Z', '2010-02-01 01:30:00+00']
  const wrong = ['01/02/2010 24:00', '01/02/2010 12:60', '32/01/2010', '02/13/2010', '1/2/10', '40210', '2010-02-01 x']
  const all = [...days, ...before, ...wrong]
  for (const [noun, header, cells, column, name] of [
    [
      'users',
      'username;state;city;role;termsofusage;dateofborn',
      'SP;Bauru;ROLE_CLIENT;1;',
      'date_of_birth',
      'username',
    ],
    ['organizations', 'name;creation_date', '', 'creation_date', 'name'],
  ] as const) {
    const path = await file([header, ...all.map((day, n) => `dia-${n};${cells}"${day}"`)].join('\n'))
    const { code, stdout } = await cli(noun, 'import', path, '--json')
    t.is(code, 6)
    t.like(JSON.parse(stdout), { created: days.length + before.length, rejected: wrong.length })
    const read = await sql(`SELECT ${column}::text AS day FROM ${noun} WHERE ${name} LIKE 'dia-%' ORDER BY id`)
    t.deepEqual(
      read.map(({ day }) => day),
      [...days.map(() => '2010-02-01'), ...before.map(() => '2010-01-31')],
    )
  }
})

test.serial('Booleans are read in English and Portuguese, in any case', async t => {
  const yes = ['TRUE', 'True', 't', '1', 'VERDADEIRO', 'Verdadeiro', 'v', 'sim', 'SIM', 'S', 'yes', 'Y', ' sim ']
  const no = ['FALSE', 'False', 'f', '0', 'FALSO', 'não', 'NÃO', 'na\u0303o', 'nao', 'n', 'no']
  const wrong = ['x', '2', '-', 'ativo', 'talvez']
  const all = [...yes, ...no, ...wrong]
  const rows = all.map((word, n) => `sim-${n};SP;Bauru;ROLE_CLIENT;${word};${word}`)
  const { stdout } = await cli('users', 'import', await file([head, ...rows].join('\n')), '--json')
  t.like(JSON.parse(stdout), { created: yes.length + no.length, rejected: wrong.length })
  const read = await sql(`SELECT active, terms_of_usage FROM users WHERE username LIKE 'sim-%' ORDER BY id`)
  t.deepEqual(
    read.map(({ active, terms_of_usage }, n) => [all[n], active, terms_of_usage]),
    [...yes.map(word => [word, true, true]), ...no.map(word => [word, false, false])],
  )
})

test.serial('an import says in one line how it reads the file', async t => {
  const tabs = utf16('name\tcreation_date\nA\t2010-02-01\nB\t01/02/2010\n', 'utf-16le', true)
  const birth = '{"username":"dia-x","dateofborn":"2010-02-01T00:00:00Z"}'
  for (const [says, [noun, content, extension]] of Object.entries<[string, string | Buffer, string?]>({
    'CSV in UTF-8, separated by semicolons, dates dd/MM/yyyy': ['organizations', 'name;creation_date\nA;01/02/2010\n'],
    'CSV in UTF-8, separated by commas': ['organizations', 'name,type\nA,E\n'],
    'CSV in UTF-16, separated by tabs, dates dd/MM/yyyy and yyyy-MM-dd': ['organizations', tabs],
    'CSV in Windows-1252, separated by |': ['organizations', iconv.encode('name|type\nSão|E\n', 'win1252')],
    'JSON lines in UTF-8, dates yyyy-MM-dd': ['users', birth, 'jsonl'],
  })) {
    const path = await file(content, extension)
    const { stderr } = await cli(noun, 'import', path, '--dry-run')
    t.true(stderr.split('\n').includes(`${path} is read as ${says}.`), stderr)
  }
})

/** Cells of a line as a spreadsheet separates them, whatever separator it expects. */
const cellsFor = (line: string, separator: string) => line.split(separator).map(cell => cell.replace(/^["\s]+/, ''))

test.serial('no cell of an export for spreadsheets is a formula, whatever separates cells', async t => {
  const texts = [
    '=1+1',
    ...['a;=cmd', 'a,=cmd', 'a;+1', 'a,-1', 'a;@x', '+1', '-1', '@x', '＝1', 'a;＋1', 'a,－1', '＠x'],
    ...['; =x', 'a;"=cmd"', '"=cmd"', 'a|=x', "'=1", "a;'=1", '=A1;=B2', '==1', '="1"', 'a\n=x', 'a\r\n+x'],
  ]
  const rows = texts.map((address, n) => JSON.stringify({ name: 'Fórmula', inep_code: `formula-${n}`, address }))
  t.is((await cli('organizations', 'import', await file(rows.join('\n'), 'jsonl'))).code, 0)
  const out = at('guarded.csv')
  t.is((await cli('organizations', 'export', out, '--spreadsheet')).code, 0)
  const written = await readFile(out, 'utf8')
  // Excel reads UTF-8 with a byte order mark only.
  t.regex(written, /^\ufeff"id","name",/)
  for (const line of written.split(/[\r\n]+/)) {
    if (line !== '' && !line.startsWith('"')) t.notRegex(line, /^\s*[=+\-@＝＋－＠]/)
    for (const separator of [',', ';', '\t', '|'])
      for (const cell of cellsFor(line, separator)) t.notRegex(cell, /^[=+\-@＝＋－＠]/, line)
  }
  t.is((await cli('organizations', 'export', out)).code, 0)
  t.notRegex((await readFile(out, 'utf8')).split('\r\n')[0]!, /"/)
})

test.serial('exports, for spreadsheets or not, are imported unchanged whatever their texts are', async t => {
  const unit = fc.constantFrom(...[',', ';', '"', '\n', ' ', 'a', "'", '=', '+', '-', '@', '＝', '|', '1'])
  const text = fc.oneof(
    fc.string({ unit, minLength: 1, maxLength: 12 }),
    fc.constantFrom('="1"', '=""', '="a""b"', "'=1", "''=1", '\'"=1', '="', '"="', 'NULL', "'NULL", 'sep=;', "'+55"),
  )
  const addresses = fc.sample(
    text.filter(each => each.trim() !== ''),
    400,
  )
  const oneLine = (each: string) => each.replaceAll('\n', ' ').trim() || 'a'
  const rows = addresses.map((address, n) => {
    const phone = oneLine(addresses.at(-n - 1)!)
    return JSON.stringify({ name: oneLine(address), inep_code: `any-${n}`, address, phone })
  })
  const { stdout, stderr } = await cli('organizations', 'import', await file(rows.join('\n'), 'jsonl'), '--json')
  t.like(JSON.parse(stdout), { created: 400, rejected: 0 }, stderr)
  const stored = () => sql(`SELECT name, address, phone FROM organizations WHERE inep_code LIKE 'any-%' ORDER BY id`)
  const before = await stored()
  for (const [extension, ...more] of [['csv', '--spreadsheet'], ['csv'], ['jsonl']] as const) {
    const out = at(`any-${more.length}.${extension}`)
    t.is((await cli('organizations', 'export', out, ...more)).code, 0)
    const again = JSON.parse((await cli('organizations', 'import', out, '--json')).stdout)
    t.like(again, { created: 0, updated: 0, rejected: 0, changes: {} })
    t.true(again.unchanged >= 400)
  }
  t.deepEqual(await stored(), before)
})

test.serial('passwords of a file are read as they are, and reported as they were', async t => {
  const words = ["'=geheim-123", "'+55 sesam öffne", '=abrete sesamo', 'a;"b",\'-c d']
  const rows = words.map((word, n) => `senha-${n};SP;Bauru;ROLE_CLIENT;1;"${word.replaceAll('"', '""')}"`)
  const path = await file(
    ['username;state;city;role;termsofusage;password', ...rows].join('\n').replaceAll(';SP;', ';SPX;'),
  )
  const report = at('passwords.report')
  t.is((await cli('users', 'import', path, '--report', report)).code, 6)
  const mended = await file((await readFile(report, 'utf8')).replaceAll(';SPX;', ';SP;'))
  t.is((await cli('users', 'import', mended)).code, 0)
  for (const [n, word] of words.entries()) t.truthy(await service.login(`senha-${n}`, word), word)
})

// Files with secrets or personal data that commands write: no other user can read them, or have them written elsewhere.

/** Commands that write a file, what is in it, and the exit code. */
const commands: Record<string, [holds: string, code: number]> = {
  'users export FILE': ['admin', 0],
  'users export FILE --with-secrets': ['password_hash', 0],
  'organizations export FILE': ['email', 0],
  'organizations import LIST --report FILE --dry-run': ['error_reason', 6],
}

for (const [command, [holds, code]] of Object.entries(commands)) {
  test(`${command}: the file is its owner’s only; a link, a folder and a file of another user are refused and stay`, async t => {
    const env = await installedRegistry(t)
    const path = await temporaryFolder(t)
    const at = (name: string) => join(path, name)
    await writeFile(at('list.csv'), 'id,name\n999999,Escola\n')
    const write = (name: string) =>
      runCli(env, command.replace('LIST', at('list.csv')).replace('FILE', at(name)).split(' '))
    await writeFile(at('open.csv'), 'former content')
    await chmod(at('open.csv'), 0o644)
    const reader = await open(at('open.csv'))
    for (const name of ['fresh.csv', 'open.csv']) {
      const ran = await write(name)
      t.is(ran.code, code, ran.stderr)
      t.is((await stat(at(name))).mode & 0o777, 0o600)
      t.true((await readFile(at(name), 'utf8')).includes(holds))
    }
    // Who has opened the former file reads nothing new.
    t.is(await reader.readFile('utf8'), 'former content')
    await reader.close()
    t.deepEqual((await readdir(path)).sort(), ['fresh.csv', 'list.csv', 'open.csv'], 'nothing else is left')

    for (const name of ['target', 'theirs.csv']) await writeFile(at(name), 'former content')
    await symlink(at('target'), at('link.csv'))
    await symlink(at('nothing'), at('dangling.csv'))
    await mkdir(at('folder.csv'))
    const refused: Record<string, RegExp> = {
      'link.csv': /link\.csv is a symbolic link.*name the file itself\./,
      'dangling.csv': /dangling\.csv is a symbolic link/,
      'folder.csv': /folder\.csv exists and is not a regular file: choose another file\./,
    }
    if (process.getuid?.() === 0) {
      await chown(at('theirs.csv'), 12345, 12345)
      refused['theirs.csv'] = /theirs\.csv belongs to another user: choose another file/
    }
    const before = await readdir(path)
    for (const [name, says] of Object.entries(refused)) {
      const ran = await write(name)
      t.is(ran.code, 1, ran.stderr)
      t.regex(ran.stderr, says)
    }
    t.deepEqual(await readdir(path), before)
    for (const name of ['target', 'theirs.csv']) t.is(await readFile(at(name), 'utf8'), 'former content')
    t.true((await lstat(at('link.csv'))).isSymbolicLink())
  })
}

/** Runs a script of the shell, in which "$@" is the program. */
const shell = (env: Record<string, string>, script: string, ...args: string[]) =>
  spawnSync('sh', ['-c', script, 'sh', process.execPath, program, ...args], {
    env: { PATH: process.env.PATH, HOME: process.env.HOME, ...env },
    encoding: 'utf8',
  })

test('an export to /dev/stdout or a descriptor of the shell is written there', async t => {
  const env = await installedRegistry(t)
  for (const target of ['/dev/stdout', '/dev/fd/3']) {
    const { stdout, stderr } = shell(env, `"$@" users export ${target} --format csv --with-secrets 3>&1 | cat`)
    t.regex(stdout, /^id,username.*password_hash/, stderr)
  }
})

test('an export that fails leaves the former file', async t => {
  const env = await installedRegistry(t)
  const path = await temporaryFolder(t)
  const file = join(path, 'users.csv')
  await writeFile(file, 'former content')
  const script = `trap '' XFSZ; ulimit -f 0 && exec "$@"`
  const { status, stderr } = shell(env, script, 'users', 'export', file, '--with-secrets')
  t.is(status, 1, stderr)
  t.regex(stderr, /EFBIG/)
  t.is(await readFile(file, 'utf8'), 'former content')
  t.deepEqual(await readdir(path), ['users.csv'])
})

test('a backup and a new passphrase are their owner’s only, and no link is followed', async t => {
  const env = await installedRegistry(t)
  const path = await temporaryFolder(t)
  const [file, words] = [join(path, 'registry.age'), join(path, 'words')]
  await symlink(join(path, 'elsewhere'), join(path, 'link.age'))
  for (const args of [
    [file, '--passphrase-file', join(path, 'link.age')],
    [join(path, 'link.age'), '--passphrase-file', words],
  ]) {
    const refused = await runCli(env, ['backup', ...args])
    t.is(refused.code, 1)
    t.regex(refused.stderr, /link\.age is a symbolic link/)
  }
  const { code, stderr } = await spawnCli({ ...env, ...uncounted }, ['backup', file, '--passphrase-file', words])
  t.is(code, 0, stderr)
  for (const each of [file, words]) t.is((await stat(each)).mode & 0o777, 0o600)
  t.deepEqual((await readdir(path)).sort(), ['link.age', 'registry.age', 'words'])
})
