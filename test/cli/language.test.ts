/** Everything that a person reads is in the language of the terminal; names and documents are the same everywhere. */
import { readdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import type { Command } from '../../cli/command.js'
import { createProgram } from '../../cli/program.js'
import { inTerminalLanguage } from '../../cli/terminal/language.js'
import { leaves, remoteUser, runCli } from '../_helpers/cli.js'
import { ownSettings } from '../_helpers/installed.js'
import { password, startTestService } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

/** Variables of a terminal, in the order of POSIX. */
const terminals: readonly (readonly [speaks: 'pt' | 'en', env: Record<string, string>])[] = [
  ['pt', { LANG: 'pt_BR.UTF-8' }],
  ['pt', { LANG: 'en_US.UTF-8', LC_MESSAGES: 'pt_BR' }],
  ['pt', { LANG: 'en_US.UTF-8', LC_MESSAGES: 'C', LC_ALL: 'pt_PT.utf8' }],
  ['en', { LANG: 'pt_BR.UTF-8', LC_ALL: 'C' }],
  ['en', { LANG: 'pt_BR.UTF-8', LC_MESSAGES: 'en_US.UTF-8' }],
  ['en', { LANG: 'es_MX.UTF-8' }],
  ['en', {}],
]

test('refusals, reasons of imports and obstacles are in the language of the terminal, on a server and on the database', async t => {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const { username } = await service.signUp('ROLE_CLIENT')
  for (let n = 0; n < 10; n++)
    await service.request('POST', '/users/login', { query: { username, password: `${password}!` } })
  const list = join(await temporaryFolder(t), 'users.csv')
  await writeFile(list, `username,nickname,state,city,role\nx,,SPX,Bauru,ROLE_ADMIN\ny,#N/D,SP,Bauru,ROLE_CLIENT\n`)
  const user = await remoteUser(t, service)
  const login = await user.login()
  t.is(login.code, 0, login.stderr)
  const says = {
    pt: {
      missing:
        'O usuário ninguém não existe. Para procurar parte de um nome, execute `auth-admin users list --text WORDS`.',
      field: /Informe a sigla do estado, exatamente 2 caracteres\./,
      imported: /Informe a sigla do estado, exatamente 2 caracteres\. Uma importação não cria administradores\./,
      cell: /A planilha mostra um erro aqui: corrija a célula\./,
      locked: /Bloqueado depois de 10 senhas erradas[^.]* \(faltam \d+ min\)\./,
    },
    en: {
      missing: 'There is no user ninguém. To search for a part of a name, run `auth-admin users list --text WORDS`.',
      field: /Give the code of the state, exactly 2 characters\./,
      imported: /Give the code of the state, exactly 2 characters\. An import doesn’t create administrators\./,
      cell: /A spreadsheet shows an error here: correct the cell\./,
      locked: /Locked after 10 wrong passwords[^.]* \(\d+ min left\)\./,
    },
  }
  for (const base of [service.env, user.env])
    for (const [language, more] of terminals) {
      const run = (...args: string[]) => runCli({ ...(base as Record<string, string>), LC_ALL: '', ...more }, args)
      const expected = says[language]
      const about = JSON.stringify(more)
      const missing = await run('users', 'show', 'ninguém')
      t.deepEqual([missing.code, missing.stderr.includes(expected.missing)], [3, true], `${about} ${missing.stderr}`)
      t.regex((await run('users', 'edit', username, '--state', 'SPX')).stderr, expected.field, about)
      const { stderr } = await run('users', 'import', list, '--dry-run')
      for (const reason of [expected.imported, expected.cell]) t.regex(stderr, reason, about)
      t.regex((await run('users', 'why', username)).stdout.replace(/\s+/g, ' '), expected.locked, about)
      // For scripts, JSON is the same everywhere.
      const { obstacles } = JSON.parse((await run('users', 'why', username, '--json')).stdout)
      t.regex(obstacles[0].reason, /^Locked after 10 wrong passwords/)
    }
})

const brazilian = { LC_ALL: 'pt_BR.UTF-8' }

/** A text in Portuguese, whatever the language of the tests. */
function inPortuguese(text: string): string {
  const { LC_ALL } = process.env
  process.env.LC_ALL = brazilian.LC_ALL
  try {
    return inTerminalLanguage(text)
  } finally {
    if (LC_ALL === undefined) delete process.env.LC_ALL
    else process.env.LC_ALL = LC_ALL
  }
}

/** Words of English that Portuguese doesn’t have, in what isn't a command, an option, a name or a document. */
function englishIn(screen: string): string[] {
  const prose = screen
    .replace(/`[^`]*`|«[^»]*»|“[^”]*”|^ +\$ .*(\n {6}.*)*$|auth-admin [a-z].*$|https?:\S+|\{.*\}/gm, '')
    .replace(/--[\w-]+( <\w+>)?|<[\w-]+>|\[[\w.-]+\]|\b[A-Z][A-Z_]{3,}\b|\S*[._/@]\S*\w/g, '')
  return (
    prose.match(
      /(?<!\p{L})(the|is|are|with|and|of|to|from|not|your|by|this|can|has|have|was|it|its|when|only)(?!\p{L}).*/giu,
    ) ?? []
  )
}

test('every text of every help is translated, in lines of 80 columns', async t => {
  const texts = (command: Command): string[] => [
    command.description(),
    ...command.commands.flatMap(texts),
    ...[...command.options, ...command.registeredArguments].map(each => each.description),
  ]
  const names = /^(bash, zsh|ROLE_)/
  const program = createProgram()
  t.deepEqual(
    [...new Set(texts(program))].filter(text => text && !names.test(text) && inPortuguese(text) === text),
    [],
  )
  const paths = [
    ...leaves(program).map(({ path }) => path),
    '',
    'users',
    'organizations',
    'services',
    'services keys',
    'mail',
  ]
  for (const path of paths) {
    const { stdout } = await runCli(brazilian, [...path.split(' ').filter(Boolean), '--help'])
    t.regex(stdout, /^Uso: auth-admin/)
    t.deepEqual(englishIn(stdout), [], path)
    t.deepEqual(
      stdout.split('\n').filter(line => line.length > 80),
      [],
      path,
    )
  }
})

/** Texts that aren't sentences for people, or whose parts are translated. */
const exempt = [
  'There are no streams.',
  // Examples.
  'Qual é o seu livro preferido?',
  'Qual era o nome da sua escola?',
  // Translated for each of their values.
  'The file of a or b a or b.',
  'New a or b (not shown):',
  'Repeat the a or b:',
  'The order of the questions is a or b a or b.',
  'Create and change a or b from a file. Nothing is deleted. Run it again to resume it.',
  'Only then, activation_key is read: the key of a new organization.',
]

test('every sentence of the command line is translated', async t => {
  const files = (await readdir('cli', { recursive: true })).filter(name => name.endsWith('.ts'))
  const sentences: string[] = []
  for (const file of files) {
    const code = (await readFile(`cli/${file}`, 'utf8')).replace(/^\s*(\/\/|\/?\*).*$/gm, '')
    const plain = code.replace(/\\`/g, '´').replace(/\$\{[^{}]*(\{[^{}]*\}[^{}]*)*\}/g, 'a or b')
    for (const [, , text = ''] of plain.matchAll(/(?<=[\s(,:])(['`])((?:[A-Z]|\{0\} )[^'`\n]* [^'`\n]*[.:?])\1/g))
      sentences.push(text.replaceAll('´', '`'))
  }
  t.true(sentences.length > 250)
  const records = ['User 7 (ana)', 'Organization 7 (Azul)', 'Question 7', 'Service grades', '7']
  const isTranslated = (text: string) =>
    records.map(record => text.replace('{0}', record)).some(each => inPortuguese(each) !== each)
  t.deepEqual(
    sentences.filter(text => !exempt.includes(text) && !isTranslated(text)),
    [],
  )
})

