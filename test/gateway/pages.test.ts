/** The start page, the reference, the OpenAPI documents and the files that belong to them, as the gateway serves them. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import test from 'ava'
import { refused } from '../_helpers/problem.js'
import { serviceForFile, startTestService } from '../_helpers/service.js'

const origin = 'https://app.example.org'
const service = serviceForFile(() => ({ AUTH_CORS_ORIGINS: origin }))
const get = (path: string, headers: Record<string, string> = {}) => service.request('GET', path, { headers })

const references = ['1.0.0', '1.0.2'].flatMap(revision => ['en', 'pt-BR'].map(locale => `/docs/${revision}/${locale}`))

test('the start page leads to the reference, documents, definitions, keys and health, all of which answer', async t => {
  const { status, headers, text } = await get('/')
  t.is(status, 200)
  t.is(headers.get('content-type'), 'text/html; charset=utf-8')
  const links = [...text.matchAll(/href="\.(\/[^"]*)"/g)].map(([, path = '']) => path)
  for (const path of [
    ...references,
    '/openapi/1.0.0.json',
    '/openapi/1.0.2.json',
    '/proto/auth/v1/users.proto',
    '/.well-known/jwks.json',
    '/healthz',
    '/readyz',
  ])
    t.true(links.includes(path), path)
  for (const path of links) t.is((await get(path)).status, 200, path)
  t.regex((await get('/proto/auth/v1/users.proto')).text, /^service Users \{$/m)
})

test('start page and /docs use the language that the client prefers, and other pages have a fixed one', async t => {
  for (const [accepted, locale] of [
    ['', 'en'],
    ['fr, en;q=0.1, pt;q=0.5', 'pt-BR'],
  ] as const) {
    for (const path of ['/', '/docs']) {
      const { headers, text } = await get(path, { 'accept-language': accepted })
      t.true(text.includes(`<html lang="${locale}">`), `${path} for ${accepted}`)
      t.is(headers.get('content-language'), locale)
      t.regex(headers.get('vary') ?? '', /accept-language/)
    }
  }
  for (const path of references) {
    const { text } = await get(path, { 'accept-language': path.endsWith('en') ? 'pt-BR' : 'en' })
    t.true(text.includes(`<html lang="${path.split('/')[3]}">`), path)
  }
  // At another depth, relative links are others.
  t.is((await get('/docs')).text.replaceAll('"./', '"../../'), (await get('/docs/1.0.2/en')).text)
})

test('no page has an inline script or style or refers to another host, and its policy allows only its own files', async t => {
  for (const path of ['/', '/docs', ...references]) {
    const { headers, text } = await get(path)
    const policy = headers.get('content-security-policy') ?? ''
    t.regex(policy, /^default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'/)
    t.notRegex(policy, /unsafe|\*|https?:/)
    t.regex(policy, /frame-ancestors 'none'/)
    t.notRegex(text, /<style|\sstyle=|<script(?! type="module" src="\.)|\son\w+="/)
    t.notRegex(text, /(?:src|href|action)="(?![#.]|data:,)/)
  }
  // Other files load no resources.
  for (const path of ['/docs/reference.js', '/openapi/1.0.2.json', '/proto/auth/v1/users.proto'])
    t.regex((await get(path)).headers.get('content-security-policy') ?? '', /^default-src 'none'; base-uri/, path)
  // What it receives is text, and gone with the page.
  const { text } = await get('/docs/reference.js')
  t.notRegex(text, /innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Storage|indexedDB|\.cookie/)
})

test('the reference contains every operation and every reason of the OpenAPI document', async t => {
  for (const revision of ['1.0.0', '1.0.2']) {
    const { paths, 'x-reasons': reasons } = (await get(`/openapi/${revision}.json`)).json
    for (const locale of ['en', 'pt-BR']) {
      const { text } = await get(`/docs/${revision}/${locale}`)
      const plain = text.replaceAll('<wbr>', '')
      for (const [path, operations] of Object.entries<object>(paths)) {
        t.true(plain.includes(`<code>${path}</code>`), path)
        for (const { operationId } of Object.values(operations)) t.true(text.includes(`<article id="${operationId}">`))
      }
      t.true(Object.keys(reasons).length > 20)
      for (const reason of Object.keys(reasons)) {
        const remedy = locale === 'en' ? 'What to do:' : 'O que fazer:'
        t.regex(text, new RegExp(`<dt id="reason-${reason}">[^]*?${remedy} \\S`), reason)
      }
    }
  }
  t.true((await get('/docs/1.0.0/en')).text.includes('sendadminkeybyemailpartner'))
  t.false((await get('/docs/1.0.2/en')).text.includes('sendadminkeybyemailpartner'))
})

/** The text of HTML. */
const textOf = (page: string) =>
  Object.entries({ '&lt;': '<', '&gt;': '>', '&quot;': '"', '&#39;': "'", '&amp;': '&' }).reduce(
    (text, [entity, character]) => text.replaceAll(entity, character),
    page.replace(/<[^>]*>/g, ''),
  )

