/** Every operation of the published interface, in both revisions, with every status that it declares. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { routes } from '../../gateway/operations.js'
import { spawnGateway } from '../_helpers/apart.js'
import { refused, statusesOf } from '../_helpers/problem.js'
import {
  type Answer,
  createRequest,
  password,
  type RequestOptions,
  type SignedUp,
  serviceForFile,
  signUpForm,
  teardownOfFile,
} from '../_helpers/service.js'
import { forge, idOf, nowInSeconds } from '../_helpers/tokens.js'

type Result = 'string' | 'empty' | 'user' | 'questions'

/** The tables of endpoints as published: operation, whether marked (K), result of 200, other statuses. */
const published: [operation: string, mark: '' | 'K', result: Result, errors: number[], revisions?: string[]][] = [
  ['GET /forgotpasswords/findallforgotpasswordquestions', '', 'questions', [400]],
  ['POST /forgotpasswords/loginbyusernameandanswers', '', 'string', [400, 404, 422]],
  ['POST /forgotpasswords/loginbyusernameandkey', '', 'string', [400, 422]],
  ['POST /forgotpasswords/passwordupdatebyusername', 'K', 'empty', [400, 403, 404, 500]],
  ['POST /forgotpasswords/saveforgotpasswordquestionsusersanswers', 'K', 'empty', [400, 403, 404, 500]],
  ['POST /forgotpasswords/sendkeybyemail', '', 'empty', [400, 422]],
  ['POST /users/signup', '', 'string', [400, 422]],
  ['POST /users/activate', 'K', 'string', [400, 403, 422, 500]],
  ['POST /users/login', '', 'string', [400, 404]],
  ['GET /users/me', 'K', 'user', [400, 403, 500]],
  ['GET /users/refresh', '', 'string', []],
  ['GET /users/{username}', 'K', 'user', [403, 404, 500]],
  ['POST /users/sendadminkeybyemailpartner', 'K', 'empty', [400, 403, 404, 500], ['1.0.0']],
]

const service = serviceForFile()

/** Sends the operation's request below the base path of a revision. */
type Send = (options?: RequestOptions, segment?: string) => Promise<Answer>
type Scenarios = Record<number, (send: Send) => Promise<Answer>>

let admin: string
let questions: number[]
/** Where the operations are served: by the process of the services, and by a gateway in a separate process. */
const places = { 'one process': service.request, 'a separate gateway': service.request }
const hooks = teardownOfFile()
test.before(async () => {
  const gateway = await spawnGateway(hooks, service.grpc)
  places['one process'] = service.request
  places['a separate gateway'] = createRequest(gateway.http)
  admin = await service.adminToken()
  const list = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  questions = list.json.map(({ id }: { id: number }) => id)
})

async function withAnswers(): Promise<SignedUp> {
  const user = await service.signUp('ROLE_CLIENT')
  for (const forgotpasswordquestionsid of questions.slice(0, 3)) {
    const body = { forgotpasswordquestionsid, answer: `resposta ${forgotpasswordquestionsid}` }
    const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
    const { status } = await service.request('POST', path, { token: user.token, body })
    if (status !== 200) throw new Error(`answer not saved: ${status}`)
  }
  return user
}

const answer = (index: number, text = `resposta ${questions[index]}`) => ({
  forgotpasswordquestionsid: questions[index],
  answer: text,
})

/** A genuine token, an hour after its expiry. */
async function expired(): Promise<string> {
  const { token } = await service.signUp('ROLE_CLIENT')
  const now = nowInSeconds()
  return forge(service, token, { iat: now - 7200, exp: now - 3600, auth_time: now - 7200 })
}

const badToken = async (send: Send) => send({ token: await expired(), query: { username: 'x' } })
const noToken = (send: Send) => send()
/** An unreadable body is refused by every operation that has one. */
const unreadable = (send: Send) => send({ body: '{"username"' })

