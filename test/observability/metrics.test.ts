/** Metrics: those of a running service, and that dashboard, alerts and documents use no others. */

import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { rename, writeFile } from 'node:fs/promises'
import { get } from 'node:https'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'
import { createRouterTransport, type Transport } from '@connectrpc/connect'
import test, { type ExecutionContext } from 'ava'
import { Registry } from 'prom-client'
import { sql } from '../../server/database/sql.js'
import { spawnGateway, spawnServer } from '../_helpers/apart.js'
import { done, newIdentity } from '../_helpers/backups.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import { spawnCli } from '../_helpers/cli.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { openGateway } from '../_helpers/gateway.js'
import { scrape } from '../_helpers/metrics.js'
import { startRelay } from '../_helpers/relay.js'
import { createRequest, password, serviceForFile, startTestService } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const read = (name: string) => readFileSync(fileURLToPath(new URL(`../../../${name}`, import.meta.url)), 'utf8')
const scraped = { AUTH_METRICS_ADDRESS: '127.0.0.1:0' }
const service = serviceForFile(() => scraped)

/** The metrics of a service, of one with an embedded database, and of a separate gateway with TLS. */
async function scrapeAll(t: ExecutionContext) {
  const embedded = await spawnService(t, { ...scraped, DATABASE_URL: '' })
  const volume = /metrics +(http\S+)/.exec(embedded.output())![1]!
  const files = await writePems(t, createAuthority('Authority').issue({ name: 'auth' }))
  const tls = { AUTH_HTTP_TLS_CERT: files.cert, AUTH_HTTP_TLS_KEY: files.key }
  const { metrics } = await spawnGateway(t, service.grpc, tls)
  return (await Promise.all([scrape(service), scrape(volume), scrape(metrics)])).flat()
}

/** Keywords of PromQL in the expressions. */
const words = new Set(
  'histogram_quantile sum min max time count by le rate increase absent and or unless on max_over_time vector'.split(
    ' ',
  ),
)

/** The metrics in an expression, and the labels of its selectors and groupings. */
function askedFor(expression: string): { names: readonly string[]; labels: readonly string[] } {
  const plain = expression.replace(/"[^"]*"|\[[^\]]*\]|\boffset \w+/g, '')
  const inside = [...plain.matchAll(/\{([^}]*)\}|\b(?:by|on) \(([^)]*)\)/g)].map(
    ([, chosen, grouped]) => chosen ?? grouped,
  )
  const rest = plain.replace(/\{[^}]*\}|\b(?:by|on) \([^)]*\)/g, '')
  const names = (rest.match(/[a-z_][\w:]*/gi) ?? []).filter(word => !words.has(word))
  return { names, labels: inside.join().match(/\w+/g) ?? [] }
}

test.serial(
  'dashboard and alerts ask for metrics and labels that a running service exports, and for no other',
  async t => {
    await service.login('admin')
    await service.request('POST', '/users/login', { query: { username: 'admin', password: 'wrong' } })
    // Broken connections are counted.
    await ask(
      service.settings.databaseUrl!,
      'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()',
    )
    await waitFor(async () => {
      const { value } = await scrape(service)
      return value('auth_database_errors_total') !== undefined && value('auth_ready') === 1
    })
    const samples = (await scrapeAll(t)).flatMap(({ samples }) => samples)
    const { panels } = JSON.parse(read('deploy/grafana-dashboard.json')) as {
      panels: { targets: { expr: string }[] }[]
    }
    const shown = panels.flatMap(({ targets }) => targets.map(({ expr }) => expr))
    const alerting = [...read('deploy/alerts.yaml').matchAll(/^ +expr: (.*)$/gm)].map(([, expression]) => expression!)
    t.true(shown.length > 20)
    const recorded = [...read('deploy/alerts.yaml').matchAll(/- record: (\S+)/g)].map(([, name]) => name!)
    t.is(alerting.length, 20 + recorded.length)
    for (const expression of [...shown, ...alerting]) {
      const { names, labels } = askedFor(expression)
      if (/^vector\(\d+\)$/.test(expression)) continue
      t.true(names.length > 0, expression)
      // Prometheus itself creates `up` and these three labels.
      for (const name of names.filter(each => each !== 'up' && !recorded.includes(each)))
        t.true(
          samples.some(sample => sample.name === name),
          `${name} in ${expression}`,
        )
      for (const label of labels.filter(each => !['instance', 'job', 'namespace'].includes(each)))
        t.true(
          samples.some(sample => names.includes(sample.name) && label in sample.labels),
          `${label} in ${expression}`,
        )
      for (const [, rpc] of expression.matchAll(/rpc!?="(\w+)"/g))
        t.true(
          samples.some(({ labels }) => labels.rpc === rpc),
          rpc,
        )
    }
  },
)