/** What a reader finds before the first operation, and its commands. */
async function introductionOf(path: string) {
  const introduction = /<main.*?(?=<article)/s.exec((await get(path)).text)?.[0] ?? ''
  const commands = [...introduction.matchAll(/<pre class="curl">(.*?)<\/pre>/gs)].map(([, text = '']) => textOf(text))
  return { introduction, commands }
}

test('the commands with which the reference begins sign up, activate and log in, and show an error', async t => {
  const { activationkey } = await service.organization()
  const reference = await introductionOf('/docs/1.0.2/en')
  const script = reference.commands.join('\necho\n').replace('http://127.0.0.1:8080', service.http)
  const env = { PATH: process.env.PATH, KEY: activationkey }
  const { stdout } = await promisify(execFile)('sh', ['-ec', script], { env })
  const [username, me = '', error = ''] = stdout.split('\n').filter(Boolean)
  t.is(username, '(11)98765-4321')
  t.like(JSON.parse(me), { username: '(11)98765-4321', active: 1 })
  const { requestId, ...problem } = JSON.parse(error)
  t.like(problem, { status: 404, reason: 'INVALID_CREDENTIALS', detail: 'Nome de usuário ou senha inválidos.' })
  for (const { introduction } of [reference, await introductionOf('/docs/1.0.2/pt-BR')]) {
    const [, shown = ''] = /<pre>(\{.*?)<\/pre>/s.exec(introduction) ?? []
    t.deepEqual({ ...JSON.parse(textOf(shown)), requestId }, { ...problem, requestId }, 'the error that the page shows')
  }
})

test('the reference begins with a first call, tokens, errors, languages and revisions, in its language', async t => {
  const { commands } = await introductionOf('/docs/1.0.2/en')
  for (const path of references) {
    const [, , revision = '', locale] = path.split('/')
    const { introduction, commands: own } = await introductionOf(path)
    for (const part of ['Authorization: Bearer', 'RFC 9457', 'reason', 'Retry-After', 'Accept-Language', '/1.0.0'])
      t.true(introduction.includes(part), `${part} in ${path}`)
    const expected = commands.map(each => each.replace('/1.0.2', `/${revision}`))
    t.deepEqual(own, expected)
    t.false(/\bproto\b|\bRPC|paragraph|IDEMPOTENT|ErrorInfo/.test(introduction), path)
    t.false(introduction.includes('lang="en"'), path)
    t.true(introduction.includes(locale === 'en' ? '<h2>Errors</h2>' : '<h2>Erros</h2>'))
  }
})

test('operations are summed up, and reasons explained, in the language of the page', async t => {
  for (const revision of ['1.0.0', '1.0.2']) {
    const { paths, tags, 'x-reasons': reasons } = (await get(`/openapi/${revision}.json`)).json
    const operations: { operationId: string; summary: string }[] = Object.values<object>(paths).flatMap(Object.values)
    const english = (await get(`/docs/${revision}/en`)).text
    const portuguese = (await get(`/docs/${revision}/pt-BR`)).text
    for (const { operationId, summary: inMarkdown } of operations) {
      const summary = inMarkdown.replaceAll('`', '')
      const summaryIn = (page: string) => {
        const article = page.slice(page.indexOf(`<article id="${operationId}">`))
        return textOf(/<\/h3>\n<p>(.*?)\.<\/p>/.exec(article)?.[1] ?? '')
      }
      t.is(summaryIn(english), summary)
      t.not(summaryIn(portuguese), '', operationId)
      t.not(summaryIn(portuguese), summary)
      t.false(textOf(portuguese).includes(`${summary}.`), `${operationId} has no second summary, in English`)
    }
    for (const { description } of tags) {
      t.true(textOf(english).includes(description))
      t.false(textOf(portuguese).includes(description), description)
    }
    for (const [reason, { meaning, remedy }] of Object.entries<{ meaning: string; remedy: string }>(reasons)) {
      const itemIn = (page: string) => textOf(page.split(`<dt id="reason-${reason}">`)[1]!.split('</dd>')[0]!)
      for (const text of [meaning, remedy].map(each => each.replaceAll('`', ''))) {
        t.true(itemIn(english).includes(text))
        t.false(itemIn(portuguese).includes(text), text)
      }
    }
  }
})

test('a page in Portuguese has no text in English, and links to the details there', async t => {
  for (const revision of ['1.0.0', '1.0.2']) {
    const { text, json } = await get(`/openapi/${revision}.json`)
    const [english, portuguese] = [await get(`/docs/${revision}/en`), await get(`/docs/${revision}/pt-BR`)]
    const [shown, other] = [textOf(english.text), textOf(portuguese.text)]
    const sentences = [...text.matchAll(/"(?:description|summary)":"((?:[^"\\]|\\.)*)"/g)]
      .flatMap(([, each = '']) => each.replaceAll('`', '').split(/(?<=\.)(?:\\n)* */))
      .filter(each => each.split(' ').length > 3)
    t.true(sentences.filter(each => shown.includes(each)).length > 100)
    t.deepEqual(
      sentences.filter(each => other.includes(each)),
      [],
    )
    t.false(/ lang="en"/.test(portuguese.text.replace(/<a [^>]*>/g, '')))
    const ids = Object.values<object>(json.paths).flatMap(path => Object.values(path).map(each => each.operationId))
    const links = [...portuguese.text.matchAll(/href="\.\.\/\.\.\/docs\/[\d.]+\/en#([\w-]+)"/g)].map(
      ([, id = '']) => id,
    )
    t.true(links.length > 20)
    for (const id of links) t.true(english.text.includes(`id="${id}"`), id)
    t.true(links.filter(id => ids.includes(id)).length > 15)
  }
})

