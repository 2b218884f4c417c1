/**
 * The baselines, each in a separate process: the lower bounds of the service. They read with the service's
 * models over its shared connections and run with the same flags of Node, without checks, counts or
 * limits.
 *
 * Arguments: the kind of baseline, then the URL of its database, or the port of the gRPC baseline for `hop`.
 */
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { availableParallelism } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { create, type DescMethodUnary, fromBinary, type Message, toBinary, toJson } from '@bufbuild/protobuf'
import {
  Client,
  credentials,
  Metadata,
  type MethodDefinition,
  Server,
  ServerCredentials,
  type ServerUnaryCall,
  type sendUnaryData,
} from '@grpc/grpc-js'
import bcrypt from 'bcrypt'
import { UserSchema } from '../../proto/gen/auth/v1/records_pb.js'
import { type GetMeResponse, Users } from '../../proto/gen/auth/v1/users_pb.js'
import { openDatabase } from '../../server/database/database.js'
import { defineModels } from '../../server/models/index.js'
import { toUserRecord } from '../../server/users/user-record.js'

const [kind, argument = ''] = process.argv.slice(2)
/** No sealed value is opened here. */
const masterKey = undefined as never
/** The others make no query. */
const url = kind === 'http' || kind === 'grpc' ? argument : 'postgres://127.0.0.1'
const { users } = defineModels(openDatabase(url), masterKey)

const ids = new Map<string, number>()

/** Id in a token, which isn't verified. */
function idIn(token = ''): number {
  let id = ids.get(token)
  if (id === undefined) {
    id = Number(JSON.parse(Buffer.from(token.split('.')[1]!, 'base64url').toString()).sub)
    ids.set(token, id)
  }
  return id
}

async function userOf(token: string | undefined) {
  const user = (await users.byId(idIn(token)))!
  return toUserRecord(user, { user, admin: false }, masterKey)
}

function serveHttp(serve: (request: IncomingMessage) => Promise<unknown>): Promise<number> {
  const server = createServer((request, response) => {
    serve(request).then(
      answer => {
        const body = JSON.stringify(answer)
        response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) })
        response.end(body)
      },
      error => response.writeHead(500).end(String(error)),
    )
  })
  return new Promise(resolve => {
    server.listen(0, '127.0.0.1', () => resolve((server.address() as AddressInfo).port))
  })
}

const unary = ({ parent, name, input, output }: DescMethodUnary): MethodDefinition<Message, Message> => ({
  path: `/${parent.typeName}/${name}`,
  requestStream: false,
  responseStream: false,
  requestSerialize: message => Buffer.from(toBinary(input, message)),
  requestDeserialize: bytes => fromBinary(input, bytes),
  responseSerialize: message => Buffer.from(toBinary(output, message)),
  responseDeserialize: bytes => fromBinary(output, bytes),
})
const definition = { getMe: unary(Users.method.getMe), verifyToken: unary(Users.method.verifyToken) }

async function serveGrpc(): Promise<number> {
  type Call = ServerUnaryCall<Message, Message>
  const handler =
    ({ output }: DescMethodUnary, answer: (call: Call) => Promise<Record<string, unknown>>) =>
    (call: Call, callback: sendUnaryData<Message>) => {
      answer(call).then(
        fields => callback(null, create(output, fields)),
        error => callback({ code: 13, details: String(error) }),
      )
    }
  const server = new Server()
  server.addService(definition, {
    getMe: handler(Users.method.getMe, async ({ metadata }) => ({
      user: await userOf(metadata.get('authorization')[0]?.toString()),
    })),
    verifyToken: handler(Users.method.verifyToken, async ({ request }) => {
      const { id, username, role } = await userOf((request as Message & { token: string }).token)
      return { active: true, sub: String(id), username, roles: [role] }
    }),
  })
  return new Promise((resolve, reject) => {
    const bound = (error: Error | null, port: number) => (error ? reject(error) : resolve(port))
    server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), bound)
  })
}

/** node:http in front of grpc-js's client. */
function serveHop(port: string): Promise<number> {
  const client = new Client(`127.0.0.1:${port}`, credentials.createInsecure())
  const { path, requestSerialize, responseDeserialize } = definition.getMe
  const request = create(Users.method.getMe.input)
  return serveHttp(
    ({ headers }) =>
      new Promise((resolve, reject) => {
        const metadata = new Metadata()
        metadata.set('authorization', headers.authorization!)
        client.makeUnaryRequest(path, requestSerialize, responseDeserialize, request, metadata, (error, message) => {
          if (error) reject(error)
          else resolve(toJson(UserSchema, (message as GetMeResponse).user!, { alwaysEmitImplicit: true }))
        })
      }),
  )
}

/** Answers each `{ cost, seconds }` with the comparisons a second of all cores together. */
function serveBcrypt(): 0 {
  process.on('message', async ({ cost, seconds }: { cost: number; seconds: number }) => {
    const hash = await bcrypt.hash('secret', cost)
    let count = 0
    let over = false
    async function work() {
      while (!over) {
        await bcrypt.compare('secret', hash)
        count++
      }
    }
    const working = Promise.all(Array.from({ length: availableParallelism() }, work))
    // Counts from the steady state, in which as many end as start.
    await sleep(300)
    const [before, from] = [count, performance.now()]
    await sleep(seconds * 1000)
    const perSecond = ((count - before) * 1000) / (performance.now() - from)
    over = true
    await working
    process.send?.({ perSecond })
  })
  return 0
}

const kinds: Record<string, () => number | Promise<number>> = {
  http: () => serveHttp(({ headers }) => userOf(headers.authorization)),
  grpc: serveGrpc,
  hop: () => serveHop(argument),
  bcrypt: serveBcrypt,
}
process.send?.({ port: await kinds[kind!]!() })
process.once('disconnect', () => process.exit())
