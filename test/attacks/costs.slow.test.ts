/** Bodies made to cost much: what they cost the main thread, compared with what the scheduler charges for them. */
import { readFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { gzipSync } from 'node:zlib'
import type { DescMessage, DescMethodUnary } from '@bufbuild/protobuf'
import { Client, credentials, Metadata } from '@grpc/grpc-js'
import test from 'ava'
import fc from 'fast-check'
import { routes } from '../../gateway/routes.js'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { Health } from '../../proto/gen/grpc/health/v1/health_pb.js'
import { scrape } from '../_helpers/metrics.js'
import { freePort } from '../_helpers/relay.js'
import { createRequest, signUpForm } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'

const rpcs = [...Users.methods, ...ForgotPasswords.methods, ...Changes.methods] as DescMethodUnary[]
const overGrpcAlone = [...Administration.methods, Health.method.check] as DescMethodUnary[]

/** Bytes of a body: few, and as many as a body may have. */
const sizes = fc.constantFrom(1_000, 65_000, 65_000)

const filled = (unit: string, size: number, separator = ',') =>
  Array(Math.floor(size / (unit.length + separator.length)) + 1)
    .fill(unit)
    .join(separator)

const units = fc.constantFrom(
  ...[
    '1',
    'null',
    '""',
    '{}',
    '[]',
    '-0.5e9',
    'true',
    '"a"',
    '[[1]]',
    '{"a":1}',
    '"\\ud83d\\ude00"',
    '"\\u0301\\u0323"',
  ],
  ...['{"id":1}', '{"id":"a"}', '{"username":1}', '{"username":"a","id":1}', '{"answer":1}', '{"paths":[1]}'],
)

/** JSON for a message: lists, nesting, long and many names, wrong types, long texts, in its fields or instead of it. */
function jsonFor(names: readonly string[]): fc.Arbitrary<string> {
  const value = fc.tuple(units, sizes, fc.nat(9)).map(([unit, size, kind]) => {
    const depth = Math.floor(size / 12)
    if (kind < 4) return `[${filled(unit, size)}]`
    if (kind === 4) return `${'['.repeat(depth)}${']'.repeat(depth)}`
    if (kind === 5) return `${'{"a":'.repeat(depth)}1${'}'.repeat(depth)}`
    if (kind === 6) return `{${Array.from({ length: depth }, (_, index) => `"k${index}":${unit}`)}}`
    if (kind === 7) return `{"${'k'.repeat(size)}":${unit}}`
    if (kind === 8) return `"${'é,'.repeat(size / 3)}"`
    return `{${filled(`"username":${unit}`, size)}}`
  })
  const name = fc.constantFrom(...names, 'unknown')
  return fc.oneof(
    value,
    { weight: 3, arbitrary: fc.tuple(name, value).map(([name, value]) => `{"username":"x","${name}":${value}}`) },
    units.map(unit => `{${names.map(name => `"${name}":${unit}`)}}`),
    fc.tuple(name, units, sizes).map(([name, unit, size]) => `{${filled(`"${name}":${unit}`, size)}}`),
  )
}

const forms = fc
  .tuple(fc.constantFrom('a', 'a=', '=', 'username=%41', 'username=x', '%41', '+', 'answers=[1]', 'é'), sizes)
  .map(([unit, size]) => filled(unit, size, '&'))

/** A message as bytes: each known field, and unknown ones, again and again, with contents of several lengths. */
function bytesFor({ fields }: DescMessage): fc.Arbitrary<Buffer> {
  const tags = [...fields.map(({ number }) => number), 15].flatMap(number =>
    [0, 2, 3, 5].map(wire => (number << 3) | wire),
  )
  const contents = fc.constantFrom('00', '', '0101', '02080a', '020a00', '0361c3a9', '0a0a00120012001a002200')
  return fc.tuple(fc.constantFrom(...tags), contents, sizes).map(([tag, content, size]) => {
    const unit = Buffer.concat([
      Buffer.of(...(tag < 128 ? [tag] : [(tag & 127) | 128, tag >> 7])),
      Buffer.from(content, 'hex'),
    ])
    return Buffer.alloc(Math.floor(size / unit.length) * unit.length, unit)
  })
}

const queries = fc
  .tuple(
    fc.constantFrom('a', 'a=', '=', 'username=%41', 'id=1', 'password=x', '%C3%A9', '+'),
    fc.constantFrom(0, 0, 7_500),
  )
  .map(([unit, size]) => (size > 0 ? `?${filled(unit, size, '&')}` : ''))

interface Attack {
  readonly method: string
  readonly path: string
  readonly query: string
  readonly type: string
  readonly body: Buffer
  readonly gzip: boolean
  readonly signedIn: boolean
}

const served = routes.filter(({ rpc }) => rpc)
const pathOf = ({ parent, name }: DescMethodUnary) => `/${parent.typeName}/${name}`

const overPath = ({ method, path, rpc, revisions }: (typeof served)[number]) => {
  const json = jsonFor(rpc!.input.fields.map(({ jsonName }) => jsonName))
  const contents = fc.oneof(
    json.map(text => ['application/json', text] as const),
    forms.map(text => ['application/x-www-form-urlencoded', text] as const),
  )
  return fc.tuple(contents, queries).map(([[type, text], query]) => ({
    method,
    path: `${revisions?.length === 1 ? `/${revisions[0]}` : ''}${path.replace(/\{\w+\}/, '%C3%A9'.repeat(100))}`,
    query,
    type,
    body: Buffer.from(method === 'GET' ? '' : text),
  }))
}

const overConnect = (rpc: DescMethodUnary) => {
  const json = jsonFor(rpc.input.fields.map(({ jsonName }) => jsonName)).map(text => Buffer.from(text))
  const bytes = bytesFor(rpc.input)
  return fc
    .oneof(
      ...['application/json', 'application/grpc-web+json'].map(type => json.map(body => ({ type, body }))),
      ...['application/proto', 'application/grpc-web+proto', 'gRPC'].map(type => bytes.map(body => ({ type, body }))),
    )
    .map(attack => ({ method: 'POST', path: pathOf(rpc), query: '', ...attack }))
}

const overGrpc = (rpc: DescMethodUnary) =>
  bytesFor(rpc.input).map(body => ({ method: 'POST', path: pathOf(rpc), query: '', type: 'gRPC', body }))

/** The dearest one that was found. */
const manyAnswers = fc.constant({
  ...{ method: 'POST', path: pathOf(ForgotPasswords.method.loginByUsernameAndAnswers), query: '' },
  ...{ type: 'application/json', body: Buffer.from(`{"username":"x","answers":[${filled('1', 64_000)}]}`) },
})

/** Attacks of everything that a stranger reaches, each with the number of them. */
const attacks = [
  [manyAnswers, 4] as const,
  ...[...served.map(overPath), ...rpcs.map(overConnect)].map(each => [each, 11] as const),
  ...overGrpcAlone.map(each => [overGrpc(each), 2] as const),
].map(([attack, count]) => {
  const more = fc.record({ gzip: fc.boolean(), signedIn: fc.boolean() })
  const all: fc.Arbitrary<Attack> = fc.tuple(attack, more).map(([one, how]) => ({ ...one, ...how }))
  return [all, count] as const
})

/** A frame of gRPC-Web. */
function framed(body: Buffer, gzip: boolean): Buffer {
  const content = gzip ? gzipSync(body) : body
  const head = Buffer.alloc(5)
  head[0] = Number(gzip)
  head.writeUInt32BE(content.length, 1)
  return Buffer.concat([head, content])
}

test('no body costs the main thread more than three times what it is charged, and 5 ms', async t => {
  const [metrics, admin] = [await freePort(), `127.0.0.1:${await freePort()}`]
  const service = await spawnService(t, {
    AUTH_METRICS_ADDRESS: `127.0.0.1:${metrics}`,
    AUTH_ADMIN_ADDRESS: admin,
    AUTH_LIMIT_FACTOR: '100000',
    AUTH_TRUSTED_PROXIES: '',
    AUTH_LOG_LEVEL: 'warn',
  })
  const { text: token } = await createRequest(service.http, 'none')('POST', '/users/signup', { body: signUpForm() })
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const clients = [service.grpc, admin].map(target =>
    [0, 2].map(
      algorithm =>
        new Client(target, credentials.createInsecure(), { 'grpc.default_compression_algorithm': algorithm }),
    ),
  )
  t.teardown(() => {
    agent.destroy()
    for (const client of clients.flat()) client.close()
  })
  const authorization = `Bearer ${token}`
  const same = (bytes: Buffer) => bytes

  const call = ({ path, body, gzip, signedIn }: Attack) =>
    new Promise<unknown>(resolve => {
      const metadata = new Metadata()
      if (signedIn) metadata.set('authorization', authorization)
      const client = clients[path.includes(Administration.typeName) ? 1 : 0]![gzip ? 1 : 0]!
      client.makeUnaryRequest(path, same, same, body, metadata, error => resolve(error?.code))
    })
  const send = ({ method, path, query, type, body, gzip, signedIn }: Attack) =>
    new Promise<unknown>((resolve, reject) => {
      const isFrame = type.includes('web')
      const encodes = gzip && path.includes('auth.v1')
      const headers = {
        'content-type': type,
        ...(encodes && { [isFrame ? 'grpc-encoding' : 'content-encoding']: 'gzip' }),
        ...(signedIn && { authorization }),
      }
      const bytes = isFrame ? framed(body, encodes) : encodes ? gzipSync(body) : body
      const sent = request(`${service.http}${path}${query}`, { method, headers, agent }, response => {
        response.resume().once('end', () => resolve(response.statusCode))
      })
      sent.once('error', reject).end(bytes)
    })
  const charged = async () =>
    (await scrape(`http://127.0.0.1:${metrics}/metrics`)).value('auth_requests_charged_seconds_total')! * 1000
  const spent = () =>
    Number(readFileSync(`/proc/${service.pid}/task/${service.pid}/schedstat`, 'utf8').split(' ', 1)[0])

  const outcomes: Record<string, number> = {}
  const dear: string[] = []
  for (const [index, [all, numRuns]] of attacks.entries()) {
    const measure = async (attack: Attack) => {
      const before = await charged()
      let least = Number.POSITIVE_INFINITY
      for (let times = 0; times < 5; times++) {
        const from = spent()
        const outcome = await (attack.type === 'gRPC' ? call(attack) : send(attack))
        least = Math.min(least, (spent() - from) / 1e6)
        if (times === 0) outcomes[`${outcome}`] = (outcomes[`${outcome}`] ?? 0) + 1
      }
      const charge = ((await charged()) - before) / 5
      return { least, charge, isDear: least > 3 * charge + 5 }
    }
    const property = fc.asyncProperty(all, async attack => {
      let measured = await measure(attack)
      // Shared processors may be slow for as long as five requests take.
      for (let more = 0; more < 5 && measured.isDear && dear.length < 5; more++) {
        await sleep(500)
        measured = await measure(attack)
      }
      const { least, charge, isDear } = measured
      if (!isDear) return
      const { path, query, type, gzip, signedIn, body } = attack
      const start = body.toString('latin1', 0, 60).replace(/[^ -~]/g, '.')
      dear.push(
        `${least.toFixed(1)} ms, charged ${charge.toFixed(2)}: ${path}${query.slice(0, 20)} ${type}${gzip ? ' gzip' : ''}${signedIn ? ' signed in' : ''} ${start}…`,
      )
    })
    await fc.assert(property, { numRuns, seed: 20_261_128 + index })
  }
  t.log(outcomes)
  t.deepEqual(dear, [])
})
