/**
 * The cost of requests for the main thread and the database, compared with the charges in their rows. The scheduler is as
 * fair as its charges are accurate: each should be within a factor of two of the measured cost.
 */
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { openRegistry } from '../../server/models/define-models.js'
import { createLog } from '../../server/observability/log.js'
import { changesPolicies } from '../../server/policy/changes.js'
import { forgotPasswordsPolicies } from '../../server/policy/forgotpasswords.js'
import { type Policy, usualCost } from '../../server/policy/row.js'
import { usersPolicies } from '../../server/policy/users.js'
import { readSettings } from '../../server/process/settings.js'
import { serviceKey } from '../_helpers/service-key.js'
import { createClient } from './clients.js'
import type { Prepared, Segment } from './measure.js'
import { emailOf, formOf, password, usernameOf, type Wire } from './operations.js'
import { sessionSeconds } from './processes.js'
import type { Scenarios } from './segments.js'
import { type Bench, serviceOn } from './world.js'

export const costs: Scenarios = {
  costs: { about: 'what requests cost ÷ what is charged for them', byDefault: false, prepare },
}

/** Requests in progress at a time. */
const connections = 8

/** The charge for a response by the gateway itself. */
const trivial = 0.1

const rows: Record<string, Policy> = { ...usersPolicies, ...forgotPasswordsPolicies, ...changesPolicies }
const charged = (name: string) => rows[name]!.cost ?? usualCost

type Request = (index: number) => Omit<Wire, 'expected' | 'refusable'>

