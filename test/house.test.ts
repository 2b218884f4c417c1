/** The rules of the house: who imports whom, and tables that say the same thing in two places. */
import { readdir, readFile } from 'node:fs/promises'
import { dirname, join, normalize } from 'node:path'
import { fileURLToPath } from 'node:url'
import test from 'ava'
import { statuses } from '../gateway/problem.js'
import { routes } from '../gateway/routes.js'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Reason } from '../proto/gen/auth/v1/reason_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { Refusal } from '../server/refusal.js'

const root = fileURLToPath(new URL('../..', import.meta.url))

/** What each source file imports: files of ours as paths from the root, packages by name. */
const imports = new Map<string, string[]>()
test.before(async () => {
  for (const folder of ['server', 'gateway', 'cli']) {
    for (const name of await readdir(join(root, folder), { recursive: true })) {
      if (!name.endsWith('.ts')) continue
      const file = `${folder}/${name.replaceAll('\\', '/')}`
      const text = await readFile(join(root, file), 'utf8')
      const given = text.matchAll(/(?:\bfrom|\bimport|\bimport\(|createRequire\(import\.meta\.url\)\()\s*'([^']+)'/g)
      imports.set(
        file,
        [...given].map(([, target = '']) =>
          target.startsWith('.') ? normalize(join(dirname(file), target)).replace(/\.js$/, '.ts') : target,
        ),
      )
    }
  }
})

/** Every import that breaks a rule, as `file -> target`. */
function breaches(rule: (file: string, target: string) => boolean): string[] {
  return [...imports].flatMap(([file, targets]) =>
    targets.filter(target => rule(file, target)).map(target => `${file} -> ${target}`),
  )
}
const isPackage = (target: string, ...names: string[]) =>
  names.some(name => target === name || target.startsWith(`${name}/`))

test('imports are found', t => {
  t.true(imports.size > 40)
  t.true(imports.get('server/users/users.ts')?.includes('server/refusal.ts'))
  t.true(imports.get('server/calls/grpc.ts')?.includes('@grpc/grpc-js'))
})

test('the gateway imports nothing of the server but client addresses, and in main.ts its settings', t => {
  const wrong = breaches(
    (file, target) =>
      file.startsWith('gateway/') &&
      /^(server|cli)\//.test(target) &&
      target !== 'server/clientaddress.ts' &&
      !(file === 'gateway/main.ts' && target === 'server/settings.ts'),
  )
  t.deepEqual(wrong, [])
})

test('of the server only its wiring imports the gateway', t => {
  const wrong = breaches(
    (file, target) => file.startsWith('server/') && target.startsWith('gateway/') && file !== 'server/service.ts',
  )
  t.deepEqual(wrong, [])
})

test('only models know Sequelize and pg', t => {
  const wrong = breaches(
    (file, target) => isPackage(target, 'sequelize', 'pg') && !/^server\/(models|database|embedded)\//.test(file),
  )
  t.deepEqual(wrong, [])
})

test('only the gRPC door, the wiring and the way to remote services import grpc-js', t => {
  const allowed = ['server/calls/grpc.ts', 'server/service.ts', 'gateway/remote.ts']
  const wrong = breaches(
    (file, target) =>
      isPackage(target, '@grpc/grpc-js', '@grpc/reflection', 'grpc-health-check') && !allowed.includes(file),
  )
  t.deepEqual(wrong, [])
})

test('the command line imports no RPC and no door', t => {
  const doors = [
    'users',
    'forgotpasswords',
    'calls',
    'call',
    'caller',
    'grpc',
    'inprocess',
    'signin',
    'service',
    'tokens',
  ]
  const wrong = breaches(
    (file, target) =>
      file.startsWith('cli/') &&
      (doors.some(name => target === `server/${name}.ts`) ||
        target.startsWith('gateway/') ||
        isPackage(target, '@grpc/grpc-js')),
  )
  t.deepEqual(wrong, [])
})

test('nothing imports a main.ts', t => {
  t.deepEqual(
    breaches((_, target) => /(^|\/)main\.ts$/.test(target)),
    [],
  )
})

test('settings, names and the generated code import nothing of ours', t => {
  for (const file of ['server/settings.ts', 'server/names.ts']) {
    t.deepEqual(
      imports.get(file)?.filter(target => /^(server|gateway|cli|proto)\//.test(target)),
      [],
    )
  }
  t.deepEqual(
    imports.get('server/refusal.ts')?.filter(target => /^(server|gateway|cli)\//.test(target)),
    [],
  )
})

test('models import no RPC, no caller and no token', t => {
  const wrong = breaches(
    (file, target) =>
      file.startsWith('server/models/') &&
      /^server\/(users|forgotpasswords|caller|tokens|calls?|grpc|service)\.ts$/.test(target),
  )
  t.deepEqual(wrong, [])
})

test('every RPC has a row in the table of routes, but for those that are met otherwise', t => {
  const withoutRow = new Set(['auth.v1.Users.VerifyToken', 'auth.v1.Users.GetKeys'])
  const rpcs = [...Users.methods, ...ForgotPasswords.methods].map(({ parent, name }) => `${parent.typeName}.${name}`)
  const routed = new Set(routes.map(({ rpc }) => `${rpc.parent.typeName}.${rpc.name}`))
  t.is(routed.size, routes.length)
  t.deepEqual(
    rpcs.filter(name => !routed.has(name)),
    [...withoutRow],
  )
})

test('every reason has the HTTP status that its comment says', async t => {
  const text = await readFile(join(root, 'proto/auth/v1/reason.proto'), 'utf8')
  const documented = new Map(
    [...text.matchAll(/\[(\d{3})\]\n\s+REASON_(\w+) = \d+;/g)].map(([, status, name]) => [name, Number(status)]),
  )
  const names = Object.keys(Reason).filter(name => Number.isNaN(Number(name)) && name !== 'UNSPECIFIED')
  t.true(names.length > 15)
  for (const name of names) {
    t.is(statuses[Reason[name as keyof typeof Reason]], documented.get(name) ?? 0, name)
  }
})

test('every reason has a text of its own that says what to do', t => {
  const reasons = Object.values(Reason).filter(reason => typeof reason === 'number')
  for (const reason of reasons) t.regex(new Refusal(reason as Reason).message, /^\S.*\.$/)
})

test('a source file keeps to one thing: it has at most 500 lines', async t => {
  const long: string[] = []
  for (const file of imports.keys()) {
    const lines = (await readFile(join(root, file), 'utf8')).split('\n').length
    if (lines > 500) long.push(`${file}: ${lines}`)
  }
  t.deepEqual(long, [])
})
