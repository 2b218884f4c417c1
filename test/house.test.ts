/** The rules of this code base: which module imports which, and tables that must agree in two places. */
import { readdir, readFile } from 'node:fs/promises'
import { dirname, join, normalize } from 'node:path'
import { fileURLToPath } from 'node:url'
import { status } from '@grpc/grpc-js'
import test, { type Assertions } from 'ava'
import { fileOf, services, withCode, withLastParagraphs } from '../gateway/openapi/rpc-comments.js'
import { revisions, routes } from '../gateway/operations.js'
import { Administration } from '../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../proto/gen/auth/v1/reason_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { reasonsOf, sharedReasons } from '../server/policy/policy.js'
import { clientServices } from '../server/policy/services.js'
import { statusOf } from '../server/requests/reasons.js'
import { Refusal } from '../server/requests/refusal.js'
import { isReservedUsername } from '../server/rules/names.js'
import { statusesOf } from './_helpers/problem.js'

const root = fileURLToPath(new URL('../..', import.meta.url))

/** The imports of each source file: files of the project as paths from the root, packages by name. */
const imports = new Map<string, string[]>()
test.before(async () => {
  for (const folder of ['server', 'gateway', 'cli']) {
    for (const name of await readdir(join(root, folder), { recursive: true })) {
      if (!name.endsWith('.ts')) continue
      const file = `${folder}/${name.replaceAll('\\', '/')}`
      const text = await readFile(join(root, file), 'utf8')
      const given = text.matchAll(/(?:\bfrom|\bimport|\bimport\(|\brequire\()\s*'([\w@#./:-]+)'/g)
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

/** Asserts that a rule has no breaches; otherwise says what to do about each. */
function holds(t: Assertions, wrong: Iterable<string>, remedy: string): void {
  t.is([...wrong].join('\n'), '', remedy)
}

/** Asserts that two lists have the same names, in any order; otherwise says what to do about a name that one lacks. */
function agree(
  t: Assertions,
  names: Iterable<string>,
  others: Iterable<string>,
  surplus: string,
  missing: string,
): void {
  const [all, wanted] = [new Set(names), new Set(others)]
  holds(
    t,
    [...all].filter(name => !wanted.has(name)),
    surplus,
  )
  holds(
    t,
    [...wanted].filter(name => !all.has(name)),
    missing,
  )
}

/** The files of a list of exceptions, given without `.ts`; asserts that each is there. */
function exceptions(t: Assertions, folder: string, ...names: string[]): ReadonlySet<string> {
  const files = names.map(name => `${folder}/${name}.ts`)
  holds(
    t,
    files.filter(file => !imports.has(file)),
    'The file is gone: remove it from the exceptions here.',
  )
  return new Set(files)
}

const isPackage = (target: string, ...names: string[]) =>
  names.some(name => target === name || target.startsWith(`${name}/`))

test('imports are found', t => {
  t.true(imports.size > 40)
  t.true(imports.get('server/users/login.ts')?.includes('server/requests/refusal.ts'))
  t.true(imports.get('server/calls/grpc.ts')?.includes('@grpc/grpc-js'))
})

test('the gateway imports from the server only calls, client addresses, languages, refusals, timeouts, the access policy, the scheduler and spans, for OpenAPI the rules, and in main.ts what programs need', t => {
  const requests = [
    'call',
    'client-address',
    'grpc-timeout',
    'input',
    'locale',
    'own-hosts',
    'portuguese',
    'reasons',
    'refusal',
  ]
  const permitted = exceptions(t, 'server', ...requests.map(name => `requests/${name}`), 'observability/tracing')
  const wrong = breaches(
    (file, target) =>
      file.startsWith('gateway/') &&
      /^(server|cli)\//.test(target) &&
      !/^server\/(policy|limits)\//.test(target) &&
      !permitted.has(target) &&
      !(file.startsWith('gateway/openapi/') && target.startsWith('server/rules/')) &&
      !(file === 'gateway/main.ts' && /^server\/(process|observability)\/[\w-]+\.ts$/.test(target)),
  )
  holds(
    t,
    wrong,
    'The gateway may run apart from a server: get this by an RPC, or move what both need to server/requests.',
  )
})

test('the client address module imports no other module of the project, and no other module reads or compares addresses', async t => {
  const foreign = imports.get('server/requests/client-address.ts')?.filter(name => !/^(node:net|lru-cache)$/.test(name))
  holds(
    t,
    foreign!,
    'Give client-address.ts what it needs as an argument: all decisions on addresses rest on it alone.',
  )
  const others: string[] = []
  for (const file of imports.keys()) {
    const text = await readFile(join(root, file), 'utf8')
    if (file !== 'server/requests/client-address.ts' && /\b(BlockList|SocketAddress)\b/.test(text)) others.push(file)
  }
  holds(t, others, 'Read and compare addresses by a function of server/requests/client-address.ts.')
})

test('the programs import exactly the packages in `dependencies`', async t => {
  const { dependencies } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8'))
  const packages = [...imports.values()]
    .flat()
    .filter(target => !/^(node:|#|server\/|gateway\/|cli\/|proto\/)/.test(target))
  const names = packages.map(target => /^(?:@[^/]+\/)?[^/]+/.exec(target)![0])
  agree(
    t,
    names,
    Object.keys(dependencies),
    'Add the package to `dependencies`, with a line in docs/decisions/6-packages.md.',
    'No program imports the package: remove it from `dependencies`.',
  )
})

test('only the build and tests load what describes the interface', t => {
  const describing = /^gateway\/(openapi|reference)\//
  const wrong = breaches((file, target) => describing.test(target) && !describing.test(file))
  holds(t, wrong, 'Move what the programs need out of gateway/openapi and gateway/reference.')
})

test('in the server only its program imports the gateway', t => {
  const wrong = breaches(
    (file, target) => file.startsWith('server/') && target.startsWith('gateway/') && file !== 'server/main.ts',
  )
  holds(t, wrong, 'Let server/main.ts hand it over, or move it below both.')
})

test('only models, the database and the embedded PostgreSQL import Sequelize and pg', t => {
  const wrong = breaches(
    (file, target) => isPackage(target, 'sequelize', 'pg') && !/^server\/(models|database|embedded)\//.test(file),
  )
  holds(t, wrong, 'Write the statement as a method of a model in server/models.')
})

test('each name of a statement is given once, because a connection prepares one text under it', async t => {
  const names: string[] = []
  for (const file of imports.keys())
    names.push(
      ...[...(await readFile(join(root, file), 'utf8')).matchAll(/\bsql\((['`][^)]*)\)`/g)].map(([, name]) => name!),
    )
  t.true(names.length > 40)
  holds(
    t,
    names.filter((name, at) => names.indexOf(name) !== at),
    'Give one of the two statements another name, or none.',
  )
})

test('only the gRPC server and the remote transport import grpc-js', t => {
  const calls = ['grpc', 'grpc-js', 'peer', 'health', 'reflection'].map(name => `server/calls/${name}.ts`)
  agree(
    t,
    [...imports].filter(([, targets]) => targets.includes('@grpc/grpc-js')).map(([file]) => file),
    [...calls, 'gateway/remote.ts'],
    'Use Code of @connectrpc/connect, or a function of server/calls/grpc-js.ts.',
    'The file no longer imports it: remove it here.',
  )
})

/**
 * The layers of the server, from the bottom. A file imports from its own folder and from layers below, and not from other
 * folders of its layer. `embedded` is beside `database`, which loads it if no DATABASE_URL is set.
 */
const floors: readonly (readonly RegExp[])[] = [
  [/^proto\//],
  [/^server\/rules\//],
  [/^server\/requests\//],
  [/^server\/process\//],
  [/^server\/observability\//],
  [/^server\/policy\//],
  [/^server\/embedded\//],
  [/^server\/database\//],
  [/^server\/models\//],
  [/^server\/limits\//],
  [/^server\/passwords\//],
  [/^server\/access\//],
  [/^server\/outbox\//],
  [/^server\/registration\//],
  [/^server\/calls\//],
  [/^server\/users\//, /^server\/forgotpasswords\//, /^server\/changes\//, /^server\/openid\//],
  [/^server\/administration\//],
  [/^server\/jobs\//, /^server\/backup\//, /^server\/installation\.ts$/, /^server\/application\.ts$/],
  [/^server\/service\.ts$/, /^server\/local-application\.ts$/],
  [/^server\/main\.ts$/],
]

/** Layer and folder of a file. */
function placeOf(file: string): { floor: number; room: number } | undefined {
  const floor = floors.findIndex(rooms => rooms.some(room => room.test(file)))
  return floor < 0 ? undefined : { floor, room: floors[floor]!.findIndex(room => room.test(file)) }
}

test('every file of the server belongs to a layer, and no import leads up or to a folder of the same layer', t => {
  const homeless = [...imports.keys()].filter(file => file.startsWith('server/') && !placeOf(file))
  holds(t, homeless, 'Give the folder a layer in `floors`, above all that it imports.')
  const all = [...imports.keys(), ...[...imports.values()].flat()]
  const empty = floors.flat().filter(room => !all.some(file => room.test(file)))
  holds(t, empty.map(String), 'Nothing of the folder is left: remove it from `floors`.')
  const wrong = breaches((file, target) => {
    if (!file.startsWith('server/') || !/^(server|proto)\//.test(target)) return false
    const [from, to] = [placeOf(file)!, placeOf(target)!]
    return to.floor > from.floor || (to.floor === from.floor && to.room !== from.room)
  })
  holds(t, wrong, 'Move what both need to a lower layer, or pass it as an argument from the folder’s index.ts.')
})

test('the client package imports the generated code, its dependencies and Node.js, and has the versions of this project', async t => {
  const read = async (path: string) => JSON.parse(await readFile(join(root, path), 'utf8'))
  const [own, project] = [await read('proto/client/package.json'), await read('package.json')]
  t.is(own.version, project.version)
  agree(
    t,
    Object.keys(own.dependencies),
    ['@bufbuild/protobuf', '@connectrpc/connect', 'jose'],
    'Every service that uses the client installs its packages: do without this one.',
    'The generated code and the verification of tokens need this package.',
  )
  t.deepEqual(own.engines, project.engines)
  const names = (await readdir(join(root, 'proto/client'))).filter(name => name.endsWith('.ts'))
  t.true(names.length > 10)
  for (const name of names) {
    const text = await readFile(join(root, 'proto/client', name), 'utf8')
    for (const [, target = ''] of text.matchAll(/\bfrom '([^']+)'/g)) {
      const isOwn = /^\.\/[\w-]+\.js$|^\.\.\/gen\/auth\/v1\/\w+_pb\.js$|^node:/.test(target)
      t.true(isOwn || isPackage(target, ...Object.keys(own.dependencies)), `${name} -> ${target}`)
    }
  }
})

test('imports form no cycle', t => {
  const done = new Set<string>()
  const circles: string[] = []
  const visit = (file: string, way: readonly string[]) => {
    if (way.includes(file)) circles.push([...way.slice(way.indexOf(file)), file].join(' -> '))
    else if (!done.has(file)) {
      for (const target of imports.get(file) ?? []) visit(target, [...way, file])
      done.add(file)
    }
  }
  for (const file of imports.keys()) visit(file, [])
  holds(t, circles, 'Move what two files of the circle need to a third, which imports neither.')
})

test('the command line imports no model, no RPC and no endpoint', t => {
  const wrong = breaches(
    (file, target) =>
      file.startsWith('cli/') &&
      (/^(server\/(access|administration|application|calls|forgotpasswords|models|outbox|passwords|users|service)|gateway)/.test(
        target,
      ) ||
        isPackage(target, '@grpc/grpc-js')),
  )
  holds(t, wrong, 'Call an RPC of auth.v1.Administration instead: the command line also works on another machine.')
})

test('no file imports a main.ts', t => {
  holds(
    t,
    breaches((_, target) => /(^|\/)main\.ts$/.test(target)),
    'An import would start the program: move what you need to a file of its own.',
  )
})

test('rules, requests and settings import only each other and the generated code', t => {
  const parts = exceptions(t, 'server/process', 'database-url', 'pem', 'plain-text', 'setting-values')
  const low = /^server\/(rules|requests)\/|^proto\/gen\//
  const wrong = breaches(
    (file, target) =>
      (low.test(file) || file === 'server/process/settings.ts') &&
      /^(server|gateway|cli|proto)\//.test(target) &&
      !low.test(target) &&
      !parts.has(target),
  )
  holds(t, wrong, 'Every folder may use these files, so they use no other: take what you need as an argument.')
})

test('each folder has a header that says what it owns', async t => {
  const heads: Record<string, string> = {
    cli: 'program.ts',
    'cli/terminal': 'output.ts',
    gateway: 'http.ts',
    'server/access': 'index.ts',
    'server/administration': 'index.ts',
    'server/backup': 'format.ts',
    'server/calls': 'run.ts',
    'server/changes': 'index.ts',
    'server/database': 'database.ts',
    'server/embedded': 'start.ts',
    'server/forgotpasswords': 'index.ts',
    'server/jobs': 'maintenance.ts',
    'server/limits': 'index.ts',
    'server/models': 'index.ts',
    'server/observability': 'metrics.ts',
    'server/openid': 'index.ts',
    'server/outbox': 'index.ts',
    'server/passwords': 'index.ts',
    'server/policy': 'policy.ts',
    'server/process': 'settings.ts',
    'server/registration': 'index.ts',
    'server/requests': 'call.ts',
    'server/rules': 'names.ts',
    'server/users': 'index.ts',
  }
  const rooms = (await readdir(join(root, 'server'), { withFileTypes: true })).filter(each => each.isDirectory())
  agree(
    t,
    rooms.map(({ name }) => `server/${name}`),
    Object.keys(heads).filter(room => room.startsWith('server/')),
    'Name the file here that says what the folder owns, and add the folder to docs/architecture.md.',
    'The folder is gone: remove it here and from docs/architecture.md.',
  )
  for (const [room, file] of Object.entries(heads)) {
    const [head = ''] = (await readFile(join(root, room, file), 'utf8')).split('\nimport ')
    const remedy = `Begin ${room}/${file} with a comment of a few lines that says what the folder owns.`
    t.regex(head, /^\/[/*].*(\n[ /*].*)+/, remedy)
    t.regex(head, /\bowns?\b/, remedy)
  }
})

test('every RPC has a route, except those that are gRPC only', t => {
  const rpcs = clientServices.flatMap(([{ typeName, methods }]) => methods.map(({ name }) => `${typeName}.${name}`))
  const routed = routes.flatMap(({ rpc, text }) => (rpc && !text ? [`${rpc.parent.typeName}.${rpc.name}`] : []))
  t.is(new Set(routed).size, routed.length, 'Give each RPC one route.')
  agree(
    t,
    rpcs.filter(name => !routed.includes(name)),
    [
      ...['BatchGetUsers', 'ListUsers', 'VerifyToken'].map(name => `auth.v1.Users.${name}`),
      ...['CheckAuthorization', 'Authorize', 'CheckSignOut', 'SignOut', 'CheckOrigin'].map(
        name => `auth.v1.OpenId.${name}`,
      ),
      'auth.v1.Changes.Poll',
    ],
    'Give the policy of the RPC a path and gateway/operations.ts its parameters, or name the RPC here.',
    'The RPC has a route: remove it here.',
  )
})

test('every word of a path under /users is a reserved username, in any spelling, and other words are not', t => {
  const words = routes.flatMap(({ path }) => /^\/users\/([^/]+)$/.exec(path)?.[1] ?? [])
  t.true(words.length > 5)
  for (const word of [...words, ...revisions, '.', '..']) {
    for (const spelling of [word, word.toUpperCase(), ` ${word} `])
      t.true(
        isReservedUsername(spelling),
        `Reserve ${spelling} in server/rules/names.ts: GET /users/{username} hides it.`,
      )
  }
  for (const name of ['users', 'forgotpasswords', 'healthz', 'admin', 'meu', '(11)98765-4321']) {
    t.false(isReservedUsername(name), `No path has ${name}: let users have it.`)
  }
})

test('the policy of an RPC lists each of its specific reasons once, and no shared one', t => {
  for (const [, policies] of services) {
    for (const [rpc, policy] of Object.entries(policies)) {
      const all = reasonsOf(policy)
      t.is(new Set(all).size, all.length, `Leave out of the policy of ${rpc} what reasonsOf adds by itself.`)
    }
  }
  for (const route of routes) t.true(statusesOf(route).size > 1)
})

test('the comment of an RPC names the scopes with which its policy permits services', async t => {
  for (const [service, policies] of services) {
    const file = fileOf(service)
    const text = await readFile(join(root, file), 'utf8')
    // Administration names its scopes once, for all RPCs.
    const head = /(?:^\/\/.*\n)*(?=^service )/m.exec(text)![0]
    for (const rpc of service.methods) {
      const policy = policies[rpc.localName]!
      const scopes = 'scopes' in policy ? policy.scopes : 'scope' in policy ? [policy.scope].flat() : []
      const comment = new RegExp(`(?:  //.*\\n)*(?=  rpc ${rpc.name}\\()`).exec(text)![0]
      for (const scope of scopes ?? []) {
        const remedy = `Name \`${scope}\` in the comment of ${rpc.name} in ${file}.`
        t.true(`${head}${comment}`.includes(`\`${scope}\``), remedy)
      }
    }
  }
})

test('the last paragraph of an RPC’s comment has its path and the codes of its reasons; `npm run docs` writes it', async t => {
  for (const [service, policies] of services) {
    const file = fileOf(service)
    const text = await readFile(join(root, file), 'utf8')
    t.true(withLastParagraphs(text, service, policies) === text, `Run \`npm run docs\`: ${file} is behind.`)
    if ([Users, Administration].some(({ typeName }) => typeName === service.typeName))
      for (const reason of sharedReasons)
        t.true(text.replaceAll(/\s+(\/\/ )?/g, ' ').includes(withCode(reason)), `${file} ${reason}`)
  }
  const users = await readFile(join(root, 'proto/auth/v1/users.proto'), 'utf8')
  t.true(
    users.includes(
      '  // HTTP: POST /users/login\n  // Errors: MISSING_PARAMETER (INVALID_ARGUMENT), INVALID_CREDENTIALS (UNAUTHENTICATED)',
    ),
  )
})

test('only RPCs that begin a session look up their caller or open a change themselves', async t => {
  const found: string[] = []
  for (const file of imports.keys()) {
    if (!/^server\/(users|forgotpasswords|administration)\//.test(file)) continue
    const text = await readFile(join(root, file), 'utf8')
    if (/\.transact\(|identify\(|claimsOf\(|\bauthorization\b/.test(text)) found.push(file)
  }
  agree(
    t,
    found,
    ['server/users/sign-up.ts'],
    'Use `caller` and `transact` of the context: they apply the policy of the RPC.',
    'The file no longer does so: remove it here.',
  )
})

test('only the gate says that a user passed it', async t => {
  const found: string[] = []
  for (const file of imports.keys())
    if (/as (unknown as )?Passed\b/.test(await readFile(join(root, file), 'utf8'))) found.push(file)
  agree(t, found, ['server/access/gate.ts'], 'Call `pass`, which asks for the state of the user.', 'It moved.')
})

test('every reason has the HTTP status and the gRPC code of its comment', async t => {
  const text = await readFile(join(root, 'proto/auth/v1/reason.proto'), 'utf8')
  const documented = new Map(
    [...text.matchAll(/\[(\d{3}, [A-Z_]+)\]\n\s+REASON_(\w+) = \d+;/g)].map(([, both, name]) => [name, both]),
  )
  const names = Object.keys(Reason).filter(name => Number.isNaN(Number(name)) && name !== 'UNSPECIFIED')
  t.true(names.length > 15)
  for (const name of names) {
    const reason = Reason[name as keyof typeof Reason]
    const remedy = `${name}: let the comment in reason.proto and server/requests/reasons.ts say the same.`
    t.is(documented.get(name), `${statusOf(reason)}, ${status[new Refusal(reason).code]}`, remedy)
  }
})

test('every reason has a distinct text that says what to do', t => {
  const reasons = Object.values(Reason).filter(reason => typeof reason === 'number')
  for (const reason of reasons) t.regex(new Refusal(reason as Reason).message, /^\S.*\.$/)
})

test('a source file has at most 500 lines', async t => {
  const long: string[] = []
  for (const file of imports.keys()) {
    const lines = (await readFile(join(root, file), 'utf8')).split('\n').length
    if (lines > 500) long.push(`${file}: ${lines}`)
  }
  holds(t, long, 'Split the file by what its parts are about.')
})

test('docs/architecture.md lists the triggers', async t => {
  const folder = join(root, 'dist/server/database/migrations')
  const texts = await Promise.all((await readdir(folder)).map(name => readFile(join(folder, name), 'utf8')))
  const triggers = [...texts.join('\n').matchAll(/^CREATE (?:CONSTRAINT )?TRIGGER (\w+)/gm)].map(([, name]) => name!)
  const text = await readFile(join(root, 'docs/architecture.md'), 'utf8')
  const section = /## What the database does by itself\n([\s\S]*?)\n## /.exec(text)?.[1] ?? ''
  const listed = section
    .split('\n')
    .flatMap(line => [...(line.split('|')[1] ?? '').matchAll(/`(\w+)`/g)].map(([, name]) => name!))
  agree(
    t,
    triggers,
    listed,
    'Add the trigger to the table in docs/architecture.md.',
    'No migration creates the trigger: remove it from docs/architecture.md.',
  )
})

test('the files that docs/architecture.md names for an afternoon’s reading are at most 30, of 3,500 lines', async t => {
  const text = await readFile(join(root, 'docs/architecture.md'), 'utf8')
  const section = /## An afternoon’s reading\n([\s\S]*?)\n## /.exec(text)?.[1] ?? ''
  const files = [...section.matchAll(/^\d+\. `([^`]+)`/gm)].map(([, file]) => file!)
  t.true(files.length > 15)
  holds(
    t,
    files.filter(file => !imports.has(file)),
    'The file is gone: name in docs/architecture.md what now leads from a request to its statement.',
  )
  const shorter = 'Move what isn’t of the core out of these files, and keep the list.'
  t.true(files.length <= 30, shorter)
  let lines = 0
  for (const file of files) lines += (await readFile(join(root, file), 'utf8')).split('\n').length - 1
  t.true(lines <= 3_500, `${lines} lines. ${shorter}`)
})

test('every advisory lock of the registry has its key in one list, and docs/operations.md lists the keys', async t => {
  const list = 'server/database/advisory-keys.ts'
  const keysIn = (text: string) =>
    [...text.matchAll(/\b7_?264_?\d{3}\b/g)].map(([key]) => Number(key.replaceAll('_', '')))
  const unlisted: string[] = []
  for (const file of imports.keys()) {
    if (!file.startsWith('server/') || file === list || file.startsWith('server/embedded/')) continue
    const text = await readFile(join(root, file), 'utf8')
    const locks = [...text.matchAll(/pg_\w*advisory\w*lock\w*\(/g)].length
    if (keysIn(text).length > 0 || (locks > 0 && !text.includes('advisoryKeys.'))) unlisted.push(file)
  }
  holds(t, unlisted, `Take the key of the lock from advisoryKeys in ${list}.`)
  const inCode = [...new Set(keysIn(await readFile(join(root, list), 'utf8')))].sort()
  t.true(inCode.length >= 6)
  agree(
    t,
    inCode.map(String),
    keysIn(await readFile(join(root, 'docs/operations.md'), 'utf8')).map(String),
    'Add the key to docs/operations.md.',
    `No such key is in ${list}: remove it from docs/operations.md.`,
  )
})
