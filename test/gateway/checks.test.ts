/** The order of checks on protected operations: of several faults, the response has the first in that order. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { refused } from '../_helpers/problem.js'
import { type RequestOptions, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { forge, nowInSeconds } from '../_helpers/tokens.js'

const service = serviceForFile()

interface Scene {
  /** The caller; by default an inactive ROLE_INSTITUTION. */
  readonly self: SignedUp
  readonly other: SignedUp
  readonly admin: string
}

/** A request with several faults, and the status and reason of the response. */
type Row = [faults: string, status: number, reason: string, request: (scene: Scene) => RequestOptions, path?: string]

const operations: Record<string, Row[]> = {
  'GET /users/me': [
    ['unreadable query', 400, 'MALFORMED_REQUEST', ({ self }) => ({ token: self.token }), '/users/me?a=%E0'],
  ],
  'GET /users/refresh': [
    ['unreadable query', 400, 'MALFORMED_REQUEST', ({ self }) => ({ token: self.token }), '/users/refresh?a=%E0'],
  ],
  'GET /users/ana': [
    ['not its own, unknown', 403, 'ACCESS_DENIED', ({ self }) => ({ token: self.token })],
    ['unknown', 404, 'USER_NOT_FOUND', ({ admin }) => ({ token: admin })],
  ],
  'POST /users/activate': [
    [
      'not its own, key missing',
      403,
      'ACCESS_DENIED',
      ({ self, other }) => ({ token: self.token, query: { username: other.username } }),
    ],
    [
      'key missing, unknown user',
      400,
      'MISSING_PARAMETER',
      ({ admin }) => ({ token: admin, query: { username: 'x' } }),
    ],
    [
      'unknown user, unknown key',
      422,
      'ACTIVATION_REFUSED',
      ({ admin }) => ({ token: admin, query: { username: randomUUID(), activationkey: 'x' } }),
    ],
    ['no JSON', 400, 'MALFORMED_REQUEST', ({ self }) => ({ token: self.token, body: '{' })],
  ],
  'POST /forgotpasswords/passwordupdatebyusername': [
    [
      'not its own, password too short',
      403,
      'ACCESS_DENIED',
      ({ self, other }) => ({ token: self.token, query: { username: other.username, newPassword: 'x' } }),
    ],
    [
      'not its own, unknown',
      403,
      'ACCESS_DENIED',
      ({ self }) => ({ token: self.token, query: { username: randomUUID() } }),
    ],
    [
      'password too short, unknown user',
      400,
      'INVALID_PASSWORD',
      ({ admin }) => ({ token: admin, query: { username: randomUUID(), newPassword: 'x' } }),
    ],
    [
      'unknown',
      404,
      'USER_NOT_FOUND',
      ({ admin }) => ({ token: admin, query: { username: 'x', newPassword: 'papa-capim 77' } }),
    ],
  ],
  'POST /forgotpasswords/saveforgotpasswordquestionsusersanswers': [
    [
      'not its own, answer empty',
      403,
      'ACCESS_DENIED',
      ({ self }) => ({ token: self.token, body: { usersid: 1, answer: '' } }),
    ],
    [
      'answer empty, unknown question',
      400,
      'MISSING_PARAMETER',
      ({ self }) => ({ token: self.token, body: { forgotpasswordquestionsid: 999_999, answer: '' } }),
    ],
    [
      'answer empty, unknown user',
      400,
      'MISSING_PARAMETER',
      ({ admin }) => ({ token: admin, body: { usersid: 2_000_000_000, forgotpasswordquestionsid: 1 } }),
    ],
    ['a list', 400, 'MALFORMED_REQUEST', ({ self }) => ({ token: self.token, body: [] })],
  ],
  'POST /1.0.0/users/sendadminkeybyemailpartner': [
    [
      'not its own, address missing',
      403,
      'ACCESS_DENIED',
      ({ self, other }) => ({ token: self.token, query: { username: other.username } }),
    ],
    [
      'wrong role, address missing',
      403,
      'ACCESS_DENIED',
      ({ other }) => ({ token: other.token, query: { username: other.username } }),
    ],
    [
      'address missing, unknown user',
      400,
      'MISSING_PARAMETER',
      ({ admin }) => ({ token: admin, query: { username: 'x' } }),
    ],
    [
      'unknown user, unknown address',
      404,
      'USER_NOT_FOUND',
      ({ admin }) => ({ token: admin, query: { username: 'x', emailpartner: 'x' } }),
    ],
    [
      'unknown address',
      404,
      'ORGANIZATION_EMAIL_NOT_FOUND',
      ({ self }) => ({ token: self.token, query: { username: self.username, emailpartner: 'x@example.org' } }),
    ],
  ],
}

let scene: Scene
test.before(async () => {
  scene = {
    self: await service.signUp('ROLE_INSTITUTION'),
    other: await service.signUp('ROLE_CLIENT'),
    admin: await service.adminToken(),
  }
})

for (const [operation, rows] of Object.entries(operations)) {
  const [method = '', path = ''] = operation.split(' ')
  for (const [faults, status, reason, request, target] of rows) {
    test(`${operation} with ${faults}: ${status}; without a token 403, with a bad one 500`, async t => {
      const options = request(scene)
      const { token, ...rest } = options
      const send = (more: RequestOptions) => service.request(method, target ?? path, { ...rest, ...more })
      refused(t, await send({ token: token ?? '' }), status, reason)
      refused(t, await send({}), 403, 'ACCESS_DENIED')
      refused(t, await send({ headers: { authorization: 'Basic YTpi' } }), 403, 'ACCESS_DENIED')
      refused(t, await send({ token: 'malformed' }), 500, 'INVALID_TOKEN')
      const now = nowInSeconds()
      const expired = await forge(service, scene.self.token, { iat: now - 7200, exp: now - 3600 })
      refused(t, await send({ token: expired }), 500, 'INVALID_TOKEN')
    })
  }
}

test('a caller without permission is refused before the media type of the body is checked', async t => {
  const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
  const send = (token?: string) =>
    service.request('POST', path, { ...(token && { token }), body: 'x', headers: { 'content-type': 'text/plain' } })
  refused(t, await send(), 403, 'ACCESS_DENIED')
  refused(t, await send('malformed'), 500, 'INVALID_TOKEN')
  refused(t, await send(scene.self.token), 415, 'UNSUPPORTED_MEDIA_TYPE')
})
