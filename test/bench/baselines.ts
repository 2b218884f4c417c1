/**
 * The baselines, each in a separate process: the lower bounds of the service. They read with the service's
 * models over its shared connections and run with the same flags of Node, without checks, counts or
 * limits.
 *
 * Arguments: the kind of baseline, then the port of the gRPC baseline for `hop`.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { availableParallelism } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { create, type DescMethodUnary, fromBinary, type Message, toBinary, toJson } from '@bufbuild/protobuf'
import {
  Client,
  credentials,
  Metadata,
  Server,
  ServerCredentials,
  type ServerUnaryCall,
  type ServiceDefinition,
  type sendUnaryData,
  type UntypedHandleCall,
} from '@grpc/grpc-js'
import bcrypt from 'bcrypt'
import { UserSchema } from '../../proto/gen/auth/v1/records_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { openDatabase } from '../../server/database/database.js'
import { defineModels } from '../../server/models/index.js'
import type { User } from '../../server/models/user.js'
import { toUserRecord } from '../../server/users/user-record.js'

/** Without a URL no query is made. */
const database = openDatabase(process.env.DATABASE_URL ?? 'postgres://127.0.0.1')
/** No sealed value is opened here. */
const masterKey = undefined as never
const { users } = defineModels(database, masterKey)

const ids = new Map<string, number>()

/** Id in a token, which isn't verified. */
function idIn(authorization: string | undefined): number {
  const token = authorization ?? ''
  let id = ids.get(token)
  if (id === undefined) {
    id = Number(JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString()).sub)
    ids.set(token, id)
  }
  return id
}

const record = (user: User) => toUserRecord(user, { user, admin: false }, masterKey)

async function user(id: number) {
  return record((await users.byId(id))!)
}

type Serve = (request: IncomingMessage) => Promise<unknown>

function serveHttp(serve: Serve): Promise<number> {
  const server = createServer((request, response) => {
    serve(request).then(
      answer => send(response, JSON.stringify(answer)),
      error => response.writeHead(500).end(String(error)),
    )
  })
  return new Promise(resolve => {
    server.listen(0, '127.0.0.1', () => resolve((server.address() as AddressInfo).port))
  })
}

function send(response: ServerResponse, body: string): void {
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) })
  response.end(body)
}

async function plain({ headers }: IncomingMessage): Promise<unknown> {
  return user(idIn(headers.authorization))
}

function pathOf({ parent, name }: DescMethodUnary): string {
  return `/${parent.typeName}/${name}`
}

async function serveGrpc(): Promise<number> {
  type Handler = (request: Record<string, string>, id: () => number) => Promise<Record<string, unknown>>
  const handlers: Record<string, Handler> = {
    getMe: async (_, id) => ({ user: await user(id()) }),
    async verifyToken({ token }) {
      const { id, username, role } = await user(idIn(token))
      return { active: true, sub: String(id), username, roles: [role] }
    },
  }
  const definition: Record<string, ServiceDefinition[string]> = {}
  const served: Record<string, UntypedHandleCall> = {}
  for (const method of Users.methods as DescMethodUnary[]) {
    const handler = handlers[method.localName]
    if (!handler) continue
    definition[method.localName] = {
      path: pathOf(method),
      requestStream: false,
      responseStream: false,
      requestSerialize: message => Buffer.from(toBinary(method.input, message)),
      requestDeserialize: bytes => fromBinary(method.input, bytes),
      responseSerialize: message => Buffer.from(toBinary(method.output, message)),
      responseDeserialize: bytes => fromBinary(method.output, bytes),
    }
    served[method.localName] = (call: ServerUnaryCall<Message, Message>, callback: sendUnaryData<Message>) => {
      const id = () => idIn(call.metadata.get('authorization')[0]?.toString())
      handler(call.request as never, id).then(
        answer => callback(null, create(method.output, answer)),
        error => callback({ code: 13, details: String(error) }),
      )
    }
  }
  const server = new Server()
  server.addService(definition, served)
  return new Promise((resolve, reject) => {
    const bound = (error: Error | null, port: number) => (error ? reject(error) : resolve(port))
    server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), bound)
  })
}

/** node:http in front of grpc-js's client. */
function serveHop(port: string): Promise<number> {
  const client = new Client(`127.0.0.1:${port}`, credentials.createInsecure())
  const { getMe } = Users.method
  return serveHttp(
    ({ headers }) =>
      new Promise((resolve, reject) => {
        const metadata = new Metadata()
        metadata.set('authorization', headers.authorization!)
        client.makeUnaryRequest(
          pathOf(getMe),
          message => Buffer.from(toBinary(getMe.input, message)),
          bytes => fromBinary(getMe.output, bytes),
          create(getMe.input),
          metadata,
          (error, message) => {
            if (error) reject(error)
            else resolve(toJson(UserSchema, message!.user!, { alwaysEmitImplicit: true }))
          },
        )
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

const [kind, port] = process.argv.slice(2)
const kinds: Record<string, () => number | Promise<number>> = {
  http: () => serveHttp(plain),
  grpc: serveGrpc,
  hop: () => serveHop(port!),
  bcrypt: serveBcrypt,
}
process.send?.({ port: await kinds[kind!]!() })
process.once('disconnect', () => process.exit())
