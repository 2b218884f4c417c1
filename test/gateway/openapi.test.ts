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
    t.is(json.openapi, '3.1.0')
    t.is(json.info.version, revision)
    const head = await service.request('HEAD', path)
    t.is(head.status, 200)
    t.is(head.text, '')
    t.is(head.headers.get('etag'), headers.get('etag'))
  })

  test(`${path} is not sent again to a client that has it`, async t => {
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
