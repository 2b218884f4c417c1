import test from 'ava'
import { remoteUser, spawnCli } from '../_helpers/cli.js'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))

const lookUps = [
  ['users', 'list'],
  ['users', 'show', 'admin'],
  ['users', 'why', 'admin'],
  ['users', 'show', 'unknown'],
  ['organizations', 'list'],
  ['organizations', 'show', 'Escola Igual'],
  ['organizations', 'show', '999'],
  ['organizations', 'members', 'list', 'Escola Igual'],
  ['questions', 'list'],
  ['questions', 'unmatched', 'list'],
  ['services', 'list'],
  ['services', 'show', 'unknown'],
  ['questions', 'show', '1'],
  ['questions', 'show', '999'],
  ['users', 'lockouts', 'list'],
  ['keys', 'list'],
  ['issuer', 'show'],
  ['mail', 'list'],
  ['mail', 'show', '999'],
  ['migrate', 'status'],
  ['audit', 'verify'],
]

/** Changes whose repetition has no effect or the same one: each place makes one of them. */
const changes = [
  ['organizations', 'edit', 'Escola Igual', '--phone', '7'],
  ['organizations', 'deactivate', 'Escola Igual', '--yes'],
  ['organizations', 'activate', 'Escola Igual'],
  ['users', 'create', '--username', 'igual', '--role', 'ROLE_CLIENT', '--state', 'SP', '--city', 'Bauru'],
  ['users', 'suspend', 'igual', '--yes'],
  ['users', 'resume', 'igual'],
  ['users', 'delete', 'igual', '--yes'],
  ['users', 'undelete', 'igual'],
  ['users', 'suspend', 'admin', '--yes'],
  ['questions', 'retire', '1'],
  ['questions', 'offer', '1'],
]

/** Without times and other volatile values. */
const still = (text: string) => text.replace(/"(etag|newest|events|seconds|token)": ("[^"]*"|\d+)/g, '"$1"')

test.serial('each command has the same output on the database itself and at a server, including errors', async t => {
  await service.organization({ name: 'Escola Igual' })
  const { env: remote, login } = await remoteUser(t, service, spawnCli)
  t.is((await login('--context', 'here')).code, 0)

  for (const command of lookUps) {
    const [here, there] = [service.env, remote].map(env => spawnCli(env, [...command, '--json']))
    const [local, far] = [await here!, await there!]
    t.is(typeof JSON.parse(local.stdout), 'object', command.join(' '))
    t.deepEqual(
      { code: far.code, stdout: still(far.stdout), stderr: far.stderr },
      { code: local.code, stdout: still(local.stdout), stderr: local.stderr },
      command.join(' '),
    )
  }
  for (const command of changes) {
    const far = await spawnCli(remote, [...command, '--json'])
    const local = await spawnCli(service.env, [...command, '--json', '--reason', 'teste'])
    for (const { stdout } of [far, local]) t.is(typeof JSON.parse(stdout), 'object', command.join(' '))
    // The second place finds the change of the first, or a taken name.
    if (command[1] === 'create') t.deepEqual([far.code, local.code], [0, 2])
    else t.is(far.code, local.code, command.join(' '))
  }
})