const scenarios: Record<string, Scenarios> = {
  'GET /forgotpasswords/findallforgotpasswordquestions': {
    200: send => send(),
    400: send => send({}, '?a=%E0'),
  },
  'POST /forgotpasswords/loginbyusernameandanswers': {
    200: async send => {
      const { username } = await withAnswers()
      return send({ query: { username }, body: [answer(0), answer(1)] })
    },
    400: unreadable,
    404: send => send({ query: { username: `ninguém ${randomUUID()}` }, body: [answer(0), answer(1)] }),
    422: async send => {
      const { username } = await withAnswers()
      return send({ query: { username }, body: [answer(0), answer(1, 'outra')] })
    },
  },
  'POST /forgotpasswords/loginbyusernameandkey': {
    200: async send => {
      const { username, token } = await service.signUp('ROLE_CLIENT')
      await service.registry.mailedKeys.replace(idOf(token), 'recovery', 'ABCD2345')
      return send({ query: { username, key: 'ABCD2345' } })
    },
    400: unreadable,
    422: async send => {
      const { username } = await service.signUp('ROLE_CLIENT')
      return send({ query: { username, key: 'ABCD2345' } })
    },
  },
  'POST /forgotpasswords/passwordupdatebyusername': {
    200: async send => {
      const { username, token } = await service.signUp('ROLE_CLIENT')
      return send({ token, query: { username, newPassword: 'tartaruga de couro 7' } })
    },
    400: async send => send({ token: (await service.signUp('ROLE_CLIENT')).token, query: { newPassword: 'short' } }),
    403: noToken,
    404: send => send({ token: admin, query: { username: randomUUID(), newPassword: 'tartaruga de couro 7' } }),
    500: badToken,
  },
  'POST /forgotpasswords/saveforgotpasswordquestionsusersanswers': {
    200: async send => send({ token: (await service.signUp('ROLE_CLIENT')).token, body: answer(0) }),
    400: async send => send({ token: (await service.signUp('ROLE_CLIENT')).token }),
    403: noToken,
    404: async send => {
      const { token } = await service.signUp('ROLE_CLIENT')
      return send({ token, body: { forgotpasswordquestionsid: 999_999, answer: 'azul' } })
    },
    500: badToken,
  },
  'POST /forgotpasswords/sendkeybyemail': {
    200: async send => {
      const { username } = await service.signUp('ROLE_CLIENT', { email: 'ana@example.org' })
      return send({ query: { username, email: 'ana@example.org' } })
    },
    400: unreadable,
    422: send => send({ query: { username: 'ana', email: 'not an address' } }),
  },
  'POST /users/signup': {
    200: send => send({ body: signUpForm() }),
    400: unreadable,
    422: send => send({ body: signUpForm({ city: undefined }) }),
  },
  'POST /users/activate': {
    200: async send => {
      const { activationkey } = await service.organization()
      const { username, token } = await service.signUp('ROLE_INSTITUTION')
      return send({ token, query: { username, activationkey } })
    },
    400: async send => {
      const { username, token } = await service.signUp('ROLE_CLIENT')
      return send({ token, query: { username } })
    },
    403: noToken,
    422: async send => {
      const { username, token } = await service.signUp('ROLE_CLIENT')
      return send({ token, query: { username, activationkey: randomUUID() } })
    },
    500: badToken,
  },
  'POST /users/login': {
    200: async send => send({ query: { username: (await service.signUp('ROLE_CLIENT')).username, password } }),
    400: send => send({ query: { username: 'ana' } }),
    404: async send => {
      const { username } = await service.signUp('ROLE_CLIENT')
      return send({ query: { username, password: `${password}?` } })
    },
  },
  'GET /users/me': {
    200: async send => send({ token: (await service.signUp('ROLE_CLIENT')).token }),
    400: async send => send({ token: (await service.signUp('ROLE_CLIENT')).token }, '?a=%E0'),
    403: noToken,
    500: badToken,
  },
  'GET /users/refresh': {
    200: async send => send({ token: (await service.signUp('ROLE_CLIENT')).token }),
  },
  'GET /users/{username}': {
    200: async send => {
      const { username, token } = await service.signUp('ROLE_CLIENT')
      return send({ token, query: { username } }, username)
    },
    403: async send => send({}, (await service.signUp('ROLE_CLIENT')).username),
    404: send => send({ token: admin }, randomUUID()),
    500: async send => send({ token: await expired() }, 'ana'),
  },
  'POST /users/sendadminkeybyemailpartner': {
    200: async send => {
      const { email: emailpartner } = await service.organization()
      const { username, token } = await service.signUp('ROLE_INSTITUTION')
      return send({ token, query: { username, emailpartner } })
    },
    400: async send => {
      const { username, token } = await service.signUp('ROLE_INSTITUTION')
      return send({ token, query: { username } })
    },
    403: noToken,
    404: async send => {
      const { username, token } = await service.signUp('ROLE_INSTITUTION')
      return send({ token, query: { username, emailpartner: `${randomUUID()}@example.org` } })
    },
    500: badToken,
  },
}

