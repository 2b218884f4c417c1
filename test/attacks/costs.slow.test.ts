/** Bodies made to cost much: what they cost the main thread, compared with what the scheduler charges for them. */
import { readFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { gzipSync } from 'node:zlib'
import type { DescMessage, DescMethodUnary } from '@bufbuild/protobuf'
import { Client, credentials, Metadata } from '@grpc/grpc-js'
import test from 'ava'
import fc from 'fast-check'
import { routes } from '../../gateway/routes.js'
import { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { scrape } from '../_helpers/metrics.js'
import { freePort } from '../_helpers/relay.js'
import { createRequest, signUpForm } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'

const rpcs = [...Users.methods, ...ForgotPasswords.methods, ...Changes.methods] as DescMethodUnary[]

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

interface Attack {
  readonly path: string
  readonly type: string
  readonly body: Buffer
  readonly gzip: boolean
  readonly signedIn: boolean
}

const served = routes.filter(({ method, rpc, path }) => method !== 'GET' && rpc && path !== '/readyz')

const attacks: fc.Arbitrary<Attack> = fc
  .oneof(
    fc.constantFrom(...served).chain(({ path, rpc, revisions }) =>
      fc
        .oneof(
          jsonFor(rpc!.input.fields.map(({ jsonName }) => jsonName)).map(text => ['application/json', text] as const),
          forms.map(text => ['application/x-www-form-urlencoded', text] as const),
        )
        .map(([type, text]) => ({
          path: revisions?.length === 1 ? `/${revisions[0]}${path}` : path,
          type,
          body: Buffer.from(text),
        })),
    ),
    fc.constantFrom(...rpcs).chain(({ parent, name, input }) => {
      const path = `/${parent.typeName}/${name}`
      const json = jsonFor(input.fields.map(({ jsonName }) => jsonName)).map(text => Buffer.from(text))
      const framed = (body: Buffer) => {
        const head = Buffer.alloc(5)
        head.writeUInt32BE(body.length, 1)
        return Buffer.concat([head, body])
      }
      return fc.oneof(
        json.map(body => ({ path, type: 'application/json', body })),
        bytesFor(input).map(body => ({ path, type: 'application/proto', body })),
        bytesFor(input).map(body => ({ path, type: 'application/grpc-web+proto', body: framed(body) })),
        bytesFor(input).map(body => ({ path, type: 'gRPC', body })),
      )
    }),
  )
  .chain(attack => fc.record({ gzip: fc.boolean(), signedIn: fc.boolean() }).map(more => ({ ...attack, ...more })))

test('no body costs the main thread more than three times what it is charged, and 5 ms', async t => {
  const metrics = await freePort()
  const service = await spawnService(t, {
    AUTH_METRICS_ADDRESS: `127.0.0.1:${metrics}`,
    AUTH_LIMIT_FACTOR: '100000',
    AUTH_TRUSTED_PROXIES: '',
    AUTH_LOG_LEVEL: 'warn',
  })
  const { text: token } = await createRequest(service.http, 'none')('POST', '/users/signup', { body: signUpForm() })
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const grpc = [0, 2].map(
    algorithm =>
      new Client(service.grpc, credentials.createInsecure(), { 'grpc.default_compression_algorithm': algorithm }),
  )
  t.teardown(() => {
    agent.destroy()
    for (const client of grpc) client.close()
  })
  const authorization = `Bearer ${token}`
  const same = (bytes: Buffer) => bytes

  const overGrpc = ({ path, body, gzip, signedIn }: Attack) =>
    new Promise<unknown>(resolve => {
      const metadata = new Metadata()
      if (signedIn) metadata.set('authorization', authorization)
      grpc[gzip ? 1 : 0]!.makeUnaryRequest(path, same, same, body, metadata, error => resolve(error?.code))
    })
  const overHttp = ({ path, type, body, gzip, signedIn }: Attack) =>
    new Promise<unknown>((resolve, reject) => {
      const method = path === '/users/me' ? 'PATCH' : 'POST'
      const isRpc = path.includes('auth.v1')
      const headers = {
        'content-type': type,
        ...(gzip && isRpc && !type.includes('web') && { 'content-encoding': 'gzip' }),
        ...(signedIn && { authorization }),
      }
      const bytes = 'content-encoding' in headers ? gzipSync(body) : body
      const sent = request(`${service.http}${path}`, { method, headers, agent }, response => {
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
  await fc.assert(
    fc.asyncProperty(attacks, async attack => {
      const before = await charged()
      let least = Number.POSITIVE_INFINITY
      for (let times = 0; times < 5; times++) {
        const from = spent()
        const outcome = await (attack.type === 'gRPC' ? overGrpc(attack) : overHttp(attack))
        least = Math.min(least, (spent() - from) / 1e6)
        if (times === 0) outcomes[`${outcome}`] = (outcomes[`${outcome}`] ?? 0) + 1
      }
      const charge = ((await charged()) - before) / 5
      if (least <= 3 * charge + 5) return
      const { path, type, gzip, signedIn, body } = attack
      const start = body.toString('latin1', 0, 60).replace(/[^ -~]/g, '.')
      dear.push(
        `${least.toFixed(1)} ms, charged ${charge.toFixed(2)}: ${path} ${type}${gzip ? ' gzip' : ''}${signedIn ? ' signed in' : ''} ${start}…`,
      )
    }),
    { numRuns: Number(process.env.RUNS ?? 500), seed: 20_261_128 },
  )
  t.log(outcomes)
  t.deepEqual(dear, [])
})
