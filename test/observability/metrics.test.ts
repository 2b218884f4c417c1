/** Metrics: those of a running service, and that dashboard, alerts and documents use no others. */
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import test, { type ExecutionContext } from 'ava'
import { sql } from '../../server/database/sql.js'
import { spawnGateway } from '../_helpers/apart.js'
import { done, newIdentity } from '../_helpers/backups.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import { spawnCli } from '../_helpers/cli.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { scrape } from '../_helpers/metrics.js'
import { startRelay } from '../_helpers/relay.js'
import { serviceForFile, startTestService } from '../_helpers/service.js'
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

/** Breaks the service's connections, which it counts. */
const cutOff = (url: string) =>
  ask(
    url,
    'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()',
  )

/** Keywords of PromQL in the expressions. */
const words = new Set(
  'histogram_quantile sum min max time count by le rate increase absent and or on max_over_time vector'.split(' '),
)

/** The metrics in an expression, each with the labels of its selectors and groupings. */
function askedFor(expression: string): { names: Set<string>; labels: Set<string> } {
  const plain = expression.replace(/"[^"]*"/g, '').replace(/\[[^\]]*\]/g, '')
  const chosen = [...plain.matchAll(/\{([^}]*)\}/g)].flatMap(([, inside = '']) => inside.match(/\w+/g) ?? [])
  const grouped = [...plain.matchAll(/\b(?:by|on) \(([^)]*)\)/g)].flatMap(
    ([, inside = '']) => inside.match(/\w+/g) ?? [],
  )
  const rest = plain.replace(/\{[^}]*\}/g, '').replace(/\b(?:by|on) \([^)]*\)/g, '')
  const names = (rest.match(/[a-z_][\w:]*/gi) ?? []).filter(word => !words.has(word))
  return { names: new Set(names), labels: new Set([...chosen, ...grouped]) }
}

test.serial(
  'dashboard and alerts ask for metrics and labels that a running service exports, and for no other',
  async t => {
    await service.login('admin')
    await service.request('POST', '/users/login', { query: { username: 'admin', password: 'wrong' } })
    await cutOff(service.settings.databaseUrl!)
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
    t.is(alerting.length, 18 + recorded.length)
    // Prometheus itself creates this one.
    const elsewhere = ['up', ...recorded]
    for (const expression of [...shown, ...alerting]) {
      const { names, labels } = askedFor(expression)
      if (/^vector\(\d+\)$/.test(expression)) continue
      t.true(names.size > 0, expression)
      for (const name of elsewhere) names.delete(name)
      for (const name of names) {
        t.true(
          samples.some(sample => sample.name === name),
          `${name} in ${expression}`,
        )
      }
      // Prometheus adds these two.
      for (const label of labels) {
        if (label === 'instance' || label === 'job') continue
        t.true(
          samples.some(sample => names.has(sample.name) && label in sample.labels),
          `${label} in ${expression}`,
        )
      }
      const rpcs = [...expression.matchAll(/rpc!?="(\w+)"/g)].map(([, rpc]) => rpc)
      for (const rpc of rpcs)
        t.true(
          samples.some(({ labels }) => labels.rpc === rpc),
          rpc,
        )
    }
  },
)

test.serial('every alert names its section of the runbook', t => {
  const rules = [...read('deploy/alerts.yaml').matchAll(/- alert: (\w+)[\s\S]*?runbook_url: (\S+)/g)]
  t.is(rules.length, 18)
  for (const [, name = '', url] of rules) t.is(url, `https://docs.example.org/operations.md#${name.toLowerCase()}`)
})

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
  const scrapeInTime = () =>
    waitFor(async () => {
      const now = await scrape({ service })
      return now.value('auth_outbox_waiting') !== undefined && now
    })
  const { value } = await scrapeInTime()
  t.is(value('auth_outbox_waiting'), 1)
  t.is(value('auth_outbox_failed'), 0)
  t.true(value('auth_outbox_oldest_seconds')! >= 90)
  await registry.database.run(sql`UPDATE emails SET next_attempt_at = NULL`)
  const after = await scrapeInTime()
  t.deepEqual([after.value('auth_outbox_waiting'), after.value('auth_outbox_failed')], [0, 2])
  t.is(after.value('auth_outbox_oldest_seconds'), 0)

  t.true(after.value('auth_signing_key_age_seconds')! >= 0)
  await registry.database.run(sql`UPDATE signing_keys SET signs_at = signs_at - interval '100 d'`)
  t.true((await scrapeInTime()).value('auth_signing_key_age_seconds')! >= 8_640_000)

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
  const before = await scrape({ service })
  t.is(before.value('auth_ready'), 1)
  t.is(before.value('auth_outbox_waiting'), 0)
  t.is(before.value('auth_database_connections', { state: 'most' }), 10)
  relay.goDark()
  const away = await waitFor(async () => {
    const now = await scrape({ service })
    return now.value('auth_ready') === 0 && now
  })
  t.is(away.status, 200)
  for (const name of ['auth_outbox_waiting', 'auth_audit_staged', 'auth_signing_key_age_seconds']) {
    t.is(away.value(name), undefined, name)
  }
  await waitFor(
    async () => ((await scrape({ service })).value('auth_database_errors_total', { class: 'silent' }) ?? 0) > 0,
  )
  relay.lightUp()
  await waitFor(async () => {
    const { value } = await scrape({ service })
    return value('auth_ready') === 1 && value('auth_outbox_waiting') === 0
  })
  t.pass()
})
