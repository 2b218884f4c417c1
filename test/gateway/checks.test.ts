import test from 'ava'
import { refused } from '../_helpers/problem.js'
import { type RequestOptions, serviceForFile } from '../_helpers/service.js'
import { forge, nowInSeconds } from '../_helpers/tokens.js'

const service = serviceForFile()

/** The callers: an inactive ROLE_INSTITUTION, a ROLE_CLIENT and an administrator. */
type Caller = 'self' | 'other' | 'admin'

/** Requests with several faults, and the status and reason of the response; `{other}` is the name of a caller. */
const rows: [operation: string, faults: string, expected: string, caller: Caller, rest?: object][] = []
const add = (operation: string, ...all: [faults: string, expected: string, caller: Caller, rest?: object][]) =>
  void rows.push(...all.map(row => [operation, ...row] as (typeof rows)[number]))

add('GET /users/me?a=%E0', ['unreadable query', '400 MALFORMED_REQUEST', 'self'])
add('GET /users/refresh?a=%E0', ['unreadable query', '400 MALFORMED_REQUEST', 'self'])
add('GET /users/ana', ['not its own, unknown', '403 ACCESS_DENIED', 'self'], ['unknown', '404 USER_NOT_FOUND', 'admin'])
add(
  'POST /users/activate',
  ['not its own, key missing', '403 ACCESS_DENIED', 'self', { query: { username: '{other}' } }],
  ['key missing, unknown user', '400 MISSING_PARAMETER', 'admin', { query: { username: 'x' } }],
  ['unknown user and key', '422 ACTIVATION_REFUSED', 'admin', { query: { username: 'nobody', activationkey: 'x' } }],
  ['no JSON', '400 MALFORMED_REQUEST', 'self', { body: '{' }],
)
add(
  'POST /forgotpasswords/passwordupdatebyusername',
  ['not its own, too short', '403 ACCESS_DENIED', 'self', { query: { username: '{other}', newPassword: 'x' } }],
  ['not its own, unknown', '403 ACCESS_DENIED', 'self', { query: { username: 'nobody' } }],
  ['too short, unknown user', '400 INVALID_PASSWORD', 'admin', { query: { username: 'nobody', newPassword: 'x' } }],
  ['unknown', '404 USER_NOT_FOUND', 'admin', { query: { username: 'x', newPassword: 'papa-capim 77' } }],
)
add(
  'POST /forgotpasswords/saveforgotpasswordquestionsusersanswers',
  ['not its own, answer empty', '403 ACCESS_DENIED', 'self', { body: { usersid: 1, answer: '' } }],
  ['answer empty', '400 MISSING_PARAMETER', 'self', { body: { forgotpasswordquestionsid: 999_999, answer: '' } }],
  ['no answer', '400 MISSING_PARAMETER', 'admin', { body: { usersid: 2_000_000_000, forgotpasswordquestionsid: 1 } }],
  ['a list', '400 MALFORMED_REQUEST', 'self', { body: [] }],
)
add(
  'POST /1.0.0/users/sendadminkeybyemailpartner',
  ['not its own, address missing', '403 ACCESS_DENIED', 'self', { query: { username: '{other}' } }],
  ['wrong role, address missing', '403 ACCESS_DENIED', 'other', { query: { username: '{other}' } }],
  ['address missing, unknown user', '400 MISSING_PARAMETER', 'admin', { query: { username: 'x' } }],
  ['unknown user and address', '404 USER_NOT_FOUND', 'admin', { query: { username: 'x', emailpartner: 'x' } }],
  [
    'unknown address',
    '404 ORGANIZATION_EMAIL_NOT_FOUND',
    'self',
    { query: { username: '{self}', emailpartner: 'x@example.org' } },
  ],
)

const callers = {} as Record<Caller, { readonly username: string; readonly token: string }>
test.before(async () => {
  callers.self = await service.signUp('ROLE_INSTITUTION')
  callers.other = await service.signUp('ROLE_CLIENT')
  callers.admin = { username: 'admin', token: await service.adminToken() }
})

for (const [operation, faults, expected, caller, rest = {}] of rows) {
  const [method = '', path = ''] = operation.split(' ')
  const [status = '', reason] = expected.split(' ')
  test(`${operation} with ${faults}: ${status}; without a token 403, with a bad one 500`, async t => {
    const named = JSON.stringify(rest).replace(/\{(self|other)\}/g, (_, name: Caller) => callers[name].username)
    const send = (more: RequestOptions) => service.request(method, path, { ...JSON.parse(named), ...more })
    refused(t, await send({ token: callers[caller].token }), Number(status), reason)
    refused(t, await send({}), 403, 'ACCESS_DENIED')
    refused(t, await send({ headers: { authorization: 'Basic YTpi' } }), 403, 'ACCESS_DENIED')
    refused(t, await send({ token: 'malformed' }), 500, 'INVALID_TOKEN')
    const now = nowInSeconds()
    const expired = await forge(service, callers.self.token, { iat: now - 7200, exp: now - 3600 })
    refused(t, await send({ token: expired }), 500, 'INVALID_TOKEN')
  })
}

test('a caller without permission is refused before the media type of the body is checked', async t => {
  const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
  const send = (token?: string) =>
    service.request('POST', path, { ...(token && { token }), body: 'x', headers: { 'content-type': 'text/plain' } })
  refused(t, await send(), 403, 'ACCESS_DENIED')
  refused(t, await send('malformed'), 500, 'INVALID_TOKEN')
  refused(t, await send(callers.self.token), 415, 'UNSUPPORTED_MEDIA_TYPE')
})
