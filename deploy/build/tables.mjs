/** The tables of the documentation, in Markdown, from the code: routes, access policy, reasons, settings and metrics. */
import { readFile } from 'node:fs/promises'
import { ScalarType } from '@bufbuild/protobuf'
import { createGatewayMetrics } from '../../dist/gateway/metrics.js'
import { firstSentence } from '../../dist/gateway/openapi/comments.js'
import { policyOf, routes } from '../../dist/gateway/operations.js'
import { gatewayReasons } from '../../dist/gateway/problem.js'
import { Reason } from '../../dist/proto/gen/auth/v1/reason_pb.js'
import { createMetrics } from '../../dist/server/observability/metrics.js'
import { createMetricsEndpoint } from '../../dist/server/observability/metrics-endpoint.js'
import { createUndeclaredProxies } from '../../dist/server/observability/undeclared-proxy.js'
import { auditActions } from '../../dist/server/policy/audit-actions.js'
import { describeSettings } from '../../dist/server/process/settings.js'
import { statusOf } from '../../dist/server/requests/reasons.js'
import { limitMeanings, Refusal } from '../../dist/server/requests/refusal.js'

const read = name => readFile(new URL(`../../${name}`, import.meta.url), 'utf8')

/** A table with these titles. */
function table(titles, rows) {
  const line = cells => `| ${cells.join(' | ')} |`
  return [line(titles), `|${'---|'.repeat(titles.length)}`, ...rows.map(line)].join('\n')
}

const code = text => `\`${text}\``

/** A doc comment or a comment of a definition as one line. */
const unwrap = comment =>
  comment
    .replace(/^\s*(\/\*\*|\*\/|\*|\/\/)[ ]?/gm, '')
    .replace(/\*\/\s*$/, '')
    .replace(/\s+/g, ' ')
    .trim()

/** The actions of the audit log, by noun. */
export function actions() {
  const verbs = new Map()
  for (const [noun, verb] of auditActions.map(action => action.split('.')))
    verbs.set(noun, [...(verbs.get(noun) ?? []), code(verb)])
  return table(
    ['noun', 'verbs'],
    [...verbs].map(([noun, all]) => [code(noun), all.join(', ')]),
  )
}

/** The operations over HTTP of the contract, or its extensions. */
export function endpoints(isExtension) {
  const rows = routes
    .filter(({ rpc, file, text, revisions }) => rpc && !file && !text && (revisions?.length === 0) === isExtension)
    .map(route => {
      const { method, path, rpc, revisions } = route
      const only = revisions?.length === 1 ? `, ${revisions[0]} only` : ''
      return [code(`${method} ${path}`) + only, rpc.name, callersOf(policyOf(rpc)), resultOf(route)]
    })
  return table(['request', 'RPC', 'permitted callers', 'result'], rows)
}

/** Who may call an RPC, on whose record. */
function callersOf(row) {
  const { caller, own, institution, administrator, scope } = row
  if (caller === 'anyone') return 'anyone'
  const scopes = [scope].flat().filter(Boolean)
  return [
    own === 'every role' && 'the user',
    own === 'ROLE_INSTITUTION' && 'a ROLE_INSTITUTION',
    institution && `an active ROLE_INSTITUTION: ${institution}`,
    administrator && `a ROLE_ADMIN: ${administrator}`,
    scopes.length > 0 && `a service with ${scopes.map(code).join(' or ')}`,
  ]
    .filter(Boolean)
    .join('; ')
}

/** What an operation answers. */
function resultOf({ rpc, result, mediaType }) {
  if (result === undefined) return 'empty'
  if (result === '*' || mediaType) return 'JSON'
  const field = rpc.output.fields.find(({ jsonName, name }) => [jsonName, name].includes(result))
  if (field.fieldKind === 'list') return `list of ${result}`
  if (field.fieldKind === 'message') return result
  return field.scalar === ScalarType.BOOL ? '`true` or `false`' : `${result} (text)`
}

const reasonNames = Object.keys(Reason).filter(name => Number.isNaN(Number(name)) && name !== 'UNSPECIFIED')
const codeOf = name => new Refusal(Reason[name]).codeName

/** Every reason with its meaning and what to do. */
export async function reasons() {
  const text = await read('proto/auth/v1/reason.proto')
  const comments = new Map(
    [...text.matchAll(/((?: +\/\/.*\n)+) +REASON_(\w+) = /g)].map(([, text, name]) => [
      name,
      unwrap(text).replace(/ \[[^\]]*\]$/, ''),
    ]),
  )
  const row = (name, about, status, grpc) => {
    const meaning = firstSentence(about)
    return [code(name), meaning, about.slice(meaning.length).trim(), status, grpc]
  }
  const ofServices = reasonNames.map(name => row(name, comments.get(name), statusOf(Reason[name]), code(codeOf(name))))
  const ofGateway = Object.entries(gatewayReasons)
    .filter(([name]) => !(name in Reason))
    .map(([name, { status, about }]) => row(name, about, status, ''))
  return table(['reason', 'meaning', 'what to do', 'HTTP', 'gRPC'], [...ofServices, ...ofGateway])
}

/** What is wrong with a field, with its meaning. */
export async function fieldReasons() {
  const text = await read('proto/auth/v1/reason.proto')
  const rows = [...text.matchAll(/((?: +\/\/.*\n)+) +FIELD_REASON_(\w+) = [1-9]/g)]
  return table(
    ['reason of a field', 'what is wrong'],
    rows.map(([, about, name]) => [code(name), unwrap(about)]),
  )
}

/** Every setting with its default and the comment in settings.ts. */
export async function settings() {
  const text = await read('server/process/settings.ts')
  const entries = text.matchAll(/(?:(\/\*\*(?:(?!\*\/)[\s\S])*\*\/)\s+)?\w+: (?:setting|optional|secret)\('([A-Z_]+)'/g)
  const described = new Map()
  for (const [, comment, name] of entries) {
    // A comment is about all settings below it.
    const [last] = [...described].at(-1) ?? []
    described.set(name, comment === undefined ? described.get(last) : unwrap(comment))
  }
  const rows = describeSettings({}).settings.map(({ name, default: fallback, secret }) => [
    code(name),
    fallback ? code(fallback) : '',
    `${described.get(name)}${secret ? ' Secret.' : ''}`,
  ])
  return table(['setting', 'default', 'meaning'], rows)
}

/** Every metric of ours with its labels and help. */
export async function metrics() {
  const endpoint = createMetricsEndpoint()
  const server = createMetrics(endpoint)
  const gateway = createGatewayMetrics(endpoint.registry)
  // Nothing is read before a scrape.
  const none = () => {}
  endpoint.watchScheduler(none)
  server.watchHashing(none)
  server.watchFeed(none)
  server.watchClock(none)
  server.watchDatabase({}, none)
  server.watchVolume('.')
  gateway.watch(none)
  createUndeclaredProxies({ registry: endpoint.registry, log: {}, now: Date.now })
  const all = endpoint.registry.getMetricsAsArray().sort((a, b) => (a.name < b.name ? -1 : 1))
  const rows = all.map(({ name, type, labelNames, help }) => [code(name), type, labelNames.map(code).join(', '), help])
  return table(['name', 'type', 'labels', 'meaning'], rows)
}

/** What each limit counts. */
export const limitTable = () =>
  table(
    ['limit', 'counts'],
    Object.entries(limitMeanings).map(([name, about]) => [code(name), about]),
  )
