/**
 * The floors, each a process of its own: what the service can't be better than. They read the same rows with the same
 * prepared statements through pg's own pool, and check nothing.
 *
 * Arguments: the kind of floor, then the port of the gRPC floor for `hop`.
 */
import { generateKeyPairSync, sign } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { availableParallelism } from 'node:os'
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
import pg from 'pg'
import { UserSchema } from '../../proto/gen/auth/v1/records_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import type { Statement } from '../../server/database/connection.js'
import { createQuestions, type QuestionRow } from '../../server/models/question.js'
import { createUsers, type User } from '../../server/models/user.js'
import { toRecord } from '../../server/users/userrecord.js'

/** Connections of the pool, as many as the service has. */
const poolSize = 10

/** The statement that a model runs, taken from the model itself. */
async function statementOf(use: (database: never) => Promise<unknown>): Promise<Statement> {
  let statement: Statement | undefined
  const run = async (given: Statement) => {
    statement = given
    return []
  }
  await use({ sequelize: { define: () => ({}) }, run, read: run } as never)
  return statement!
}

const none = undefined as never
const statements = {
  me: await statementOf(database => createUsers(database, none).byId(1)),
  both: await statementOf(database => createUsers(database, none).both(1, '')),
  taken: await statementOf(database => createUsers(database, none).taken('', '')),
  questions: await statementOf(database => createQuestions(database).all()),
  login: { name: 'login', text: 'SELECT id, password_hash FROM users WHERE username_key = $1' },
}

const pool = process.env.DATABASE_URL
  ? new pg.Pool({ connectionString: process.env.DATABASE_URL, max: poolSize })
  : undefined

async function ask<Row>({ name, text }: Statement, values: unknown[]): Promise<Row[]> {
  return (await pool!.query({ name, text, values })).rows
}

const holders = new Map<string, number>()

/** Id in a token, which isn't verified. */
function idIn(authorization: string | undefined): number {
  const token = authorization ?? ''
  let id = holders.get(token)
  if (id === undefined) {
    id = Number(JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString()).sub)
    holders.set(token, id)
  }
  return id
}

const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })

/** A signed text as long as a token of the service. */
function token(id: number): string {
  const text = `eyJ${'h'.repeat(133)}.${String(id).padStart(340, 'p')}`
  return `${text}.${sign('sha256', Buffer.from(text), { key: privateKey, dsaEncoding: 'ieee-p1363' }).toString('base64url')}`
}

/** Key of a username, which is a telephone number. */
function keyOf(username: string): string {
  return `tel:+55${username.replace(/\D/g, '')}`
}

const record = (user: User) => toRecord(user, { user, admin: false }, none)

async function user(id: number) {
  return record((await ask<User>(statements.me, [id]))[0]!)
}

async function other(id: number, username: string) {
  const rows = await ask<User>(statements.both, [id, keyOf(username)])
  return record(rows.find(row => row.id !== id)!)
}

async function login(username: string, password: string) {
  const [row] = await ask<{ id: number; password_hash: string }>(statements.login, [keyOf(username)])
  await bcrypt.compare(password, row!.password_hash.replace(/^hmac1:/, ''))
  return token(row!.id)
}

type Serve = (request: IncomingMessage) => Promise<{ json: unknown } | { text: string }>

function serveHttp(serve: Serve): Promise<number> {
  const server = createServer((request, response) => {
    serve(request).then(
      answer => {
        if ('text' in answer) send(response, 'text/plain; charset=utf-8', answer.text)
        else send(response, 'application/json', JSON.stringify(answer.json))
      },
      error => response.writeHead(500).end(String(error)),
    )
  })
  return new Promise(resolve => {
    server.listen(0, '127.0.0.1', () => resolve((server.address() as AddressInfo).port))
  })
}

function send(response: ServerResponse, type: string, body: string): void {
  response.writeHead(200, { 'content-type': type, 'content-length': Buffer.byteLength(body) })
  response.end(body)
}

async function plain(request: IncomingMessage) {
  const { url = '', headers } = request
  const bearer = headers.authorization
  if (url === '/users/me') return { json: await user(idIn(bearer)) }
  if (url === '/users/refresh') {
    const { id } = await user(idIn(bearer))
    return { text: token(id!) }
  }
  if (url === '/users/login') {
    const form = new URLSearchParams(await bodyOf(request))
    return { text: await login(form.get('username')!, form.get('password')!) }
  }
  if (url === '/forgotpasswords/findallforgotpasswordquestions') {
    const rows = await ask<QuestionRow>(statements.questions, [])
    return { json: rows.map(({ id, question, active }) => ({ id, question, active: active ? 1 : 0 })) }
  }
  const [, exists] = url.split('/users/existsByUsername?username=')
  if (exists !== undefined) {
    const [row] = await ask<{ username: boolean }>(statements.taken, [keyOf(decodeURIComponent(exists)), ''])
    return { json: row!.username }
  }
  return { json: await other(idIn(bearer), decodeURIComponent(url.slice('/users/'.length))) }
}

async function bodyOf(request: IncomingMessage): Promise<string> {
  let text = ''
  for await (const chunk of request) text += chunk
  return text
}

function pathOf({ parent, name }: DescMethodUnary): string {
  return `/${parent.typeName}/${name}`
}

async function serveGrpc(): Promise<number> {
  type Handler = (request: Record<string, string>, id: () => number) => Promise<Record<string, unknown>>
  const handlers: Record<string, Handler> = {
    getMe: async (_, id) => ({ user: await user(id()) }),
    refresh: async (_, id) => ({ token: token((await user(id())).id!) }),
    getUser: async ({ username }, id) => ({ user: await other(id(), username!) }),
    existsByUsername: async ({ username }) => ({
      exists: (await ask<{ username: boolean }>(statements.taken, [keyOf(username!), '']))[0]!.username,
    }),
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
            else resolve({ json: toJson(UserSchema, message!.user!, { alwaysEmitImplicit: true }) })
          },
        )
      }),
  )
}

/** Answers each `{ cost, seconds }` with the compares a second that all cores together make. */
function serveBcrypt(): 0 {
  process.on('message', async ({ cost, seconds }: { cost: number; seconds: number }) => {
    const hash = await bcrypt.hash('secret', cost)
    const start = performance.now()
    let count = 0
    let last = start
    async function work() {
      for (;;) {
        await bcrypt.compare('secret', hash)
        const now = performance.now()
        if (now - start > seconds * 1000) return
        count++
        last = now
      }
    }
    await Promise.all(Array.from({ length: availableParallelism() }, work))
    process.send?.({ perSecond: (count * 1000) / (last - start) })
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