async function prepare(bench: Bench): Promise<Prepared> {
  const { service, world, env, url } = await serviceOn(bench, 1000, 4, { AUTH_LIMIT_FACTOR: '1000' })
  const { holders } = world
  const registry = await openRegistry(readSettings(env), { log: createLog('silent'), connections: 1 })
  await registry.masterKey.load()
  const key = await serviceKey({ registry }, ['tokens.verify', 'tokens.watch', 'users.watch'])
  const { head } = await registry.changeFeed.tail()
  await registry.close()
  const own = (index: number) => holders[index % holders.length]!
  const get = (path: string, token?: string) => ({ method: 'GET', path, ...(token && { token }) }) as const
  const post = (path: string, content: object, token?: string) => {
    const body = Buffer.from(JSON.stringify(content))
    return { method: 'POST', path, contentType: 'application/json', body, ...(token && { token }) } as const
  }
  const introspection = (token: string) => {
    const body = Buffer.from(new URLSearchParams({ token }).toString())
    return { ...post('/introspect', {}, key), contentType: 'application/x-www-form-urlencoded', body } as const
  }
  const pollFrom = (cursor: string) => {
    const kinds = ['CHANGE_KIND_REVOCATIONS', 'CHANGE_KIND_USERS']
    return post(rpc(Changes, 'Poll'), { cursor, kinds }, key)
  }
  const rpc = (parent: { typeName: string }, name: string) => `/${parent.typeName}/${name}`
  const user = (index: number) => usernameOf(1 + (index % 900))
  const answers = [1, 2].map(id => ({ forgotpasswordquestionsid: id, answer: 'errada' }))

  const requests: Record<string, [charge: number, request: Request]> = {
    '/healthz': [trivial, () => get('/healthz')],
    'an unknown path': [trivial, () => get('/nothing')],
    'OPTIONS *': [trivial, () => ({ method: 'OPTIONS' as 'GET', path: '*' })],
    jwks: [charged('getKeys'), () => get('/.well-known/jwks.json')],
    questions: [
      charged('findAllForgotPasswordQuestions'),
      () => get('/forgotpasswords/findallforgotpasswordquestions'),
    ],
    me: [charged('getMe'), index => get('/users/me', own(index).token)],
    'me with a bad token': [charged('getMe'), () => get('/users/me', 'eyJhbGciOiJFUzI1NiJ9.e30.AAAA')],
    events: [charged('listMyEvents'), index => get('/users/me/events', own(index).token)],
    'an export': [charged('exportMe'), index => get('/users/me/export', own(index).token)],
    refresh: [charged('refresh'), index => get('/users/refresh', own(index).token)],
    'a look-up': [charged('getUser'), index => get(`/users/${encodeURIComponent(user(index))}`, world.adminToken)],
    'VerifyToken by Connect': [
      charged('verifyToken'),
      index => post(rpc(Users, 'VerifyToken'), { token: own(index).token }),
    ],
    'introspection of a token': [charged('introspect'), index => introspection(own(index).token)],
    'a poll without changes': [charged('poll'), () => pollFrom(`${head.id}:${head.hash}`)],
    'a poll for a snapshot': [charged('poll'), () => pollFrom('')],
    existsByUsername: [
      charged('existsByUsername'),
      index => post('/users/existsByUsername', { username: user(index) }),
    ],
    'a login': [charged('login'), index => post('/users/login', { username: user(index), password })],
    'a wrong login': [
      charged('login'),
      index => post('/users/login', { username: user(index), password: `x${index}` }),
    ],
    'a sign-up': [
      charged('signUp'),
      index => post('/users/signup', formOf(`custo ${unique} ${index}`, `custo ${unique} ${index}`)),
    ],
    'a sign-up with wrong fields': [charged('signUp'), index => post('/users/signup', { username: `custo ${index}` })],
    'a wrong activation key': [
      charged('activate'),
      index =>
        post('/users/activate', { username: own(index).username, activationkey: randomUUID() }, own(index).token),
    ],
    'wrong answers': [
      charged('loginByUsernameAndAnswers'),
      index => post(`/forgotpasswords/loginbyusernameandanswers?username=${encodeURIComponent(user(index))}`, answers),
    ],
    'a wrong mailed key': [
      charged('loginByUsernameAndKey'),
      index => post('/forgotpasswords/loginbyusernameandkey', { username: user(index), key: 'ABCDEFGH' }),
    ],
    'a request for a key': [
      charged('sendKeyByEmail'),
      index => post('/forgotpasswords/sendkeybyemail', { username: user(index), email: emailOf(1 + (index % 900)) }),
    ],
    'a password update': [
      charged('passwordUpdateByUsername'),
      index =>
        post(
          rpc(ForgotPasswords, 'PasswordUpdateByUsername'),
          { username: usernameOf(1 + ((index * 50 + 7) % 950)), newPassword: password },
          world.adminToken,
        ),
    ],
    'a body of 60 KiB': [
      charged('login') + 7 * 0.3,
      () => post('/users/login', { username: 'x', password: 'x', more: 'ã'.repeat(30_000) }),
    ],
  }

  const segmentOf =
    ([charge, request]: [number, Request]): Segment =>
    async scale => {
      const client = createClient({ endpoint: 'http', port: service.http, connections })
      const end = performance.now() + 2000 * scale
      const before = busyMs(service.pid, url)
      const statuses: Record<string, number> = {}
      const work = async () => {
        while (performance.now() < end) {
          const { status } = await client.send({ ...request(serial++), expected: '', refusable: true })
          statuses[status] = (statuses[status] ?? 0) + 1
        }
      }
      await Promise.all(Array.from({ length: connections }, work))
      client.close()
      const count = Object.values(statuses).reduce((sum, each) => sum + each, 0)
      const cost = (busyMs(service.pid, url) - before) / count
      const said = Object.entries(statuses).map(([status, count]) => `${count} × ${status}`)
      return { figures: { cost, charge, off: Math.max(cost / charge, charge / cost) }, note: said.join(', ') }
    }

  return {
    segments: Object.fromEntries(Object.entries(requests).map(([name, each]) => [name, segmentOf(each)])),
    rows: Object.keys(requests).flatMap(name => [
      { label: name, subject: name, figure: 'cost' },
      { label: '  measured and charged differ by a factor of', subject: name, figure: 'off', goal: { most: 2 } },
    ]),
  }
}

/** Makes the names of each run unique. */
const unique = Date.now()
let serial = 0

/** Milliseconds of CPU time so far of the main thread of a process, and of the sessions of a database. */
function busyMs(pid: number, url: string): number {
  const main = Number(readFileSync(`/proc/${pid}/task/${pid}/schedstat`, 'utf8').split(' ', 1)[0])
  return main / 1e6 + sessionSeconds(url) * 1000
}
