/** What the server says is in the language of the terminal; commands themselves speak English. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import { remoteUser, runCli } from '../_helpers/cli.js'
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
