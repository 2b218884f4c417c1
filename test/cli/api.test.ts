/** `auth-admin api`: what has no command of its own, with the conventions and exit codes of every command. */
import test from 'ava'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { installedRegistry, openTerminal, runCli } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'

test('help names every RPC of Administration but SignIn, whose token `login` keeps', async t => {
  const help = (await runCli({}, ['api', '--help'])).stdout.replaceAll(/\s+/g, ' ')
  for (const { name } of Administration.methods) t.is(help.includes(`"${name}"`), name !== 'SignIn', name)
})

test('what has no command of its own is done by its RPC, and refused with the exit codes of all commands', async t => {
  const env = await installedRegistry(t)
  await ask(
    env.DATABASE_URL,
    `INSERT INTO emails (kind, parameters, locale) VALUES ('password-changed', '{"userId": 1}', 'en');
    INSERT INTO imports (kind, source_digest, dry_run, all_or_nothing, change_accounts, keep_ids, actor)
      VALUES ('users', 'd', false, false, '{}', false, 'user')`,
  )
  const { stdout: keys } = await runCli(env, ['keys', 'list', '--json'])
  const { kid } = JSON.parse(keys).keys[0]
  await runCli(env, ['services', 'create', 'grades', '--may', 'users.read'])
  const actions = async () =>
    (await ask(env.DATABASE_URL, 'SELECT action FROM audit_events ORDER BY id')).map(({ action }) => action as string)
  // In order. What changes something is refused without --yes; `code` is that with it.
  const cases: [rpc: string, request: object, code: number, answer: object | RegExp, event?: string][] = [
    ['GetService', { name: 'grades' }, 0, { service: { name: 'grades', scopes: ['SCOPE_USERS_READ'] } }],
    ['GetService', { name: 'none' }, 3, /no service none/],
    [
      'UpdateService',
      { name: 'grades', form: { scopes: ['SCOPE_TOKENS_VERIFY'] }, updateMask: 'scopes' },
      0,
      { changed: true, service: { scopes: ['SCOPE_TOKENS_VERIFY'] } },
      'service.edit',
    ],
    ['UpdateService', { name: 'grades', form: { name: 'Übel' }, update_mask: 'name' }, 2, /lower-case/],
    ['CreateServiceKey', { name: 'grades' }, 0, { service: { name: 'grades' } }, 'service.add-key'],
    ['DeleteServiceKey', { name: 'grades', id: 1, validateOnly: true }, 0, { service: { name: 'grades' } }],
    ['DeleteServiceKey', { name: 'grades', id: 1 }, 0, { service: { keys: [{ id: 2 }] } }, 'service.delete-key'],
    ['DeleteService', { name: 'grades', confirm: 'grade' }, 2, /Type grades to confirm/],
    ['DeleteService', { name: 'grades', confirm: 'grades' }, 0, {}, 'service.delete'],
    ['GetSigningKey', { kid }, 0, { key: { kid, signs: true } }],
    ['RotateSigningKey', {}, 0, { key: { signs: false } }, 'signing-key.rotate'],
    ['GetIssuer', {}, 0, { audience: 'work-packages' }],
    ['GetEmail', { id: 1 }, 0, { email: { id: '1', kind: 'password-changed', user: 1 } }],
    ['DiscardEmail', { id: '1' }, 0, {}, 'email.discard'],
    ['DiscardEmail', { id: 1 }, 3, /no e-mail 1/],
    ['GetAuditEvent', { id: 1 }, 0, { event: { id: '1' } }],
    ['GetAuditEvent', { id: 999999 }, 3, /no event 999999/],
    ['GetImport', { id: 1 }, 0, { import: { id: 1, state: 'IMPORT_STATE_RUNNING' } }],
    ['AbortImport', { id: 1 }, 0, { changed: true, import: { state: 'IMPORT_STATE_ABORTED' } }, 'import.abort'],
    ['RemoveTotp', { user: 'admin', confirm: 'admin' }, 2, /Pass --reason/],
    ['ListUsers', { page_size: 'many' }, 2, /ListUsersRequest/],
    ['ListUsers', { no: 1 }, 2, /ListUsersRequest/],
  ]
  for (const [rpc, request, code, answer, event] of cases) {
    const json = JSON.stringify(request)
    const isChange = /^(Update|Create|Delete|Rotate|Discard|Abort|Remove)/.test(rpc) && !('validateOnly' in request)
    const before = await actions()
    if (isChange) {
      const { code: refused, stderr } = await runCli(env, ['api', rpc, json])
      t.deepEqual([refused, await actions()], [2, before], rpc)
      t.regex(stderr, /pass --yes\.\n$/)
    }
    // The request may also come by standard input.
    const done = await runCli(env, ['api', rpc, '-', '--yes'], json)
    t.is(done.code, code, `${rpc} ${json} ${done.stderr}`)
    if (answer instanceof RegExp) t.regex(done.stderr, answer)
    else if (Object.keys(answer).length === 0) t.deepEqual(JSON.parse(done.stdout), {}, rpc)
    else t.like(JSON.parse(done.stdout), answer, rpc)
    t.deepEqual((await actions()).slice(before.length), event ? [event] : [], rpc)
  }
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
