/**
 * Requests made to cost much: the processor time of the main thread, compared with what the scheduler charges for them. The
 * scheduler is as fair as its charges are accurate. Wants an idle machine, for five minutes; `--match='*signup*'` measures some.
 */
import { readFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { gzipSync } from 'node:zlib'
import type { DescMethodUnary } from '@bufbuild/protobuf'
import { Client, credentials, Metadata } from '@grpc/grpc-js'
import test from 'ava'
import { routes } from '../../gateway/operations.js'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { scrape } from '../_helpers/metrics.js'
import { freePort } from '../_helpers/relay.js'
import { createRequest, signUpForm, teardownOfFile } from '../_helpers/service.js'
import { binaryShapes, jsonShapes, largestBody, largestQuery, pairShapes, type Shape } from '../_helpers/shapes.js'
import { type Spawned, spawnService } from '../_helpers/spawned.js'

const rpcs = [...Users.methods, ...ForgotPasswords.methods, ...Changes.methods] as DescMethodUnary[]

interface Target {
  readonly method: string
  readonly path: string
  /** Of the body; absent for gRPC. */
  readonly type?: string
  readonly gzip?: boolean
  /** Undefined for a request without content. */
  readonly shapes: readonly (Shape | undefined)[]
}

const targets: Target[] = [
  ...routes.flatMap(({ method, path: template, rpc, revisions = ['1.0.0'] }): Target[] => {
    if (!rpc) return [{ method, path: template, type: '', shapes: [undefined] }]
    const path = `${revisions[0] ? `/${revisions[0]}` : ''}${template.replace(/\{\w+\}/, 'x')}`
    const { input } = rpc
    const query = { method, path, type: '', shapes: [undefined, ...pairShapes('query', input)] }
    if (method === 'GET') return [query]
    return [
      query,
      { method, path, type: 'application/json', shapes: jsonShapes(input) },
      { method, path, type: 'application/x-www-form-urlencoded', shapes: pairShapes('form', input) },
    ]
  }),
  ...rpcs.flatMap(({ parent, name, input }): Target[] => {
    const [method, path] = ['POST', `/${parent.typeName}/${name}`]
    const [json, binary] = [jsonShapes(input), binaryShapes(input)]
    return [
      { method, path, type: 'application/json', shapes: json },
      { method, path, type: 'application/json', gzip: true, shapes: json },
      { method, path, type: 'application/grpc-web+json', shapes: json },
      { method, path, type: 'application/grpc-web+proto', gzip: true, shapes: binary },
      { method, path, type: 'application/proto', shapes: binary },
    ]
  }),
  ...([...rpcs, ...Administration.methods] as DescMethodUnary[]).map(({ parent, name, input }) => {
    return { method: 'POST', path: `/${parent.typeName}/${name}`, shapes: binaryShapes(input) }
  }),
]

/** A frame of gRPC-Web. */
function framed(content: Buffer, gzip: boolean): Buffer {
  const head = Buffer.alloc(5)
  head[0] = Number(gzip)
  head.writeUInt32BE(content.length, 1)
  return Buffer.concat([head, content])
}

/** Requests in flight: so many small ones as of a flood, which share statements and writes. */
const inFlight = { small: 16, large: 4 }

const agent = new Agent({ keepAlive: true, maxSockets: inFlight.small })
let service: Spawned
let metrics: string
let client: Client
let adminClient: Client
let token = ''

const hooks = teardownOfFile()
test.before(async () => {
  const [port, admin] = [await freePort(), `127.0.0.1:${await freePort()}`]
  metrics = `http://127.0.0.1:${port}/metrics`
  service = await spawnService(hooks, {
    AUTH_METRICS_ADDRESS: `127.0.0.1:${port}`,
    AUTH_ADMIN_ADDRESS: admin,
    AUTH_LIMIT_FACTOR: '100000',
    AUTH_TRUSTED_PROXIES: '',
    AUTH_LOG_LEVEL: 'warn',
  })
  client = new Client(service.grpc, credentials.createInsecure())
  adminClient = new Client(admin, credentials.createInsecure())
  hooks.teardown(async () => {
    agent.destroy()
    client.close()
    adminClient.close()
  })
})

const same = (bytes: Buffer) => bytes

function call(path: string, body: Buffer): Promise<unknown> {
  const metadata = new Metadata()
  metadata.set('authorization', `Bearer ${token}`)
  const at = path.includes(Administration.typeName) ? adminClient : client
  return new Promise(resolve => at.makeUnaryRequest(path, same, same, body, metadata, error => resolve(error?.code)))
}

function send(method: string, path: string, type: string, body: Buffer | undefined, gzip: boolean): Promise<unknown> {
  const encoding = type.includes('web') ? 'grpc-encoding' : 'content-encoding'
  const headers = {
    authorization: `Bearer ${token}`,
    ...(type && { 'content-type': type }),
    ...(gzip && { [encoding]: 'gzip' }),
  }
  return new Promise((resolve, reject) => {
    const sent = request(service.http + path, { method, headers, agent }, answer => {
      answer.resume().once('end', () => resolve(answer.statusCode))
    })
    sent.once('error', reject).end(body)
  })
}

const charged = async () => (await scrape(metrics)).value('auth_requests_charged_seconds_total')! * 1000
const spent = () =>
  Number(readFileSync(`/proc/${service.pid}/task/${service.pid}/schedstat`, 'utf8').split(' ', 1)[0]) / 1e6

/** Sends a request so many times, some at a time. */
async function repeat(one: () => Promise<unknown>, times: number, atOnce: number): Promise<void> {
  let left = times
  const loop = async () => {
    while (left-- > 0) await one()
  }
  await Promise.all(Array.from({ length: atOnce }, loop))
}

/** Compares a request of this shape with its charge. Returns what was measured, and whether it is more than twice the charge. */
async function compare({ method, path, type, gzip = false }: Target, shape?: Shape) {
  const isQuery = shape?.type === 'query'
  const content = shape?.make(isQuery ? largestQuery : largestBody)
  const zipped = gzip ? gzipSync(content!) : content
  const body = isQuery ? undefined : type?.includes('web') ? framed(zipped!, gzip) : zipped
  // Encoded, some shapes would be too long for node:http, which refuses them uncharged.
  const encoded = encodeURI(`${path}?${content}`).replaceAll('%25', '%').slice(0, largestQuery)
  const url = isQuery ? encoded.replace(/%.?$/, '') : path
  const one = () => (type === undefined ? call(path, body!) : send(method, url, type, body, gzip))
  const outcome = await one()
  const isSmall = (content?.length ?? 0) < 100
  const [times, atOnce] = isSmall ? [320, inFlight.small] : [8, inFlight.large]
  if (isSmall) await repeat(one, times, atOnce)
  // The first ones compile code, and shared processors may be slow for a while.
  let [ratio, line] = [Number.POSITIVE_INFINITY, '']
  for (let tries = 0; tries < 4 && ratio > 2; tries++) {
    const [charge, from] = [await charged(), spent()]
    await repeat(one, times, atOnce)
    const [cost, cover] = [(spent() - from) / times, ((await charged()) - charge) / times]
    if (cost / cover >= ratio) continue
    ratio = cost / cover
    line = `${ratio.toFixed(1)}: ${cost.toFixed(2)} ms, charged ${cover.toFixed(2)}: ${shape?.name ?? 'small'} → ${outcome}`
  }
  return { line, isSmall, isDear: ratio > 2 }
}

for (const target of targets) {
  const { method, path, type = 'gRPC', gzip = false, shapes } = target
  const title = `${[method, path, type, gzip && 'gzip'].filter(Boolean).join(' ')} costs at most twice its charge`
  test.serial(title, async t => {
    token = (await createRequest(service.http, 'none')('POST', '/users/signup', { body: signUpForm() })).text
    const dear: string[] = []
    for (const shape of shapes) {
      const { line, isSmall, isDear } = await compare(target, shape)
      if (isSmall) t.log(line)
      if (isDear) dear.push(line)
    }
    t.deepEqual(dear, [])
  })
}