test.serial('docs/metrics.md lists every metric of the project with its labels and meaning', async t => {
  const all = await scrapeAll(t)
  const samples = all.flatMap(({ samples }) => samples)
  const helps = all.flatMap(({ text }) => [...text.matchAll(/^# HELP (auth_\w+) (.*)$/gm)])
  const exported = [...new Map(helps.map(help => [help[1], help])).values()].map(([, name = '', help]) => {
    const own = samples.filter(sample => sample.name.replace(/_(bucket|sum|count)$/, '') === name)
    const labels = [...new Set(own.flatMap(({ labels }) => Object.keys(labels)))].filter(label => label !== 'le')
    const type = new RegExp(`^# TYPE ${name} (\\w+)$`, 'm').exec(all.map(({ text }) => text).join('\n'))?.[1]
    return `| \`${name}\` | ${type} | ${labels.map(label => `\`${label}\``).join(', ')} | ${help} |`
  })
  const listed = read('docs/metrics.md').match(/^\| `auth_.*$/gm) ?? []
  t.deepEqual(listed.sort(), exported.sort())
  const limits = new Set(samples.flatMap(({ labels }) => labels.limit ?? []))
  t.true(limits.size > 13)
  for (const limit of limits) t.true(read('docs/metrics.md').includes(`\`${limit}\``), limit)
})

test.serial('no label holds caller input, and a metric shows the build', async t => {
  const { text, samples } = await scrape(service)
  t.false(/admin|wrong|127\.0\.0\.1/.test(text))
  const build = samples.find(({ name }) => name === 'auth_build_info')
  t.deepEqual(build?.labels, { version: JSON.parse(read('package.json')).version, node: process.versions.node })
})

test('refusals are counted by the limit that they reached', async t => {
  const { service, request } = await startTestService(t, scraped)
  const query = { username: 'admin', password: 'wrong' }
  for (let i = 0; i < 12; i++) await request('POST', '/users/login', { query })
  const { value } = await scrape({ service })
  t.is(value('auth_refusals_total', { limit: 'account' }), 2)
  t.is(value('auth_refusals_total', { limit: 'failures' }), 0)
})

test('metrics show what waits to be sent or sealed, and the age of the signing key', async t => {
  // No process listens there.
  const { service, registry } = await startTestService(t, { ...scraped, SMTP_URL: 'smtp://127.0.0.1:9' })
  const id = Number((await registry.users.byUsername('admin'))?.id)
  // Both are due in an hour, so that none is attempted meanwhile.
  await registry.database.run(sql`INSERT INTO emails (kind, stage, parameters, locale, created_at, next_attempt_at)
        SELECT 'password-changed', stage, '{}', 'en', now() - interval '90 s', now() + interval '1 h'
        FROM unnest(ARRAY['held', 'ready']) AS stage`)
  // A scrape without a response of the database in time has the other metrics.
  const scrapeInTime = async () => {
    const { value } = await waitFor(async () => {
      const now = await scrape({ service })
      return now.value('auth_outbox_waiting') !== undefined && now
    })
    const outbox = ['waiting', 'failed', 'oldest_seconds'].map(name => value(`auth_outbox_${name}`)!)
    return { outbox, keyAge: value('auth_signing_key_age_seconds')! }
  }
  const { outbox, keyAge } = await scrapeInTime()
  t.deepEqual(outbox.slice(0, 2), [1, 0])
  t.true(outbox[2]! >= 90 && keyAge >= 0)
  await registry.database.run(sql`UPDATE emails SET next_attempt_at = NULL`)
  await registry.database.run(sql`UPDATE signing_keys SET signs_at = signs_at - interval '100 d'`)
  const after = await scrapeInTime()
  t.deepEqual(after.outbox, [0, 2, 0])
  t.true(after.keyAge >= 8_640_000)

  // While another session holds the sealing lock, events wait.
  await registry.database.transact(
    async transaction => {
      await registry.database.run(sql`SELECT FROM audit_head FOR UPDATE`, transaction)
      await registry.audit.append({ action: 'user.unlock', outcome: 'ok', actor: 'service', subject_id: id })
      const waiting = await waitFor(async () => {
        const now = await scrape({ service })
        return now.value('auth_audit_oldest_seconds')! > 0.5 && now
      })
      t.true(waiting.value('auth_audit_staged')! >= 1)
    },
    { unlimited: true },
  )
  await waitForValue(async () => (await scrape({ service })).value('auth_audit_staged'), 0)
})

test('metrics show when the last backup was made', async t => {
  const { service, env } = await startTestService(t, scraped)
  const last = async () => (await scrape({ service })).value('auth_backup_timestamp_seconds')
  await waitForValue(last, 0)
  const folder = await temporaryFolder(t)
  const { recipient } = await newIdentity(folder)
  const before = Date.now() / 1000
  done(await spawnCli(env, ['backup', folder, '--recipient', recipient]))
  const at = await waitFor(last)
  t.true(at > before - 1 && at < Date.now() / 1000 + 1, `${at}`)
})

test('a scrape is answered while the database is unavailable or silent, without the database’s metrics', async t => {
  const url = await freshDatabase(t)
  const relay = await startRelay(t, url)
  const { service } = await startTestService(t, { ...scraped, DATABASE_URL: relay.url })
  const probe = prober(metricsOf(service))
  const ofDatabase = ['auth_outbox_waiting', 'auth_audit_staged', 'auth_signing_key_age_seconds']
  const values = async () => {
    const { value } = await scrape({ service })
    return [value('auth_ready'), ...ofDatabase.map(name => value(name) !== undefined)]
  }
  await waitForValue(values, [1, true, true, true])
  t.is((await scrape({ service })).value('auth_database_connections', { state: 'most' }), 10)
  relay.goDark()
  await waitForValue(values, [0, false, false, false])
  // It is live, but not ready.
  t.deepEqual([await probe('/readyz'), await probe('/healthz')], ['503 not ready', '200 ok'])
  await waitFor(
    async () => ((await scrape({ service })).value('auth_database_errors_total', { class: 'silent' }) ?? 0) > 0,
  )
  relay.lightUp()
  await waitForValue(values, [1, true, true, true])
  await waitForValue(() => probe('/readyz'), '200 ok')
})

// The metrics of a gateway, in a separate process and within a service.

test('a separate gateway counts each request once by route and status, without user input in labels', async t => {
  const server = await spawnServer(t)
  const gateway = await spawnGateway(t, server.grpc)
  const request = createRequest(gateway.http)
  const post = (path: string, body: object) => request('POST', path, { body, once: true })
  await post('/users/login', { username: 'admin', password })
  await post('/users/login', { username: 'admin', password: 'planted-secret' })
  await post('/1.0.0/users/login', { username: 'admin', password })
  await request('GET', '/planted-secret?planted-secret', { once: true })
  await request('GET', '/users/planted-secret', { once: true })
  await request('DELETE', '/users/login', { once: true })
  await post('/auth.v1.Users/ExistsByUsername', { username: 'planted-secret' })
  await post('/auth.v1.Users/PlantedSecret', {})
  await request('GET', '/healthz', { once: true })
  const raw = connect(Number(new URL(gateway.http).port), '127.0.0.1', () => raw.end('planted-secret\r\n\r\n'))
  await once(raw.resume(), 'close')

  const counts = async () => {
    const { samples } = await scrape(gateway.metrics)
    const own = samples.filter(({ name }) => name === 'auth_http_requests_total')
    return own.map(({ labels, value }) => `${labels.route} ${labels.status} ${value}`).sort()
  }
  const expected = [
    ...['/1.0.0/users/login 200 1', '/healthz 200 1', '/users/login 200 1', '/users/login 404 1'],
    ...['/users/login 405 1', '/users/{username} 403 1', 'RPC 200 1', 'other 400 1', 'other 404 2'],
  ]
  // A request counts once its response is sent.
  await waitForValue(counts, value => value.length >= expected.length)
  t.deepEqual(await counts(), expected)
  const { text: all, value, samples } = await scrape(gateway.metrics)
  t.notRegex(all, /planted|secret|admin|127\.0\.0\.1/i)
  t.is(value('auth_http_request_seconds_count', { route: '/users/login' }), 3)
  // A login takes some time.
  t.true(value('auth_http_request_seconds_sum', { route: '/users/login' })! > 0)
  t.is(value('auth_http_connections', { state: 'most' }), 10_000)
  t.is(value('auth_requests', { state: 'waiting' }), 0)
  t.is(value('auth_requests', { state: 'running' }), 0)
  t.is(value('auth_requests_shed_total'), 0)
  for (const limit of ['connections', 'unread']) t.is(value('auth_http_cut_total', { limit }), 0)
  for (const name of ['auth_build_info', 'nodejs_eventloop_lag_p99_seconds', 'process_cpu_seconds_total'])
    t.true(value(name) !== undefined, name)
  // Metrics that only a server has are absent.
  t.false(samples.some(({ name }) => /^auth_(ready|calls|hash|database|outbox|audit)/.test(name)))
})

test('a request that its client canceled is counted as such', async t => {
  const registry = new Registry()
  let asked = () => {}
  const arrived = new Promise<void>(resolve => {
    asked = resolve
  })
  const transport: Transport = {
    ...createRouterTransport(() => {}),
    unary: (_, signal) => {
      asked()
      return new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason)))
    },
  }
  const limits = { maxConnections: 1 }
  const { port } = await openGateway(t, {}, { transport, registry, limits })
  const shows = (pattern: RegExp) =>
    waitForValue(
      () => registry.metrics(),
      value => pattern.test(value),
    )
  const client = connect(port, '127.0.0.1', () => {
    client.write('GET /forgotpasswords/findallforgotpasswordquestions HTTP/1.1\r\nhost: x\r\n\r\n')
  })
  await arrived
  await shows(/auth_http_connections\{state="open"\} 1$/m)
  // The limit is one connection.
  await once(
    connect(port, '127.0.0.1').on('error', () => {}),
    'close',
  )
  await shows(/auth_http_cut_total\{limit="connections"\} 1$/m)
  client.destroy()
  await shows(/\{route="\/forgot\w+\/\w+",status="gone"\} 1$/m)
  await shows(/auth_http_connections\{state="open"\} 0$/m)
  t.pass()
})