test('descriptions name paths and fields as HTTP has them, and callers once', async t => {
  for (const revision of ['1.0.0', '1.0.2']) {
    const { text, json } = await get(`/openapi/${revision}.json`)
    const descriptions = [...text.matchAll(/"(?:description|summary)":("(?:[^"\\]|\\.)*")/g)]
      .map(([, each]) => each!)
      .slice(1)
    t.true(descriptions.length > 100)
    t.deepEqual(
      descriptions.filter(each =>
        /(?<![./])\b(GetMe|GetUser|Login|Refresh|SetEmail|PasswordUpdateByUsername|ExistsBy\w+)\b|`[a-z]+_(mask|token|size)`/.test(
          each,
        ),
      ),
      [],
    )
    const operations: { description: string }[] = Object.values<object>(json.paths).flatMap(Object.values)
    for (const { description } of operations)
      t.true(description.split(/Protected:|Callers:|Only for services|Open to all callers/).length <= 2, description)
    const sample = (operation: string, page: string) =>
      page.split(`<article id="${operation}">`)[1]!.split('</pre>\n<form')[0]!
    const page = (await get(`/docs/${revision}/en`)).text
    t.regex(sample('introspect', page), /Bearer \$KEY/)
    t.regex(sample('getUser', page), /Bearer \$TOKEN/)
  }
})

test('each reason in a description is a link to it, and no gRPC code is', async t => {
  const { 'x-reasons': reasons } = (await get('/openapi/1.0.0.json')).json
  for (const path of references) {
    const { text } = await get(path)
    for (const [, to] of text.matchAll(/href="#reason-(\w+)"/g)) t.true(text.includes(`<dt id="reason-${to}">`), to)
    t.false(/gRPC <a|<\/a> \(<a/.test(text), path)
    // Codes and examples aren't descriptions.
    const plain = textOf(text.replace(/<(a|pre|code|small)\b.*?<\/\1>/gs, ''))
    for (const reason of Object.keys(reasons))
      t.false(new RegExp(`\\b${reason}\\b`).test(plain), `${reason} in ${path}`)
  }
})

test('files are compressed for clients that accept it, and not sent again to clients that have them cached', async t => {
  for (const path of ['/', '/docs/1.0.2/en', '/docs/reference.js', '/docs/reference.css', '/openapi/1.0.2.json']) {
    const plain = await get(path, { 'accept-encoding': 'identity' })
    const packed = await get(path, { 'accept-encoding': 'br;q=0.5, gzip' })
    t.is(plain.headers.get('content-encoding'), null)
    t.is(packed.headers.get('content-encoding'), 'gzip')
    t.is(packed.text, plain.text)
    t.true(Number(packed.headers.get('content-length')) < Number(plain.headers.get('content-length')))
    t.is((await get(path, { 'accept-encoding': 'gzip;q=0' })).headers.get('content-encoding'), null)
    for (const { headers } of [plain, packed]) t.regex(headers.get('vary') ?? '', /accept-encoding/)
    const [etag = '', other = ''] = [packed, plain].map(({ headers }) => headers.get('etag') ?? '')
    t.not(etag, other)
    const again = await get(path, { 'accept-encoding': 'gzip', 'if-none-match': etag })
    t.is(`${again.status}${again.text}`, '304')
    t.is((await get(path, { 'accept-encoding': 'gzip', 'if-none-match': other })).status, 200)
  }
  t.is((await get('/docs/1.0.2/en')).headers.get('cache-control'), 'no-cache')
})

test('with AUTH_DOCS=off there are no pages, documents and definitions, and everything else is served', async t => {
  const { request } = await startTestService(t, { AUTH_DOCS: 'off' })
  const files = ['/docs/reference.js', '/openapi/1.0.2.json', '/proto/auth/v1/users.proto']
  for (const path of ['/', '/docs', ...references, ...files]) refused(t, await request('GET', path), 404, 'NOT_FOUND')
  t.is((await request('GET', '/healthz')).status, 200)
})

// The OpenAPI documents, as the gateway serves them.

for (const revision of ['1.0.0', '1.0.2']) {
  const path = `/openapi/${revision}.json`

  test(`${path} is public, cached for 5 minutes, and for pages of permitted origins`, async t => {
    const { headers, json } = await get(path, { origin })
    t.is(headers.get('content-type'), 'application/json')
    t.is(headers.get('cache-control'), 'public, max-age=300')
    t.is(headers.get('access-control-allow-origin'), origin)
    t.is(headers.get('vary'), 'origin, accept-encoding')
    t.like(json, { openapi: '3.1.0', info: { version: revision } })
    const etag = headers.get('etag')!
    t.regex(etag, /^"[\w-]{22}"$/)
    // It isn't sent again to a client that has it.
    for (const method of ['GET', 'HEAD']) {
      for (const known of [etag, `W/${etag}`, `"other", ${etag}`, '*']) {
        const again = await service.request(method, path, { headers: { 'if-none-match': known } })
        t.is(`${again.status} ${again.text}`, '304 ')
        t.is(again.headers.get('etag'), etag)
        t.is(again.headers.get('content-length'), null)
      }
      t.is((await service.request(method, path, { headers: { 'if-none-match': '"other"' } })).status, 200)
    }
  })
}

test('servers are relative to the document, so that a path prefix of a proxy stays', async t => {
  for (const prefix of ['', '/auth']) {
    for (const revision of ['1.0.0', '1.0.2']) {
      const { servers, paths } = await documentOf(revision)
      const resolved = ({ url }: { url: string }) =>
        new URL(url, `https://example.org${prefix}/openapi/${revision}.json`).pathname
      t.deepEqual(servers.map(resolved), [`${prefix}/${revision}`, `${prefix}/`])
      t.deepEqual(paths['/introspect'].post.servers.map(resolved), [`${prefix}/`])
    }
  }
})

// biome-ignore lint/suspicious/noExplicitAny: a JSON document
const documentOf = async (revision: string): Promise<any> =>
  (await service.request('GET', `/openapi/${revision}.json`)).json

test('the documents differ where the revisions differ', async t => {
  const [old, current] = [await documentOf('1.0.0'), await documentOf('1.0.2')]
  const { '/users/sendadminkeybyemailpartner': only, ...others } = old.paths
  t.truthy(only)
  t.deepEqual(Object.keys(others), Object.keys(current.paths))
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
      ...[`URL=http://127.0.0.1:8080/${revision}`, '$URL/users/signup', '$URL/users/activate', '$URL/users/login'],
      ...['Authorization: Bearer', 'RFC 9457', 'Accept-Language'],
    ])
      t.true(info.description.includes(part), part)
    for (const { name, description } of tags) t.regex(description, /^[^.]+\.$/, name)
    t.false(/paragraph|\bcomments?\b|IDEMPOTENT|ErrorInfo/.test(JSON.stringify({ info, tags, rest })))
  }
})

