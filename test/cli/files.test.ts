/** Files as spreadsheets, databases and scripts leave them are read as meant, or refused with file, line and remedy. */
import { execFile, spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { chmod, chown, lstat, mkdir, readdir, readFile, stat, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import test from 'ava'
import fc from 'fast-check'
import iconv from 'iconv-lite'
import { installedRegistry, program, runCli } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'
import { folderForFile } from '../_helpers/files.js'
import { serviceForFile } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

const service = serviceForFile()
const cli = (...args: string[]) => runCli(service.env, args)
const sql = (text: string) => ask(service.env.DATABASE_URL!, text)

const { at, file } = folderForFile()

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
  'a workbook (XLSX, ODS)': [zip, /is a workbook.*Save it as CSV/],
  'a workbook by its own name': [zip, /is a workbook.*Save it as CSV/, 'xlsx'],
  'a workbook as JSON lines': [zip, /is a workbook/, 'jsonl'],
  'a workbook (XLS)': [ole, /is a workbook.*Save it as CSV/],
  'a PDF': ['%PDF-1.7\n%âã\nusername,name\n', /is a PDF/],
  'a compressed file': [Buffer.from('1f8b08000000000000ff', 'hex'), /is compressed.*Unpack it/],
  'a page of HTML': ['<!DOCTYPE html>\n<html><body>Sign in, please</body></html>', /is a page of HTML or XML/],
  'a page of HTML after a mark': ['\ufeff\n  <html>username;name</html>', /is a page of HTML or XML/],
  'a page of HTML as JSON lines': ['<html></html>', /is a page of HTML or XML/, 'jsonl'],
  'a table of XML': ['<?xml version="1.0"?>\n<Workbook/>', /is a page of HTML or XML/],
  'an empty file': ['', /is empty/],
  'an empty file of JSON lines': ['', /is empty/, 'jsonl'],
  'a mark alone': ['\ufeff', /is empty/],
  'blank lines alone': ['\r\n \n;;;\n', /is empty/],
  'sep=; alone': ['sep=;\n', /is empty/],
  'rows without a header': ['Escola A;E\nEscola B;E\n', /line 1: .* no column/],
  'a title before the header': ['Lista de 2026\nusername;name\nana;Ana\n', /line 1: .* no column/],
  'a header without an identifying column, and no rows': ['city;state\n', /line 1: .* no column/],
  'JSON lines without an identifying field': ['{"city":"Bauru"}\n', /no column/, 'jsonl'],
  'a JSON array': ['[{"username":"ana","name":"Ana"}]', /is a JSON array.*one object on each line/],
  'a JSON array over many lines': ['[\n  {\n    "username": "ana"\n  }\n]\n', /is a JSON array/, 'json'],
  'a JSON array as JSON lines': ['\n[{"username":"ana"}]', /is a JSON array/, 'jsonl'],
  'a JSON document over many lines': ['{\n  "users": []\n}\n', /line 1: .*one object on each line/, 'json'],
  'two columns of a name': ['username;name;Username\na;b;c\n', /two columns username/],
  bytes: [Buffer.from([1, 0, 0, 7, 0, 255, 0, 9, 0, 0, 3]), /is not a text file/],
  'UTF-32': [iconv.encode('username,name\n', 'utf-32le', { addBOM: true }), /is not a text file/],
}

for (const [title, [content, says, extension]] of Object.entries(refused)) {
  test.serial(`a file is refused, with exit code 2 and nothing written: ${title}`, async t => {
    const path = await file(content, extension)
    const before = await sql('SELECT count(*)::int AS n FROM imports')
    for (const noun of ['users', 'organizations']) {
      for (const more of [[], ['--dry-run']]) {
        const { code, stdout, stderr } = await cli(noun, 'import', path, ...more)
        t.is(code, 2, stdout + stderr)
        t.is(stdout, '')
        t.true(stderr.startsWith(`error: ${path}`), stderr)
        t.regex(stderr, says)
        t.is(stderr.trim().split('\n').length, 1)
      }
    }
    t.deepEqual(await sql('SELECT count(*)::int AS n FROM imports'), before)
  })
}

/** Files that end in the middle, or have a row that doesn't: the line where it begins. */
const broken: Record<string, [content: string, line: number, says: RegExp, extension?: string]> = {
  'a quote that never closes': ['name,type\nA,E\n"B,E\nC,E\n', 3, /quote/],
  'a quote that never closes, after line breaks': ['name,type\r\n"A\r\nA",E\r\n\r\n"B,E\r\n', 5, /quote/],
  'a quote that never closes in the header': ['"name,type\nA,E\n', 1, /quote/],
  'a quote that never closes in a long file': [`name\nA\n"B\n${'abcdefg\n'.repeat(100_000)}`, 3, /262,144 characters/],
  'a long line': [`name\nA\n${'x'.repeat(300_000)}\nB\n`, 3, /262,144 characters/],
  'a long header': [`name${','.repeat(300_000)}\n`, 1, /262,144 characters/],
  'a long line of JSON': [`{"name":"A"}\n\n{"name":"${'x'.repeat(300_000)}"}\n`, 3, /262,144 characters/, 'jsonl'],
}

for (const [title, [content, line, says, extension]] of Object.entries(broken)) {
  test.serial(`a file is refused with the line: ${title}`, async t => {
    const path = await file(content, extension)
    const { code, stdout, stderr } = await cli('organizations', 'import', path)
    t.is(code, 1, stdout + stderr)
    t.true(stderr.startsWith(`error: ${path}, line ${line}: `), stderr.slice(0, 300))
    t.regex(stderr, says)
    t.notRegex(stderr, /CSV_|Internal|RangeError/)
  })
}

/** Texts in an encoding that isn’t known, or in two: the first line that shows it. */
const undecodable: Record<string, [content: Buffer, line: number]> = {
  'letters of an old Macintosh': [iconv.encode('name,type\rSão João,E\rConceição,E\r', 'macroman'), 3],
  'UTF-8, and then Windows-1252': [
    Buffer.concat([Buffer.from('name;type\n\nConceição;E\n'), iconv.encode('João;E\n', 'win1252')]),
    3,
  ],
  'Windows-1252, and then UTF-8': [
    Buffer.concat([iconv.encode('name;type\r\nJoão;E\r\n', 'win1252'), Buffer.from('Conceição;E\r\n')]),
    3,
  ],
  'UTF-8 in capitals, and then Windows-1252': [
    Buffer.concat([Buffer.from('name;type\nCONCEIÇÃO;E\n'), iconv.encode('JOÃO;E\n', 'win1252')]),
    2,
  ],
  'UTF-8 that was cut': [Buffer.from('name;type\nConceição;E\nJoão').subarray(0, -2), 2],
}

for (const [title, [content, line]] of Object.entries(undecodable)) {
  test.serial(`a file is refused, with the line and nothing written: ${title}`, async t => {
    for (const extension of ['csv', 'jsonl']) {
      const path = await file(content, extension)
      const before = await sql('SELECT count(*)::int AS n FROM imports')
      const { code, stdout, stderr } = await cli('organizations', 'import', path)
      t.is(code, 2, stdout + stderr)
      t.true(stderr.startsWith(`error: ${path}, line ${line}: `), stderr)
      t.regex(stderr, /neither UTF-8 nor Windows-1252.*Save the file as UTF-8/)
      t.deepEqual(await sql('SELECT count(*)::int AS n FROM imports'), before)
    }
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
    const [, reported] = (await readFile(report, 'utf8')).split('\r\n')
    t.regex(reported!, /;4;/)
    t.regex(reported!, says)
  })
}

const head = 'username;state;city;role;termsofusage;active'
const users = (...names: string[]) => `${[head, ...names.map(name => `${name};SP;Bauru;ROLE_CLIENT;1;1`)].join('\n')}\n`

test.serial('what can be read only once is refused with a sentence that says why', async t => {
  const pipe = at('pipe')
  await promisify(execFile)('mkfifo', [pipe])
  for (const path of [pipe, '/dev/null', at('.')]) {
    const { code, stderr } = await cli('users', 'import', path)
    t.is(code, 2)
    t.regex(stderr, /^error: \S+ is not a regular file, which an import reads more than once\.[^\n]+\n$/)
  }
})

test.serial('telephone numbers that a spreadsheet changed are rejected as usernames, in a dry run too', async t => {
  const damaged = [
    ...['5,51199E+12', '5.51199E+12', '1.1987654321E10', '1,1987654321e+10', '5E+12', '1,19877E+010', '119876543E2'],
    ...['11987654321,00', '11987654321,0', '11987654399.0', '5511987654321.00', '1198765432.0', '11987654321,'],
    ...['11,987,654,321', '11.987.654.321,00', '11,987,654,321.00', "'11987654321", '="11987654321', '=11987654321'],
    ...['１１９８７６５４３２１,００', '+5,51199E+12', '11 987654321,00', 'R$ 11.987.654.321,00'],
  ]
  const intact = [
    '11.987.654.321',
    '11 98765-4322',
    '(011) 98765-4323',
    '5511987654324',
    'maria.e12',
    '2e',
    'turma 1,5',
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
  const days: Record<string, string> = {
    '01/02/2010': '2010-02-01',
    '01/02/2010 00:00': '2010-02-01',
    '01/02/2010 0:00': '2010-02-01',
    '01/02/2010 00:00:00': '2010-02-01',
    ' 01/02/2010  23:59:59 ': '2010-02-01',
    '2010-02-01': '2010-02-01',
    '2010-02-01 00:00:00': '2010-02-01',
    '2010-02-01 00:00': '2010-02-01',
    '2010-02-01 00:00:00.000': '2010-02-01',
    '2010-02-01T00:00:00': '2010-02-01',
    '2010-02-01T00:00:00Z': '2010-02-01',
    '2010-02-01T00:00:00.000Z': '2010-02-01',
    '2010-02-01T00:00:00+00:00': '2010-02-01',
    '2010-02-01 00:00:00+00': '2010-02-01',
    '2010-02-01T01:30:00Z': '2010-01-31',
    '2010-02-01 01:30:00+00': '2010-01-31',
    '2010-02-01T00:00:00-03:00': '2010-02-01',
  }
  const wrong = ['01/02/2010 24:00', '01/02/2010 12:60', '32/01/2010', '02/13/2010', '1/2/10', '40210', '2010-02-01 x']
  const all = [...Object.keys(days), ...wrong]
  const rows = all.map((day, n) => `dia-${n};SP;Bauru;ROLE_CLIENT;1;"${day}"`)
  const path = await file(['username;state;city;role;termsofusage;dateofborn', ...rows].join('\n'))
  const report = at('days.report')
  const { code, stdout } = await cli('users', 'import', path, '--json', '--report', report)
  t.is(code, 6)
  t.like(JSON.parse(stdout), { created: Object.keys(days).length, rejected: wrong.length })
  const read = await sql(`SELECT date_of_birth::text AS day FROM users WHERE username LIKE 'dia-%' ORDER BY id`)
  t.deepEqual(
    read.map(({ day }, n) => [all[n], day]),
    Object.entries(days),
  )
  const names = all.map((day, n) => `dia ${n};"${day}"`)
  const other = await file(['name;creation_date', ...names].join('\n'))
  const { stdout: counted } = await cli('organizations', 'import', other, '--json')
  t.like(JSON.parse(counted), { created: Object.keys(days).length, rejected: wrong.length })
  const created = await sql(`SELECT creation_date::text AS day FROM organizations WHERE name LIKE 'dia %' ORDER BY id`)
  t.deepEqual(
    created.map(({ day }, n) => [all[n], day]),
    Object.entries(days),
  )
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
  const cases: [content: string | Buffer, noun: string, says: string, extension?: string][] = [
    ['name;creation_date\nA;01/02/2010\n', 'organizations', 'CSV in UTF-8, separated by semicolons, dates dd/MM/yyyy'],
    ['name,type\nA,E\n', 'organizations', 'CSV in UTF-8, separated by commas'],
    [
      utf16('name\tcreation_date\nA\t2010-02-01\nB\t01/02/2010\n', 'utf-16le', true),
      'organizations',
      'CSV in UTF-16, separated by tabs, dates dd/MM/yyyy and yyyy-MM-dd',
    ],
    [iconv.encode('name|type\nSão|E\n', 'win1252'), 'organizations', 'CSV in Windows-1252, separated by |'],
    [
      '{"username":"dia-x","dateofborn":"2010-02-01T00:00:00Z"}',
      'users',
      'JSON lines in UTF-8, dates yyyy-MM-dd',
      'jsonl',
    ],
  ]
  for (const [content, noun, says, extension] of cases) {
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
  t.regex(written, /^"id","name",/)
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

// Files with secrets or personal data that commands write: nobody else can read them, or have them written elsewhere.

const list = 'id,name\n999999,Escola\n'

/** Commands that write a file, and what is in it. */
const commands: Record<string, { args: (file: string, list: string) => string[]; holds: string; code: number }> = {
  'users export': { args: file => ['users', 'export', file], holds: 'admin', code: 0 },
  'users export --with-secrets': {
    args: file => ['users', 'export', file, '--with-secrets'],
    holds: 'password_hash',
    code: 0,
  },
  'organizations export': { args: file => ['organizations', 'export', file], holds: 'email', code: 0 },
  'organizations import --report': {
    args: (file, list) => ['organizations', 'import', list, '--report', file, '--dry-run'],
    holds: 'error_reason',
    code: 6,
  },
}

for (const [what, { args, holds, code }] of Object.entries(commands)) {
  test(`${what}: the file is its owner’s only, also where one was that others can read`, async t => {
    const env = await installedRegistry(t)
    const path = await temporaryFolder(t)
    await writeFile(join(path, 'list.csv'), list)
    const fresh = join(path, 'fresh.csv')
    const open = join(path, 'open.csv')
    await writeFile(open, 'former content')
    await chmod(open, 0o644)
    const reader = await readFile(open)
    for (const file of [fresh, open]) {
      const ran = await runCli(env, args(file, join(path, 'list.csv')))
      t.is(ran.code, code, ran.stderr)
      t.is((await stat(file)).mode & 0o777, 0o600)
      t.true((await readFile(file, 'utf8')).includes(holds))
    }
    t.is(String(reader), 'former content')
    t.deepEqual((await readdir(path)).sort(), ['fresh.csv', 'list.csv', 'open.csv'], 'nothing else is left')
  })

  test(`${what}: a link, a folder and a file of another user are refused and stay as they are`, async t => {
    const env = await installedRegistry(t)
    const path = await temporaryFolder(t)
    await writeFile(join(path, 'list.csv'), list)
    const target = join(path, 'target')
    await writeFile(target, 'former content')
    await symlink(target, join(path, 'link.csv'))
    await symlink(join(path, 'nothing'), join(path, 'dangling.csv'))
    await mkdir(join(path, 'folder.csv'))
    const refused: [name: string, says: RegExp][] = [
      ['link.csv', /link\.csv is a symbolic link.*name the file itself\./],
      ['dangling.csv', /dangling\.csv is a symbolic link/],
      ['folder.csv', /folder\.csv exists and is not a regular file: choose another file\./],
    ]
    if (process.getuid?.() === 0) {
      await writeFile(join(path, 'theirs.csv'), 'former content')
      await chown(join(path, 'theirs.csv'), 12345, 12345)
      refused.push(['theirs.csv', /theirs\.csv belongs to another user: choose another file/])
    }
    const before = (await readdir(path)).sort()
    for (const [name, says] of refused) {
      const { code, stderr } = await runCli(env, args(join(path, name), join(path, 'list.csv')))
      t.is(code, 1, stderr)
      t.regex(stderr, says)
    }
    t.deepEqual((await readdir(path)).sort(), before)
    t.is(await readFile(target, 'utf8'), 'former content')
    t.true((await lstat(join(path, 'link.csv'))).isSymbolicLink())
  })
}

test('an export to /dev/stdout or a descriptor of the shell is written there', async t => {
  if (process.platform === 'win32') return t.pass()
  const env = await installedRegistry(t)
  for (const target of ['/dev/stdout', '/dev/fd/3']) {
    const command = `"$0" "$1" users export ${target} --format csv --with-secrets 3>&1 | cat`
    const { stdout, stderr } = spawnSync('sh', ['-c', command, process.execPath, program], {
      env: { PATH: process.env.PATH, HOME: process.env.HOME, ...env },
      encoding: 'utf8',
    })
    t.regex(stdout, /^id,username.*password_hash/, stderr)
  }
})

test('an export that fails leaves the former file', async t => {
  const env = await installedRegistry(t)
  const path = await temporaryFolder(t)
  const file = join(path, 'users.csv')
  await writeFile(file, 'former content')
  const command = `ulimit -f 0 && exec "$0" "$1" users export "$2" --with-secrets`
  const { status, stderr } = spawnSync('sh', ['-c', `trap '' XFSZ; ${command}`, process.execPath, program, file], {
    env: { PATH: process.env.PATH, HOME: process.env.HOME, ...env },
    encoding: 'utf8',
  })
  t.is(status, 1, stderr)
  t.regex(stderr, /EFBIG/)
  t.is(await readFile(file, 'utf8'), 'former content')
  t.deepEqual(await readdir(path), ['users.csv'])
})

test('a backup and a new passphrase are their owner’s only, and no link is followed', async t => {
  const env = await installedRegistry(t)
  const path = await temporaryFolder(t)
  const [file, words] = [join(path, 'registry.age'), join(path, 'words')]
  await symlink(join(path, 'elsewhere'), join(path, 'link'))
  const refused = await runCli(env, ['backup', file, '--passphrase-file', join(path, 'link')])
  t.is(refused.code, 1)
  t.regex(refused.stderr, /link is a symbolic link/)
  const other = await runCli(env, ['backup', join(path, 'link'), '--passphrase-file', words])
  t.is(other.code, 1)
  t.regex(other.stderr, /link is a symbolic link/)
  const { code, stderr } = await runCli(env, ['backup', file, '--passphrase-file', words])
  t.is(code, 0, stderr)
  for (const each of [file, words]) t.is((await stat(each)).mode & 0o777, 0o600)
  t.deepEqual((await readdir(path)).sort(), ['link', 'registry.age', 'words'])
})
