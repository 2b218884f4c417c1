/** The chart, rendered by helm. */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { testWith } from '../_helpers/tools.js'

const chart = fileURLToPath(new URL('../../../deploy/helm/auth-registry', import.meta.url))
const [, version = ''] = /^appVersion: "(.*)"$/m.exec(readFileSync(join(chart, 'Chart.yaml'), 'utf8'))!
const required = 'server.settings.AUTH_ISSUER=https://auth.example.org,server.trustedProxies=10.0.0.0/8'
const backup = 'backup.enabled=true,backup.claim=backups,backup.recipients={age1one}'

const withHelm = testWith('helm', spawnSync('helm', ['version']).status === 0)

/** Renders the chart, with these values. */
function render(...values: string[]) {
  const given = [required, ...values].flatMap(each => ['--set', each])
  return spawnSync('helm', ['template', 'check', chart, '--kube-version', '1.33.0', ...given], { encoding: 'utf8' })
}

/** The rendered manifest of this kind and name. */
function manifest(kind: string, name: string, ...values: string[]): string | undefined {
  return render(...values)
    .stdout.split(/^---$/m)
    .find(text => text.includes(`\nkind: ${kind}\n`) && text.includes(`\n  name: check-auth-registry-${name}\n`))
}

withHelm('a value that the chart doesn’t know is refused, and so is a value of another type', t => {
  t.is(render().status, 0)
  for (const wrong of [
    'server.replica=5',
    'server.autoscaling.min=2',
    'replicas=3',
    'backup.keep=many',
    'settings.log=info',
  ]) {
    const { status, stderr } = render(wrong)
    t.is(status, 1, wrong)
    t.regex(stderr, /values don't meet the specifications of the schema/, wrong)
  }
})

withHelm(
  'all pods have all files of the Secret, such as the authority of the database, and the settings for all',
  t => {
    const pods = [
      ['Job', 'migrate'],
      ['CronJob', 'backup'],
      ['Deployment', 'server'],
    ] as const
    for (const [kind, name] of pods) {
      const text = manifest(kind, name, backup, 'settings.AUTH_TIME_ZONE=America/Manaus')!
      t.regex(text, /\{ name: secrets, mountPath: \/etc\/auth, readOnly: true \}/, name)
      t.notRegex(text, /\bitems:/, name)
      t.regex(text, /- name: AUTH_TIME_ZONE\n +value: "America\/Manaus"/, name)
    }
  },
)

withHelm(
  '`contract` migrations run for the version that the values name, so values of a former release run none',
  t => {
    const contracts = (value: string) => manifest('Job', 'contract', `migrate.contract=${value}`) !== undefined
    t.true(contracts(version))
    for (const other of ['', '0.9.0', 'false']) t.false(contracts(other), other)
    const { status, stderr } = render('migrate.contract=true')
    t.is(status, 1)
    t.true(
      stderr.includes(`migrate.contract is the version whose contract migrations run: set it to ${version}`),
      stderr,
    )
  },
)