test('every published status has a scenario, and no other status has one', t => {
  const written = Object.entries(scenarios).map(([name, rows]) => [name, Object.keys(rows).map(Number)])
  t.deepEqual(
    written,
    published.map(([name, , , errors]) => [name, [200, ...errors]]),
  )
})

test('an operation’s row lists every published status, and beyond those only the statuses of limits and failures', t => {
  for (const [operation, mark, , errors, only] of published) {
    const [method, path] = operation.split(' ')
    const row = routes.find(route => route.method === method && route.path === path)!
    t.is(row.protected ?? false, mark === 'K' || path === '/users/refresh', operation)
    t.deepEqual(row.revisions, only, operation)
    const statuses = statusesOf(row)
    for (const status of errors) t.true(statuses.has(status), `${operation} ${status}`)
    const anywhere = new Set([200, 400, 408, 413, 414, 415, 417, 429, 431, 503, ...errors])
    // It declares none. What changes something is refused to pages of other sites (403), and taken names to other hosts (421).
    const foreign = method !== 'GET' && !errors.includes(403) ? [403] : []
    const more = path === '/users/refresh' ? [403, 500] : /exists|signup/.test(path!) ? [...foreign, 421] : foreign
    t.deepEqual(
      [...statuses].filter(status => !anywhere.has(status)),
      more,
      operation,
    )
  }
})

const results: Record<Result, (answer: Answer) => boolean> = {
  string: ({ headers, text }) => headers.get('content-type') === 'text/plain; charset=utf-8' && text !== '',
  empty: ({ headers, text }) => headers.get('content-type') === null && text === '',
  user: ({ headers, json }) => headers.get('content-type') === 'application/json' && Number.isInteger(json.id),
  questions: ({ headers, json }) => headers.get('content-type') === 'application/json' && Array.isArray(json),
}

for (const [operation, mark, result, errors, only = ['1.0.0', '1.0.2']] of published) {
  const [method = '', path = ''] = operation.split(' ')
  for (const [base, revision] of [
    ['', '1.0.2'],
    ['/1.0.0', '1.0.0'],
    ['/1.0.2', '1.0.2'],
  ] as const) {
    const sendTo =
      (place: keyof typeof places): Send =>
      (options, segment) => {
        const target = segment?.startsWith('?')
          ? path + segment
          : path.replace('{username}', encodeURIComponent(segment ?? 'x'))
        return places[place](method, base + target, options)
      }
    const send = sendTo('one process')
    const name = `${method} ${base}${path}`
    if (!only.includes(revision)) {
      test(`${name} is answered with 404, as revision ${revision} has no such operation`, async t => {
        refused(t, await send({ token: admin, query: { username: 'ana' } }), 404, 'NOT_FOUND')
      })
      continue
    }
    for (const status of [200, ...errors]) {
      test(`${name} can be answered with ${status}`, async t => {
        for (const place of Object.keys(places) as (keyof typeof places)[]) {
          const given = await scenarios[operation]![status]!(sendTo(place))
          if (status !== 200) {
            refused(t, given, status)
            continue
          }
          t.is(given.status, 200, `${place}: ${given.text}`)
          t.true(results[result](given), given.text)
        }
      })
    }
    const isProtected = mark === 'K' || path === '/users/refresh'
    test(`${name} ${isProtected ? 'is denied' : 'may be called'} without a token`, async t => {
      const { status, json } = await send()
      if (isProtected) t.is(`${status} ${json.reason}`, '403 ACCESS_DENIED')
      else t.not(status, 403)
    })
    if (!isProtected) {
      test(`${name} ignores an invalid token`, async t => {
        const { status } = await send({ token: 'bad' })
        t.not(status, 403)
        t.not(status, 500)
      })
    }
  }
}
