/** The OpenAPI documents, as the gateway serves them. */
import test from 'ava'
import { refused } from '../_helpers/problem.js'
import { serviceForFile } from '../_helpers/service.js'

const origin = 'https://app.example.org'
const service = serviceForFile(() => ({ AUTH_CORS_ORIGINS: origin }))

for (const revision of ['1.0.0', '1.0.2']) {
  const path = `/openapi/${revision}.json`

  test(`${path} is public, cached for 5 minutes, and for pages of permitted origins`, async t => {
    const { status, headers, json } = await service.request('GET', path, { headers: { origin } })
    t.is(status, 200)
    t.is(headers.get('content-type'), 'application/json')
    t.is(headers.get('cache-control'), 'public, max-age=300')
    t.is(headers.get('access-control-allow-origin'), origin)
    t.is(headers.get('vary'), 'origin, accept-encoding')
    t.is(json.openapi, '3.1.0')
    t.is(json.info.version, revision)
    const head = await service.request('HEAD', path)
    t.is(head.status, 200)
    t.is(head.text, '')
    t.is(head.headers.get('etag'), headers.get('etag'))
  })

  test(`${path} is not sent again to a client that has it cached`, async t => {
    const etag = (await service.request('GET', path)).headers.get('etag')!
    t.regex(etag, /^"[\w-]{22}"$/)
    for (const known of [etag, `W/${etag}`, `"other", ${etag}`, '*']) {
      for (const method of ['GET', 'HEAD']) {
        const { status, headers, text } = await service.request(method, path, { headers: { 'if-none-match': known } })
        t.is(`${status} ${text}`, '304 ')
        t.is(headers.get('etag'), etag)
        t.is(headers.get('content-length'), null)
      }
    }
    t.is((await service.request('GET', path, { headers: { 'if-none-match': '"other"' } })).status, 200)
  })
}

test('other documents do not exist, and other methods are refused', async t => {
  refused(t, await service.request('GET', '/openapi/1.0.1.json'), 404, 'NOT_FOUND')
  refused(t, await service.request('GET', '/1.0.2/openapi/1.0.2.json'), 404, 'NOT_FOUND')
  refused(t, await service.request('POST', '/openapi/1.0.2.json'), 405, 'METHOD_NOT_ALLOWED')
})

// biome-ignore lint/suspicious/noExplicitAny: a JSON document
const documentOf = async (revision: string): Promise<any> =>
  (await service.request('GET', `/openapi/${revision}.json`)).json

test('the documents differ where the revisions differ', async t => {
  const [old, current] = [await documentOf('1.0.0'), await documentOf('1.0.2')]
  t.deepEqual(
    Object.keys(old.paths).filter(path => !current.paths[path]),
    ['/users/sendadminkeybyemailpartner'],
  )
  t.deepEqual(
    Object.keys(current.paths).filter(path => !old.paths[path]),
    [],
  )
  const { PartnerOrganization: before, ProviderActivationKey: plain } = old.components.schemas
  const { PartnerOrganization: after, ProviderActivationKey: uuid } = current.components.schemas
  t.deepEqual([before.properties.email?.type, before.properties.activationkey], ['string', undefined])
  t.deepEqual([after.properties.email, after.properties.activationkey?.format], [undefined, 'uuid'])
  t.deepEqual([plain.properties.activationkey.format, uuid.properties.activationkey.format], [undefined, 'uuid'])
})

test('the documents introduce the interface to developers of clients, without notes of the definitions', async t => {
  for (const revision of ['1.0.0', '1.0.2']) {
    const { info, tags, ...rest } = await documentOf(revision)
    for (const part of [
      `URL=http://127.0.0.1:8080/${revision}`,
      '$URL/users/signup',
      '$URL/users/activate',
      '$URL/users/login',
      'Authorization: Bearer',
      'RFC 9457',
      'Accept-Language',
    ])
      t.true(info.description.includes(part), part)
    for (const { name, description } of tags) t.regex(description, /^[^.]+\.$/, name)
    t.false(/paragraph|\bcomments?\b|IDEMPOTENT|ErrorInfo/.test(JSON.stringify({ info, tags, rest })))
  }
})

test('an operation has its parameters in query, form and JSON, its callers, limits and refusals', async t => {
  const { paths, components } = await documentOf('1.0.2')
  const { post: login } = paths['/users/login']
  t.deepEqual(
    login.parameters.map(({ name, in: place }: Record<string, string>) => `${place} ${name}`),
    ['query username', 'query password'],
  )
  t.true(login.requestBody.required)
  t.deepEqual(Object.keys(login.requestBody.content), ['application/json', 'application/x-www-form-urlencoded'])
  for (const { schema } of Object.values<{ schema: { properties: object; required: string[] } }>(
    login.requestBody.content,
  )) {
    t.deepEqual(Object.keys(schema.properties), ['username', 'password'])
    t.deepEqual(schema.required, ['username', 'password'])
  }
  t.deepEqual(Object.keys(login.responses[200].content), ['text/plain', 'application/json'])
  t.deepEqual(login.security, [])
  const reasonsOf = ({ $ref }: { $ref: string }) => {
    const { schema, examples } = components.responses[$ref.split('/').at(-1)!].content['application/problem+json']
    t.deepEqual(schema, { $ref: '#/components/schemas/Problem' })
    return Object.keys(examples)
  }
  t.deepEqual(reasonsOf(login.responses[404]), ['INVALID_CREDENTIALS'])
  t.deepEqual(reasonsOf(login.responses[429]), ['TOO_MANY_ATTEMPTS'])
  t.deepEqual(paths['/users/{username}'].get.security, [{ token: [] }, { serviceKey: ['users.read'] }])
  t.regex(paths['/users/{username}'].get.description, /Callers: the user itself; .*ROLE_ADMIN for any user;/)
  t.regex(paths['/users/login'].post.description, /Limits: failed sign-ins of an account \(10 in 15 minutes\); /)
  t.regex(paths['/users/me/export'].get.description, /Limits: exports of an account \(5 a day\)\./)
  t.regex(
    paths['/users/signup'].post.description,
    /Limits: sign-ups of a client address \(600 at once, then 5 a minute\); /,
  )
  t.deepEqual(components.schemas.SignUpRequest.required, [
    'username',
    'nickname',
    'password',
    'state',
    'city',
    'termsofusage',
    'roles',
  ])
  for (const path of ['/users/me/export', '/introspect', '/.well-known/jwks.json'])
    for (const operation of Object.values<{ servers: object }>(paths[path]))
      t.deepEqual(operation.servers, [{ url: '/' }])
})

test('each reason has a status, a meaning, a remedy, and a gRPC code if services refuse with it', async t => {
  const { 'x-reasons': reasons, components } = await documentOf('1.0.2')
  t.deepEqual(Object.keys(reasons), components.schemas.Reason.enum)
  t.true(components.schemas.Reason.enum.length > 25)
  for (const [name, { status, code, meaning, remedy }] of Object.entries<Record<string, string>>(reasons)) {
    t.true(Number(status) >= 400, name)
    for (const text of [meaning, remedy]) t.regex(text!, /^[A-Z].*\.$/, name)
    const isOfGateway =
      /^(NOT_FOUND|METHOD_NOT_ALLOWED|REQUEST_TIMEOUT|\w+_TOO_L(ARGE|ONG)|UNSUPPORTED_MEDIA_TYPE|EXPECTATION_FAILED)$/.test(
        name,
      )
    t.is(code === undefined, isOfGateway, name)
  }
  t.like(reasons.INVALID_CREDENTIALS, { status: 404, code: 'UNAUTHENTICATED' })
})