test('metrics show when each certificate expires, and follow a replaced one', async t => {
  const authority = createAuthority('Authority')
  const midnight = Math.floor(Date.now() / 86_400_000) * 86_400_000
  const issue = (days: number) =>
    authority.issue({ name: 'auth', dnsNames: ['localhost'], until: new Date(midnight + days * 86_400_000) })
  const endOf = (days: number) => midnight / 1000 + days * 86_400
  const replace = async (path: string, content: Buffer) => {
    await writeFile(`${path}.new`, content)
    await rename(`${path}.new`, path)
  }
  const [http, inner] = [await writePems(t, issue(30)), await writePems(t, issue(60))]
  const tls = {
    ...{ ...scraped, AUTH_HTTP_TLS_CERT: http.cert, AUTH_HTTP_TLS_KEY: http.key },
    ...{ AUTH_TLS_CERT: inner.cert, AUTH_TLS_KEY: inner.key },
  }
  const { service } = await startTestService(t, tls)
  const gateway = await spawnGateway(t, '127.0.0.1:9', tls)
  t.regex(gateway.metrics, /^https:/)
  const read = async (url: string) => {
    const [answer] = await once(get(url, { ca: authority.certificate, servername: 'localhost' }), 'response')
    const ends = (await text(answer)).matchAll(/^auth_certificate_end_timestamp_seconds\{of="(\w+)"\} (\S+)$/gm)
    return Object.fromEntries([...ends].map(([, of, end]) => [of, Number(end)]))
  }
  const all = () =>
    Promise.all([read(`https://127.0.0.1:${service.addresses.metrics!.port}/metrics`), read(gateway.metrics)])
  t.deepEqual(await all(), [
    { grpc: endOf(60), http: endOf(30) },
    { servers: endOf(60), http: endOf(30) },
  ])
  const renewed = issue(90)
  await replace(http.cert, renewed.cert)
  await replace(http.key, renewed.key)
  await waitForValue(all, [
    { grpc: endOf(60), http: endOf(90) },
    { servers: endOf(60), http: endOf(90) },
  ])
  t.pass()
})

