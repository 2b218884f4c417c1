/**
 * Requests made to cost much: the processor time of the main thread, compared with what the scheduler charges for them. The
 * scheduler is as fair as its charges are accurate.
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
import { createRequest, signUpForm } from '../_helpers/service.js'
import { binaryShapes, jsonShapes, largestBody, largestQuery, pairShapes, type Shape } from '../_helpers/shapes.js'
import { spawnService } from '../_helpers/spawned.js'

const rpcs = [...Users.methods, ...ForgotPasswords.methods, ...Changes.methods] as DescMethodUnary[]

interface Target {
  readonly method: string
  readonly path: string
  /** Of the body; absent for gRPC. */
  readonly type?: string
  readonly gzip?: boolean
  readonly shapes: readonly Shape[]
}

const targets: Target[] = [
  ...routes.flatMap(({ method, path: template, rpc, revisions = ['1.0.0'] }): Target[] => {
    if (!rpc) return [{ method, path: template, type: '', shapes: [] }]
    const path = `${revisions[0] ? `/${revisions[0]}` : ''}${template.replace(/\{\w+\}/, 'x')}`
    const { input } = rpc
    const query = { method, path, type: '', shapes: pairShapes('query', input) }
    if (method === 'GET') return [query, { method, path, type: '', shapes: [] }]
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

/** Measures those alone whose description it matches, such as `users/signup.*form`; all of them take half an hour. */
const only = new RegExp(process.env.COSTS_OF ?? '')

/** A frame of gRPC-Web. */
function framed(content: Buffer, gzip: boolean): Buffer {
  const head = Buffer.alloc(5)
  head[0] = Number(gzip)
  head.writeUInt32BE(content.length, 1)
  return Buffer.concat([head, content])
}

test('no request costs the main thread more than twice what it is charged', async t => {
  const [metrics, admin] = [await freePort(), `127.0.0.1:${await freePort()}`]
  const service = await spawnService(t, {
    AUTH_METRICS_ADDRESS: `127.0.0.1:${metrics}`,
    AUTH_ADMIN_ADDRESS: admin,
    AUTH_LIMIT_FACTOR: '100000',
    AUTH_TRUSTED_PROXIES: '',
    AUTH_LOG_LEVEL: 'warn',
  })
  const agent = new Agent({ keepAlive: true, maxSockets: 4 })
  const [client, adminClient] = [service.grpc, admin].map(at => new Client(at, credentials.createInsecure()))
  t.teardown(() => {
    agent.destroy()
    client!.close()
    adminClient!.close()
  })
  let token = ''
  const same = (bytes: Buffer) => bytes

  function call(path: string, body: Buffer): Promise<unknown> {
    const metadata = new Metadata()
    metadata.set('authorization', `Bearer ${token}`)
    const at = path.includes(Administration.typeName) ? adminClient! : client!
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
  const charged = async () =>
    (await scrape(`http://127.0.0.1:${metrics}/metrics`)).value('auth_requests_charged_seconds_total')! * 1000
  const spent = () =>
    Number(readFileSync(`/proc/${service.pid}/task/${service.pid}/schedstat`, 'utf8').split(' ', 1)[0]) / 1e6

  /** Milliseconds of the main thread for a request, and the charge. */
  async function measure(one: () => Promise<unknown>, times: number) {
    const [charge, from] = [await charged(), spent()]
    for (let left = times; left > 0; left -= 4) await Promise.all([one(), one(), one(), one()])
    return { cost: (spent() - from) / times, charge: ((await charged()) - charge) / times }
  }

  const dear: { readonly ratio: number; readonly line: string }[] = []
  async function compare({ method, path, type, gzip = false }: Target, shape?: Shape) {
    const what = `${method} ${path} ${type ?? 'gRPC'}${gzip ? ' gzip' : ''} ${shape?.name ?? 'small'}`
    if (!only.test(what)) return
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
    if (isSmall) for (let times = 0; times < 300; times++) await one()
    // The first ones compile code, and shared processors may be slow for a while.
    let [ratio, line] = [Number.POSITIVE_INFINITY, '']
    for (let tries = 0; tries < 4 && ratio > 2; tries++) {
      const { cost, charge } = await measure(one, isSmall ? 100 : 8)
      if (cost / charge >= ratio) continue
      ratio = cost / charge
      line = `${ratio.toFixed(1)}: ${cost.toFixed(2)} ms, charged ${charge.toFixed(2)}: ${what} → ${outcome}`
    }
    if (ratio > 2) dear.push({ ratio, line })
    if (ratio > 2 || isSmall) t.log(line)
  }

  for (const target of targets) {
    const answer = await createRequest(service.http, 'none')('POST', '/users/signup', { body: signUpForm() })
    token = answer.text
    if (target.shapes.length === 0) await compare(target)
    for (const shape of target.shapes) await compare(target, shape)
  }
  t.deepEqual(
    dear.sort((a, b) => b.ratio - a.ratio).map(({ line }) => line),
    [],
  )
})
