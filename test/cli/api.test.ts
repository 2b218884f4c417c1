/** `auth-admin api`: what has no command of its own, with the conventions and exit codes of every command. */
import { readFile } from 'node:fs/promises'
import test from 'ava'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { installedRegistry, openTerminal, runCli } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'

test('help names every RPC of Administration but SignIn, whose token `login` keeps', async t => {
  const help = (await runCli({}, ['api', '--help'])).stdout.replaceAll(/\s+/g, ' ')
  for (const { name } of Administration.methods) t.is(help.includes(`"${name}"`), name !== 'SignIn', name)
})

test('each line of the documentation for what has no command of its own works as printed', async t => {
  const env = await installedRegistry(t)
  const run = async (...args: string[]) => {
    const { code, stdout, stderr } = await runCli(env, [...args, '--reason', 'teste'])
    t.is(code, 0, `${args.join(' ')}: ${stderr}`)
    return stdout
  }
  for (const name of ['a', 'b', 'c', 'd', 'e', 'f', 'g']) await run('organizations', 'create', name)
  await ask(
    env.DATABASE_URL,
    `INSERT INTO emails (id, kind, parameters, locale) OVERRIDING SYSTEM VALUE VALUES (12, 'password-changed', '{"userId": 1}', 'en');
    INSERT INTO imports (id, kind, source_digest, dry_run, all_or_nothing, change_accounts, keep_ids, actor)
      OVERRIDING SYSTEM VALUE VALUES (7, 'users', 'd', false, false, '{}', false, 'user')`,
  )
  for (let events = 0; events < 7; events++) await run('keys', 'rotate', '--yes')
  const guide = await readFile(new URL('../../../docs/administration.md', import.meta.url), 'utf8')
  const table = guide.split('## What has no command of its own')[1]!.split('\n## ')[0]!
  const lines = [...table.matchAll(/^\| (?!to \|).* \|$/gm)].flatMap(([row]) => row.match(/`[A-Z][^`]*`/g) ?? [])
  t.is(lines.length, 6)
  const actions = async () =>
    (await ask(env.DATABASE_URL, 'SELECT action FROM audit_events ORDER BY id')).map(({ action }) => action as string)
  const before = (await actions()).length
  for (const line of lines) {
    const [, rpc, request, yes] = /^`(\w+)(?: '(.*)')?( --yes)?`$/.exec(line)!
    const words = ['api', rpc!, ...(request ? [request] : [])]
    // What changes something needs --yes, and what doesn't, none.
    if (yes) t.regex((await runCli(env, [...words, '--reason', 'teste'])).stderr, /pass --yes\.\n$/, line)
    t.is(typeof JSON.parse(await run(...words, ...(yes ? ['--yes'] : []))), 'object', line)
  }
  t.deepEqual((await actions()).slice(before), ['registry.set-issuer'])
})

test('an RPC is refused with the exit codes of all commands, and its request may come by standard input', async t => {
  const env = await installedRegistry(t)
  for (const [rpc, request, code, says] of [
    ['GetService', { name: 'none' }, 3, /no service none/],
    ['CreateService', { name: 'Übel', scopes: [1] }, 2, /lower-case/],
    ['RetryEmail', { id: 1, validateOnly: true }, 3, /no e-mail 1/],
    [
      'SetIssuer',
      { issuer: 'https://b.example', confirm: 'https://a.example' },
      2,
      /Type https:\/\/b\.example to confirm/,
    ],
    ['RemoveTotp', { user: 'admin', confirm: 'admin' }, 2, /Pass --reason/],
    ['ListUsers', { page_size: 'many' }, 2, /ListUsersRequest/],
    ['ListUsers', { no: 1 }, 2, /ListUsersRequest/],
  ] as const) {
    const { stderr, ...done } = await runCli(env, ['api', rpc, '-', '--yes'], JSON.stringify(request))
    t.is(done.code, code, `${rpc} ${stderr}`)
    t.regex(stderr, says)
  }
  const { stdout } = await runCli(env, ['api', 'GetIssuer', '-'], '{}')
  t.like(JSON.parse(stdout), { audience: 'work-packages' })
  t.is((await runCli(env, ['api', 'ListUsers', 'none'])).code, 2)
  t.regex((await runCli(env, ['api', 'Nothing'])).stderr, /Allowed choices are GetSession, .*Diagnose\.\n$/)
})

test('at a terminal a change is asked for, what can’t be undone by its name, and other obstacles come first', async t => {
  const env = await installedRegistry(t)
  await runCli(env, ['services', 'create', 'grades', '--may', 'users.read'])
  const call = async (request: object, rpc: string, question: string, answer: string) => {
    const terminal = openTerminal(env, ['api', rpc, JSON.stringify(request)])
    await terminal.shows(question)
    if (answer !== '') terminal.type(`${answer}\r`)
    return terminal.ended
  }
  t.is(await call({ name: 'none' }, 'CreateServiceKey', 'There is no service none', ''), 3)
  t.is(await call({ name: 'grades' }, 'CreateServiceKey', 'CreateServiceKey changes the registry. Continue?', 'n'), 1)
  t.is(await call({ name: 'grades' }, 'CreateServiceKey', 'Continue?', 'y'), 0)
  t.is(await call({ name: 'grades' }, 'DeleteService', 'Type grades to confirm', 'grade'), 2)
  t.is(await call({ name: 'grades' }, 'DeleteService', 'Type grades to confirm', 'grades'), 0)
})
