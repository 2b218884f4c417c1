/** Slow commands show their progress on standard error, at a terminal only, and erase it. */
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { newIdentity } from '../_helpers/backups.js'
import { keys, openTerminal, remoteUser, runCli, startCli } from '../_helpers/cli.js'
import { ask, hold } from '../_helpers/database.js'
import { password, serviceForFile } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))

/** The network delay in milliseconds: longer than the delay of the progress line. */
const slow = 1_100

/** The environment of a user who signed in at the service over a network that then delays each request by `delay` ms. */
async function overSlowNetwork(t: ExecutionContext, delay = slow) {
  let signedIn = false
  const { host, port } = service.service.addresses.admin!
  const connections = new Set<Socket>()
  const relay = createServer(incoming => {
    connections.add(incoming)
    const outgoing = connect(port, host)
    incoming.on('data', bytes => setTimeout(() => outgoing.write(bytes), signedIn ? delay : 0))
    outgoing.pipe(incoming)
    for (const [one, other] of [
      [incoming, outgoing],
      [outgoing, incoming],
    ] as const)
      one.on('error', () => {}).on('close', () => other.destroy())
  })
  await new Promise<void>(resolve => relay.listen(0, '127.0.0.1', resolve))
  t.teardown(() => relay.close())
  const { env, config, run } = await remoteUser(t, service)
  const url = `http://127.0.0.1:${(relay.address() as AddressInfo).port}`
  const { code, stderr } = await run(['login', url, '--username', 'admin', '--password-file', '-'], password)
  t.is(code, 0, stderr)
  signedIn = true
  /** Breaks all connections for good: grpc-js sends a call again that hasn't reached a server. */
  const cut = () => {
    relay.close()
    for (const connection of connections) connection.destroy()
  }
  return { env, folder: config, cut }
}

test.before('prepare more users than one call returns', async () => {
  await service.signUp('ROLE_CLIENT')
  const columns = 'password_hash, state, city, terms_of_usage, role'
  await ask(
    service.env.DATABASE_URL!,
    `INSERT INTO users (username, username_key, username_skeleton, nickname, nickname_key, nickname_skeleton, ${columns})
      SELECT 'u' || n, 'u' || n, 'u' || n, 'u' || n, 'u' || n, 'u' || n, ${columns}
      FROM (SELECT ${columns} FROM users WHERE role = 'ROLE_CLIENT' LIMIT 1) one, generate_series(1, 1000) n`,
  )
})

test('a slow list shows its progress at the terminal only, and erases the line at the end', async t => {
  const { env, folder } = await overSlowNetwork(t)
  const list = ['users', 'list', '--limit', '1001', '--json']
  const file = join(folder, 'users.json')
  const { shows, ended, screen, raw } = openTerminal(env, list, { into: file })
  await shows('Reading: 1000 so far, ')
  t.is(await ended, 0, screen())
  t.is(JSON.parse(await readFile(file, 'utf8')).users.length, 1001)
  t.regex(raw(), /Reading: 1000 so far, \d+ s\r\x1b\[K$/)
  // One line, rewritten in place.
  t.false(raw().includes('\n'))

  const piped = await runCli(env, list)
  t.deepEqual([piped.code, piped.stderr], [0, ''])
  t.is(JSON.parse(piped.stdout).users.length, 1001)
})

test('a list is printed page by page, in each form', async t => {
  const { env } = await overSlowNetwork(t)
  for (const form of [['--json'], ['--jsonl'], []]) {
    const child = startCli(env, ['users', 'list', '--all', ...form])
    await once(child.stdout, 'data')
    const begun = Date.now()
    child.stdout.resume()
    await once(child, 'close')
    // The second page is a separate call.
    t.true(Date.now() - begun > slow / 2, form.join())
  }
})

test('a list that fails midway prints how to continue, and then the error', async t => {
  // On a busy machine, too, the first page arrives well before the second call reaches the service.
  const { env, cut } = await overSlowNetwork(t, 10_000)
  const list = ['users', 'list', '--all', '--json']
  const child = startCli(env, list)
  let stdout = ''
  child.stdout.setEncoding('utf8').on('data', text => {
    stdout += text
  })
  await once(child.stdout, 'data')
  cut()
  const [code] = await once(child, 'close')
  t.is(code, 7)
  const end = stdout.indexOf('\n}\n') + 3
  const { users, nextPageToken } = JSON.parse(stdout.slice(0, end))
  t.is(JSON.parse(stdout.slice(end)).error.exitCode, code)
  const rest = JSON.parse((await runCli(service.env, [...list, '--page-token', nextPageToken])).stdout)
  t.deepEqual([...users, ...rest.users], JSON.parse((await runCli(service.env, list)).stdout).users)
})

test('neither a fast command nor a list that prints rows at the terminal shows progress', async t => {
  const { env, folder } = await overSlowNetwork(t)
  const list = ['users', 'list', '--limit', '1', '--jsonl']
  const into = join(folder, 'users.jsonl')
  for (const [opened, shows] of [
    [openTerminal(env, list), false],
    [openTerminal(env, list, { into }), true],
    [openTerminal(service.env, ['whoami']), false],
  ] as const) {
    t.is(await opened.ended, 0, opened.screen())
    t.is(/: .*\d s/.test(opened.screen()), shows)
  }
})

test('Ctrl-C also erases the progress line', async t => {
  const holder = await hold(t, service.env.DATABASE_URL!)
  await holder.query('BEGIN; LOCK TABLE questions IN ACCESS EXCLUSIVE MODE')
  const folder = await temporaryFolder(t)
  // Without a passphrase, from which a busy machine takes long to derive a key.
  const { recipient } = await newIdentity(folder)
  const backup = openTerminal(service.env, ['backup', join(folder, 'registry.age'), '--recipient', recipient])
  await backup.shows('Writing the backup: ')
  await backup.shows(' s\rWriting the backup: ')
  backup.type(keys.ctrlC)
  // Its connection waits for the table.
  await holder.query('ROLLBACK')
  t.is(await backup.ended, 130, backup.screen())
  t.regex(backup.raw(), /Writing the backup: \d+ s(\^C)?\r\x1b\[K$/)
})