// Probes at the address of the metrics: liveness and readiness.

/** Sends a request to the metrics address; returns for example `200 ok`. */
const prober =
  (metrics: string) =>
  async (path: string, method = 'GET') => {
    const answer = await fetch(new URL(path, metrics), { method })
    return `${answer.status} ${await answer.text()}`
  }

const metricsOf = ({ addresses }: { addresses: { metrics?: { port: number } } }) =>
  `http://127.0.0.1:${addresses.metrics!.port}`

test('a process is live and ready until it drains', async t => {
  const { service } = await startTestService(t, scraped)
  const probe = prober(metricsOf(service))
  t.is(await probe('/healthz'), '200 ok')
  await waitForValue(() => probe('/readyz'), '200 ok')
  t.is(await probe('/readyz', 'HEAD'), '200 ')
  for (const path of ['/', '/readyz/', '/healthz?verbose', '/toString', '/users/login']) t.is(await probe(path), '404 ')
  t.is(await probe('/readyz', 'POST'), '404 ')
  service.drain()
  t.is(await probe('/readyz'), '503 not ready')
  t.is(await probe('/readyz', 'HEAD'), '503 ')
  t.is(await probe('/healthz'), '200 ok')
})

test('a separate gateway is ready while a server is, until it drains', async t => {
  const server = await spawnServer(t, { AUTH_DRAIN: '60' })
  const gateway = await spawnGateway(t, server.grpc, { AUTH_DRAIN: '60' })
  const probe = prober(gateway.metrics)
  await waitForValue(() => probe('/readyz'), '200 ok')
  gateway.child.kill('SIGTERM')
  await waitForValue(() => probe('/readyz'), '503 not ready')
  t.is((await fetch(`${gateway.http}/.well-known/jwks.json`)).status, 200)
  const other = await spawnGateway(t, server.grpc)
  const ask = prober(other.metrics)
  await waitForValue(() => ask('/readyz'), '200 ok')
  server.child.kill('SIGTERM')
  await waitForValue(() => ask('/readyz'), '503 not ready')
  t.true(server.alive())
  server.child.kill('SIGKILL')
  await server.ended
  t.is(await ask('/readyz'), '503 not ready')
  t.is(await ask('/healthz'), '200 ok')
})