test('an operation has its parameters in query, form and JSON, its callers, limits and refusals', async t => {
  const { paths, components } = await documentOf('1.0.2')
  const { post: login } = paths['/users/login']
  const names = ['username', 'password']
  t.like(login.parameters, { length: 3, 0: { in: 'query', name: names[0] }, 1: { in: 'query', name: names[1] } })
  t.true(login.requestBody.required)
  t.deepEqual(Object.keys(login.requestBody.content), ['application/json', 'application/x-www-form-urlencoded'])
  for (const { schema } of Object.values<{ schema: { properties: object; required: string[] } }>(
    login.requestBody.content,
  ))
    t.deepEqual([Object.keys(schema.properties), schema.required], [[...names, 'stay'], names])
  t.deepEqual(Object.keys(login.responses[200].content), ['text/plain', 'application/json'])
  t.deepEqual(login.security, [])
  const reasonsOf = ({ $ref }: { $ref: string }) => {
    const { schema, examples } = components.responses[$ref.split('/').at(-1)!].content['application/problem+json']
    t.deepEqual(schema, { $ref: '#/components/schemas/Problem' })
    return Object.keys(examples)
  }
  t.deepEqual(reasonsOf(login.responses[404]), ['INVALID_CREDENTIALS'])
  t.deepEqual(reasonsOf(login.responses[429]), ['TOO_MANY_ATTEMPTS'])
  for (const [status, hasRetryAfter] of Object.entries({ 404: false, 429: true, 503: true })) {
    const response = components.responses[login.responses[status].$ref.split('/').at(-1)]
    t.is('Retry-After' in response.headers, hasRetryAfter, status)
  }
  t.deepEqual(paths['/users/{username}'].get.security, [{ token: [] }, { serviceKey: ['users.read'] }])
  t.regex(paths['/users/{username}'].get.description, /Protected: the user itself, .*ROLE_ADMIN for any user;/)
  t.regex(paths['/users/login'].post.description, /Limits: failed sign-ins of an account \(10 in 15 minutes\); /)
  t.regex(paths['/users/me/export'].get.description, /Limits: exports of an account \(5 a day\)\./)
  t.regex(
    paths['/users/signup'].post.description,
    /Limits: sign-ups of a client address \(600 at once, then 5 a minute\); /,
  )
  t.is(components.schemas.SignUpRequest.required.join(' '), 'username nickname password state city termsofusage roles')
  for (const path of ['/users/me/export', '/introspect', '/.well-known/jwks.json'])
    for (const operation of Object.values<{ servers: object }>(paths[path]))
      t.deepEqual(operation.servers, [{ url: '..' }])
})

test('each reason has a status, a meaning, a remedy, and a gRPC code if services refuse with it', async t => {
  const { 'x-reasons': reasons, components } = await documentOf('1.0.2')
  t.deepEqual(Object.keys(reasons), components.schemas.Reason.enum)
  t.true(components.schemas.Reason.enum.length > 25)
  for (const [name, { status, code, meaning, remedy }] of Object.entries<Record<string, string>>(reasons)) {
    t.true(Number(status) >= 400, name)
    for (const text of [meaning, remedy]) t.regex(text!, /^[A-Z].*\.$/, name)
    const ofGateway =
      'NOT_FOUND|METHOD_NOT_ALLOWED|REQUEST_TIMEOUT|\\w+_TOO_L(ARGE|ONG)|UNSUPPORTED_MEDIA_TYPE|MISDIRECTED_REQUEST'
    t.is(code === undefined, new RegExp(`^(${ofGateway}|EXPECTATION_FAILED)$`).test(name), name)
  }
  t.like(reasons.INVALID_CREDENTIALS, { status: 404, code: 'UNAUTHENTICATED' })
})
