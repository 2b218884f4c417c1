/** `auth-admin issuer`: issuer and audience of the registry's tokens. */
import test, { type ExecutionContext } from 'ava'
import { installedRegistry, keys, openTerminal, runCli } from '../_helpers/cli.js'
import { ask, freshDatabase } from '../_helpers/database.js'

/** A registry that `install` has just made. */
async function install(t: ExecutionContext) {
  const env = { ...(await installedRegistry(t)), DATABASE_URL: await freshDatabase(t) }
  t.is((await runCli(env, ['install'])).code, 0)
  return env
}

test('install takes issuer and audience from the settings or the defaults, and `issuer set` changes the given ones', async t => {
  const env = await install(t)
  const show = async () => JSON.parse((await runCli(env, ['issuer', 'show', '--json'])).stdout)
  const set = async (confirm: string, ...args: string[]) =>
    JSON.parse((await runCli(env, ['issuer', 'set', ...args, '--confirm', confirm, '--json'])).stdout)
  const [a, b] = ['https://a.example', 'https://b.example'] as const
  t.deepEqual(await show(), { issuer: 'http://127.0.0.1:8080', audience: 'work-packages' })
  t.deepEqual(await set(a, '--issuer', a), { issuer: a, audience: 'work-packages' })
  t.deepEqual(await set(a, '--audience', 'apps'), { issuer: a, audience: 'apps' })
  t.deepEqual(await set(b, '--issuer', b), { issuer: b, audience: 'apps' })
  t.deepEqual(await show(), { issuer: 'https://b.example', audience: 'apps' })
  const { stdout } = await runCli(env, ['issuer', 'show'])
  t.regex(stdout, /^issuer +https:\/\/b\.example\naudience +apps\n$/)
  const { events } = JSON.parse(
    (await runCli(env, ['audit', 'list', '--action', 'registry.set-issuer', '--json'])).stdout,
  )
  t.deepEqual(
    events.map(({ object }: { object: string }) => object),
    [
      'issuer:https://a.example->https://b.example audience:apps',
      'issuer:https://a.example audience:work-packages->apps',
      'issuer:http://127.0.0.1:8080->https://a.example audience:work-packages',
      'issuer:http://127.0.0.1:8080 audience:work-packages',
    ],
  )
})

test('`issuer set` needs issuer or audience, warns about the effect on tokens, and reports when nothing changes', async t => {
  const env = await installedRegistry(t)
  t.is((await runCli(env, ['issuer', 'set'])).code, 2)
  t.is((await runCli(env, ['issuer', 'set', '--issuer', 'a\nb'])).code, 2)
  const change = ['issuer', 'set', '--issuer', 'https://a.example', '--confirm', 'https://a.example']
  const unsure = await runCli(env, [...change.slice(0, -1), 'https://b.example'])
  t.is(unsure.code, 2)
  t.regex(unsure.stderr, /https:\/\/a\.example/)
  const first = await runCli(env, change)
  t.regex(first.stderr, /^warning: Restart all processes of the service: [^\n]* all users have to sign in again\.\n$/)
  const again = await runCli(env, change)
  t.deepEqual(again, {
    code: 0,
    stderr: '',
    stdout: 'The issuer is https://a.example, the audience work-packages already.\n',
  })
})

test('install with settings that differ from the registry changes nothing, and reports both values and the command', async t => {
  const env = await install(t)
  const before = await runCli(env, ['audit', 'list', '--json'])
  const { code, stdout, stderr } = await runCli({ ...env, AUTH_AUDIENCE: "l'app de São Paulo" }, ['install'])
  t.is(code, 1)
  t.regex(stdout, /^Installing in the database [^\n]+\n$/)
  t.is(
    stderr,
    "error: AUTH_AUDIENCE is l'app de São Paulo, but the tokens of this registry have issuer http://127.0.0.1:8080 and " +
      'audience work-packages: leave both unset, or change the registry with `auth-admin issuer set --issuer ' +
      "http://127.0.0.1:8080 --audience 'l'\\''app de São Paulo' --confirm http://127.0.0.1:8080`.\n",
  )
  t.deepEqual(await runCli(env, ['audit', 'list', '--json']), before)
})

test('at a terminal, `issuer set` asks for both, and Enter keeps the current value', async t => {
  const env = await installedRegistry(t)
  const terminal = openTerminal(env, ['issuer', 'set'])
  await terminal.shows('Issuer')
  terminal.type(`https://b.example${keys.enter}`)
  await terminal.shows('Audience')
  terminal.type(keys.enter)
  await terminal.shows('to confirm:')
  terminal.type(`https://b.example${keys.enter}`)
  t.is(await terminal.ended, 0)
  t.regex(terminal.screen(), /The issuer is https:\/\/b\.example, the audience work-packages\./)
})

test('a registry with the audience of administrators is refused until the suggested command changes it', async t => {
  const env = await install(t)
  await ask(env.DATABASE_URL, `UPDATE token_issuer SET audience = 'Auth-Admin'`)
  const { code, stderr } = await runCli(env, ['install'])
  t.is(code, 1)
  t.regex(stderr, /audience Auth-Admin, which is for tokens of administrators/)
  const command = /`auth-admin ([^`]+)`/.exec(stderr)![1]!
  t.is(command, 'issuer set --audience work-packages --confirm http://127.0.0.1:8080 --local')
  t.is((await runCli(env, command.split(' '))).code, 0)
  t.is((await runCli(env, ['install'])).code, 0)
})
