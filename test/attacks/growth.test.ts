/** How the work for a request grows with it: a body takes no longer than its sixteen parts. */
import { readFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import test from 'ava'
import { routes } from '../../gateway/operations.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { createRequest, signUpForm } from '../_helpers/service.js'
import { binaryShapes, jsonShapes, largestBody, pairShapes } from '../_helpers/shapes.js'
import { spawnService } from '../_helpers/spawned.js'

const { typeName } = Users

/** Every path with a body, and an RPC in each encoding. */
const targets = [
  ...routes.flatMap(({ rpc, method, path, revisions }) => {
    if (!rpc || method === 'GET') return []
    const to = { method, path: `${revisions?.[0] ? `/${revisions[0]}` : ''}${path}` }
    return [
      { ...to, type: 'application/x-www-form-urlencoded', shapes: pairShapes('form', rpc.input) },
      { ...to, type: 'application/json', shapes: jsonShapes(rpc.input) },
    ]
  }),
  { type: 'application/json', shapes: jsonShapes(Users.method.signUp.input) },
  { type: 'application/proto', shapes: binaryShapes(Users.method.signUp.input) },
].map(target => ({ method: 'POST', path: `/${typeName}/SignUp`, ...target }))

test('the main thread’s time for a body grows no faster than the body', async t => {
  const service = await spawnService(t, { AUTH_LIMIT_FACTOR: '100000', AUTH_TRUSTED_PROXIES: '' })
  const { text: token } = await createRequest(service.http, 'none')('POST', '/users/signup', { body: signUpForm() })
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  t.teardown(() => agent.destroy())
  const spent = () =>
    Number(readFileSync(`/proc/${service.pid}/task/${service.pid}/schedstat`, 'utf8').split(' ', 1)[0]) / 1e6
  for (const { method, path, type, shapes } of targets) {
    // Those that repeat something.
    for (const { name, make } of shapes.filter(({ name }) => /=x again|names|of 02080a|of \{\}/.test(name))) {
      const least = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY]
      const send = (body: Buffer) =>
        new Promise((resolve, reject) => {
          const headers = { 'content-type': type, authorization: `Bearer ${token}` }
          const sent = request(service.http + path, { method, headers, agent }, answer => {
            answer.resume().once('end', resolve)
          })
          sent.once('error', reject).end(body)
        })
      async function measure(index: number, parts: number) {
        const body = make(largestBody / parts)
        const before = spent()
        for (let part = 0; part < parts; part++) await send(body)
        least[index] = Math.min(least[index]!, spent() - before)
      }
      // Of processor time, the least is what the work needs; the first requests also compile code.
      const isSteep = () => least[1]! > least[0]! + 2
      for (let tries = 0; tries < 10 && (tries === 0 || isSteep()); tries++) {
        await measure(0, 16)
        await measure(1, 1)
      }
      t.false(isSteep(), `${method} ${path} ${type} ${name}: ${least.map(ms => ms.toFixed(1))} ms`)
    }
  }
})