test('screens of a help desk are in one language', async t => {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const { username } = await service.signUp('ROLE_CLIENT')
  const admin = await remoteUser(t, service)
  const login = (env: object) =>
    runCli(
      { ...admin.env, ...env },
      ['login', admin.url, '--username', 'admin', '--password-file', '-'],
      ownSettings.AUTH_ADMIN_PASSWORD,
    )
  const list = join(await temporaryFolder(t), 'lista.csv')
  await writeFile(
    list,
    `username;nickname;state;city;role;extra\n(11)98000-0001;Bia;SP;Bauru;ROLE_CLIENT;x\nx;;SPX;Bauru;ROLE_ADMIN;\n`,
  )
  for (const result of [await login(brazilian)]) t.deepEqual([result.code, englishIn(result.stdout)], [0, []])
  for (const [line, code = 0] of [
    [`why ${username}`],
    ['list'],
    ['list --suspended'],
    [`show ${username}`],
    [`activate ${username}`],
    [`activate ${username}`],
    [`edit ${username} --state SPX`, 2],
    [`edit ${username} --city Bauru`],
    [`suspend ${username}`, 2],
    [`suspend ${username} --yes`],
    [`suspend ${username} --yes`],
    [`why ${username}`],
    [`resume ${username}`],
    [`resume ${username}`],
    [`delete ${username} --yes`],
    [`restore ${username}`],
    [`move ${username}`, 2],
    [`move ${username} --out`],
    [`set-role ${username} ROLE_INSTITUTION --yes`],
    [`set-role ${username} ROLE_KING`, 2],
    [`issue-key ${username}`],
    [`unlock ${username}`],
    ['locked'],
    ['show ninguém', 3],
    ['shwo', 2],
    ['list --alll', 2],
    [`import ${list} --dry-run`, 6],
    [`erase ${username}`, 2],
    [`erase ${username} --confirm ${username}`],
    ['!organizations create', 2],
    ['!organizations create Azul --type E'],
    ['!organizations deactivate Azul --yes'],
    ['!organizations list'],
    ['!organizations show Azul'],
    ['!questions list'],
    ['!services list'],
    ['!services create notas --may users.read'],
    ['!services show notas'],
    ['!services delete notas --confirm notas'],
    ['!mail list'],
    ['!mail test ana@example.org'],
    ['!keys list'],
    ['!imports list'],
    ['!audit list --limit 3'],
    ['!audit verify'],
    ['!config'],
    ['!doctor'],
    ['!migrate status'],
    ['!contexts'],
    ['!whoami'],
    ['!logout'],
    ['!whoami', 4],
  ] as const) {
    const words = line.startsWith('!') ? line.slice(1) : `users ${line}`
    const done = await runCli({ ...admin.env, ...brazilian }, words.split(' '))
    t.is(done.code, code, `${line}: ${done.stderr}`)
    t.deepEqual(englishIn(done.stdout + done.stderr), [], line)
  }
})
