/**
 * This folder owns what a program needs of its environment: the settings (here), certificates, its version, and how it
 * stops. Settings are read from the environment and from the files that `NAME_FILE` names, checked, and frozen. The secrets
 * of an embedded database are made by embedded/secrets.ts.
 */
import { readFileSync } from 'node:fs'
import { isIP, isIPv4 } from 'node:net'
import { createSecureContext } from 'node:tls'
import { isReservedUsername, nicknameKey } from '../rules/names.js'
import { readDatabaseUrl } from './database-url.js'
import { readPem } from './pem.js'
import { decodePlainText, plainText, unquoted } from './plain-text.js'
import {
  blocks,
  checked,
  duration,
  factor,
  integer,
  list,
  mailbox,
  oneOf,
  origins,
  SettingError,
  timeZone,
  url,
} from './setting-values.js'

/** Where a server listens. Port 0 means any free port. */
export interface Address {
  /** Name or IP address; an IPv6 address without brackets. */
  readonly host: string
  readonly port: number
}

/** The audience (RFC 7519) of tokens for Administration, and of no others. */
const administrationAudience = 'auth-admin'

/** The default audience of a registry. */
export const firstAudience = 'work-packages'

/** Whether an audience is that of Administration, in any spelling. The registry's audience must differ. */
export function isAdministrationAudience(text: string): boolean {
  return nicknameKey(text) === administrationAudience
}

/**
 * Whether audience and issuer are equal, in any spelling. They must differ: tokens for the issuer are for the registry alone, and
 * no other service may take them.
 */
export function isForIssuer({ issuer, audience }: { readonly issuer: string; readonly audience: string }): boolean {
  return nicknameKey(audience) === nicknameKey(issuer)
}

interface Setting<T> {
  readonly name: string
  /** Never shown; the file that `NAME_FILE` names may hold it. */
  readonly secret: boolean
  /** The default, in the same notation, used when the variable is unset or empty. */
  readonly fallback: string | undefined
  readonly read: (text: string) => T
}

function setting<T>(name: string, read: (text: string) => T, fallback: string): Setting<T> {
  return { name, secret: false, fallback, read }
}

function optional<T>(name: string, read: (text: string) => T): Setting<T | undefined> {
  return { name, secret: false, fallback: undefined, read }
}

function secret<T>(name: string, read: (text: string) => T): Setting<T | undefined> {
  return { name, secret: true, fallback: undefined, read }
}

const table = {
  /** PostgreSQL to use: `postgres://user:password@host:port/database`. Unset: an embedded one in the data folder. */
  databaseUrl: secret('DATABASE_URL', checked(readDatabaseUrl)),
  /** Folder of the embedded database, of its secrets, and of e-mails when there is no mail server. */
  dataDir: setting('AUTH_DATA_DIR', text, './.auth'),
  /** Where the gRPC server listens. */
  grpcAddress: setting('AUTH_GRPC_ADDRESS', address, '127.0.0.1:50051'),
  /** Where the HTTP gateway listens; `off` disables it. */
  httpAddress: setting('AUTH_HTTP_ADDRESS', orOff(address), '127.0.0.1:8080'),
  /** Where metrics and probes are served, not for the public; `off` disables them. `auth-gateway` has port 9091. */
  metricsAddress: setting('AUTH_METRICS_ADDRESS', orOff(address), '127.0.0.1:9090'),
  /**
   * Where administrators are served over gRPC, never for the public; `off` disables it. An address other than loopback
   * requires TLS, and with Node.js before 24 the start logs a warning.
   */
  adminAddress: setting('AUTH_ADMIN_ADDRESS', orOff(address), '127.0.0.1:50052'),
  /** PEM files: certificate and key that the HTTP gateway presents to clients. Unset: no TLS. */
  httpTlsCert: optional('AUTH_HTTP_TLS_CERT', pem('CERTIFICATE')),
  httpTlsKey: optional('AUTH_HTTP_TLS_KEY', pem('PRIVATE KEY')),
  /**
   * What `auth-gateway` calls: a server, or a load balancer before several, as `host:port`; or `dns:///name:port`, whose
   * addresses get calls in turn. Unset: `AUTH_GRPC_ADDRESS`.
   */
  serverUrl: optional('AUTH_SERVER_URL', target),
  /** DNS name in the certificates of the gRPC servers. Unset: the host of `AUTH_SERVER_URL`. */
  serverName: optional('AUTH_SERVER_NAME', text),
  /**
   * Mail server, `smtp://` or `smtps://user:password@host:port`. The service greets it (EHLO) by the domain of `AUTH_MAIL_FROM`, or
   * else by the host of `AUTH_ISSUER`; `?name=NAME` behind it sets another name. Unset: e-mails become files in the data folder.
   */
  smtpUrl: secret('SMTP_URL', url('a URL smtp://host:port or smtps://user:password@host:port', 'smtp:', 'smtps:')),
  /** Sender of e-mails, `address` or `Name <address>`. */
  mailFrom: setting('AUTH_MAIL_FROM', mailbox, 'auth@localhost'),
  /** Wraps the keys of the registry: 32 bytes or more, in base64 or hexadecimal. Required with `DATABASE_URL`. */
  masterKey: secret('AUTH_MASTER_KEY', readMasterKey),
  /** Username of the administrator made at installation. */
  adminUsername: setting('AUTH_ADMIN_USERNAME', username, 'admin'),
  /** Password of the administrator made at installation. Unset: a random one. Its file isn't needed afterwards. */
  adminPassword: secret('AUTH_ADMIN_PASSWORD', text),
  /** Work factor of password hashes: each step doubles the time. Hashes of another cost are renewed at login. */
  bcryptCost: setting('AUTH_BCRYPT_COST', integer(4, 16), '12'),
  /** Shortest password accepted, in characters. */
  passwordMinLength: setting('AUTH_PASSWORD_MIN_LENGTH', integer(1, 256), '8'),
  /** Path of a file of passwords to refuse, one a line, instead of the 49,000 built-in ones. */
  passwordDenylist: optional('AUTH_PASSWORD_DENYLIST', text),
  /**
   * Lifetime of a token. Up to `24h`, a session by password is refreshed for 24 hours; beyond, the token of its sign-in lasts as
   * long as this, and a copy of it as well. Of a session by recovery, an hour at most.
   */
  tokenTtl: setting('AUTH_TOKEN_TTL', duration(1, 30 * 86_400), '1h'),
  /** Days that refresh tokens of a session last, from its sign-in. */
  sessionDays: setting('AUTH_SESSION_DAYS', integer(1, 400), '30'),
  /** How the registry's pages call it. Unset: the host of its issuer. */
  name: optional('AUTH_NAME', text),
  /**
   * `iss` of tokens, the registry's (`auth-admin api GetIssuer`): a URL with `https` or `http`, which an installation requires. Unset at
   * installation: `http://` and the HTTP address.
   */
  issuer: optional('AUTH_ISSUER', text),
  /** `aud` of tokens, the registry's: not `auth-admin`, and not the issuer. Unset at installation: `work-packages`. */
  audience: optional('AUTH_AUDIENCE', audience),
  /** Origins (RFC 6454) whose pages may call the gateway from a browser. */
  corsOrigins: setting('AUTH_CORS_ORIGINS', origins, ''),
  /** Addresses and CIDR blocks of proxies whose `X-Forwarded-For` is trusted. */
  trustedProxies: setting('AUTH_TRUSTED_PROXIES', blocks, ''),
  /** Whether recovery keys go to the `registered` address only, or to `any` address that the caller gives: unsafe. */
  recoveryEmail: setting('AUTH_RECOVERY_EMAIL', oneOf('registered', 'any'), 'registered'),
  /** Language of e-mails: `pt-BR` or `en`, unless `Accept-Language` of the request that causes one prefers the other. */
  mailLocale: setting('AUTH_MAIL_LOCALE', oneOf('pt-BR', 'en'), 'pt-BR'),
  /** Time zone (IANA name) of times in e-mails, in which a date-time of birth is read, and a date of birth isn't in the future. */
  timeZone: setting('AUTH_TIME_ZONE', timeZone, 'America/Sao_Paulo'),
  /** Revision of the interface that the base path serves: `1.0.0` or `1.0.2`. */
  defaultRevision: setting('AUTH_DEFAULT_REVISION', oneOf('1.0.0', '1.0.2'), '1.0.2'),
  /**
   * `predecessor`: the gateway also reads and writes what clients of the older implementation expect: `roles` as a list
   * beside `role`, institution `X` as none, midnight anywhere in Brazil as the day of birth, unescaped query parameters.
   */
  compatibility: optional('AUTH_COMPATIBILITY', oneOf('predecessor')),
  /** Whether the gateway serves its start page, the reference at `/docs`, the OpenAPI documents and the definitions. */
  docs: setting('AUTH_DOCS', oneOf('on', 'off'), 'on'),
  /** PEM files: certificate and key of the gRPC server and of metrics, or of `auth-gateway` to servers. Unset: no TLS. */
  tlsCert: optional('AUTH_TLS_CERT', pem('CERTIFICATE')),
  tlsKey: optional('AUTH_TLS_KEY', pem('PRIVATE KEY')),
  /** PEM file: authority that must have issued the peer's certificate. With it, callers must present a certificate. */
  tlsCa: optional('AUTH_TLS_CA', pem('CERTIFICATE')),
  /** Names in certificates (DNS names, else common name) of gateways, which may specify the addresses of their clients. */
  gatewayNames: setting('AUTH_GATEWAY_NAMES', list('names separated by commas', text), 'auth-gateway'),
  /** Multiplies the limits on attempts, sign-ups, look-ups and recovery requests. */
  limitFactor: setting('AUTH_LIMIT_FACTOR', factor, '1'),
  /**
   * Whether to refuse what the interface has and OWASP ASVS doesn't permit: secrets in query strings (400), logins by answers
   * (422) and saving them (403), the answer of a sign-up, which isn't stored, and a password update without the present
   * password or a sign-in of the last 15 minutes (400): `on` or `off`.
   */
  strict: setting('AUTH_STRICT', oneOf('on', 'off'), 'off'),
  /** How long the audit log is kept. */
  auditRetention: setting('AUTH_AUDIT_RETENTION', duration(1, 36_500 * 86_400), '400d'),
  /**
   * How long after the last sign-in an account is erased that its user signed up and never activated, at least `1d`;
   * `off` keeps it.
   */
  unactivatedRetention: setting('AUTH_UNACTIVATED_RETENTION', orOff(duration(86_400, 36_500 * 86_400)), '90d'),
  /** Whether a start migrates the tables; with `off` it fails until `auth-admin migrate up` has migrated them. */
  migrate: setting('AUTH_MIGRATE', oneOf('on', 'off'), 'on'),
  /**
   * How long a process reports not ready after SIGTERM before it closes its ports. Unset: `5s`, or 0 with the embedded
   * database, whose single process is behind no load balancer.
   */
  drain: optional('AUTH_DRAIN', duration(0, 600)),
  /** Least severe level that is logged: `trace`, `debug`, `info` (each call), `warn`, `error`, `fatal` or `silent`. */
  logLevel: setting('AUTH_LOG_LEVEL', oneOf('trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'), 'info'),
}

type Table = typeof table
type Read = { readonly [K in keyof Table]: Table[K] extends Setting<infer T> ? T : never }

/** The settings of a process, each described in the table above. */
export type Settings = Omit<Read, 'serverUrl'> & {
  readonly serverUrl: string
  /** Looks `databaseUrl` up again: the file of DATABASE_URL_FILE may have changed. */
  readonly currentDatabaseUrl: () => string | undefined
  /** Reads `smtpUrl` again: the file of SMTP_URL_FILE may have changed. Throws when it can't be read, or is invalid. */
  readonly currentSmtpUrl: () => string | undefined
  /** The origin of each value. */
  readonly origins: SettingsDescription
}

/** Describes each setting in the environment. It holds no secret. */
interface SettingsDescription {
  readonly settings: readonly {
    /** Name of its variable. */
    readonly name: string
    /** As given, or the default; `set` for a secret. Absent without a value. */
    readonly value?: string
    /** The variable itself, the file that its `_FILE` names, or the default. */
    readonly origin: 'environment' | 'file' | 'default'
    readonly default?: string
    readonly secret: boolean
  }[]
  /** Variables `AUTH_…` that aren't settings. */
  readonly unknown: readonly string[]
}

type Environment = Readonly<Record<string, string | undefined>>

/** An environment without byte order marks and line ends around the values, which files of variables bring. */
function plainEnvironment(env: Environment): Environment {
  return Object.fromEntries(Object.entries(env).map(([name, value]) => [name, value && plainText(value)]))
}

/** Name of every setting's variable, for help and documentation. */
export const settingNames: readonly string[] = Object.values(table).map(({ name }) => name)

/** Describes the settings in an environment, valid or not, in the order of their documentation. */
export function describeSettings(given: Environment): SettingsDescription {
  const env = plainEnvironment(given)
  const settings = Object.values(table).map(({ name, secret, fallback }: Setting<unknown>) => {
    const origin = env[name] ? 'environment' : secret && env[`${name}_FILE`] ? 'file' : 'default'
    const value = secret ? (origin === 'default' ? undefined : 'set') : env[name] || fallback
    return { name, value, origin, default: fallback, secret } as const
  })
  return Object.freeze({ settings, unknown: Object.keys(env).filter(name => /^AUTH_/.test(name) && !isKnown(name)) })
}

/**
 * Reads the settings from the environment. An empty variable counts as unset.
 * Throws one Error whose message names every invalid or missing setting, and what to do about it.
 */
export function readSettings(environment: Environment): Settings {
  const env = plainEnvironment(environment)
  const faults: string[] = []
  const values: Record<string, unknown> = {}
  for (const [field, entry] of Object.entries(table) as [string, Setting<unknown>][]) {
    try {
      const given = lookUp(entry, env) ?? entry.fallback
      values[field] = given === undefined ? undefined : entry.read(given)
    } catch (error) {
      if (!(error instanceof SettingError)) throw error
      faults.push(`${entry.name}: ${error.message}`)
    }
  }
  faults.push(...contradictions(values as Partial<Read>, env, faults), ...unknownNames(env))
  if (faults.length > 0) throw new Error(`Wrong settings:\n${faults.map(fault => `  ${fault}`).join('\n')}`)

  const read = values as Read
  return Object.freeze({
    ...read,
    serverUrl: read.serverUrl ?? formatAddress(read.grpcAddress),
    currentDatabaseUrl: () => lookUp(table.databaseUrl, env),
    currentSmtpUrl: () => {
      const given = lookUp(table.smtpUrl, env)
      return given === undefined ? undefined : table.smtpUrl.read(given)
    },
    origins: describeSettings(env),
  })
}

/** What is wrong with the values together. A file that can't be read is missing here, and among the `faults` already. */
function contradictions(values: Partial<Read>, env: Environment, faults: readonly string[]): string[] {
  const { tlsCert, tlsKey, tlsCa, httpTlsCert, httpTlsKey, adminAddress } = values
  const isSet = (name: string) => Boolean(env[name] || env[`${name}_FILE`])
  const isRead = (names: string) => !faults.some(fault => fault.startsWith(`${names}_`))
  return [
    values.issuer !== undefined &&
      values.audience !== undefined &&
      isForIssuer({ issuer: values.issuer, audience: values.audience }) &&
      `AUTH_AUDIENCE: must not be equal to AUTH_ISSUER; choose another, such as ${firstAudience}`,
    isSet('DATABASE_URL') &&
      !isSet('AUTH_MASTER_KEY') &&
      'AUTH_MASTER_KEY: is required with DATABASE_URL; make one with `openssl rand -base64 32` and keep it',
    isRead('AUTH_TLS') && tlsFault('AUTH_TLS', { cert: tlsCert, key: tlsKey, ca: tlsCa }),
    isRead('AUTH_HTTP_TLS') && tlsFault('AUTH_HTTP_TLS', { cert: httpTlsCert, key: httpTlsKey }),
    /^https:/.test(env.AUTH_SERVER_URL ?? '') &&
      !tlsCa &&
      'AUTH_SERVER_URL: https needs AUTH_TLS_CA, the authority of the servers’ certificates',
    adminAddress &&
      !isLoopback(adminAddress.host) &&
      !tlsCert &&
      'AUTH_ADMIN_ADDRESS: needs AUTH_TLS_CERT and AUTH_TLS_KEY unless it is a loopback address',
  ].filter(fault => typeof fault === 'string')
}

/** Whether a host can be reached from this machine only. */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || (isIPv4(host) && host.startsWith('127.'))
}

/** Whether a gRPC target names this machine only. */
export function isLocalTarget(target: string): boolean {
  const host = target.replace(/^dns:\/\/\//, '').replace(/:\d+$/, '')
  return isLoopback(host.replace(/^\[(.*)\]$/, '$1'))
}

/** Whether a URL names the machine itself, as an issuer derived from a default address does. */
export function isLocalUrl(text: string): boolean {
  if (!URL.canParse(text)) return false
  const host = new URL(text).hostname.replace(/^\[(.*)\]$/, '$1')
  return isLoopback(host) || host === '0.0.0.0' || host === '::'
}

/** Issuer and audience of a new registry with these settings. */
export function firstIssuer({
  issuer,
  audience,
  ...settings
}: Pick<Settings, 'issuer' | 'audience' | 'httpAddress' | 'httpTlsCert'>) {
  return {
    issuer: issuer ?? httpUrl(settings, settings.httpAddress ?? address(table.httpAddress.fallback!)),
    audience: audience ?? firstAudience,
  }
}

/** Whether a text is a URL that an issuer of tokens may have. */
export function isIssuerUrl(text: string): boolean {
  return URL.canParse(text) && /^https?:\/\//.test(text)
}

/** The base URL of a gateway with these settings that listens at an address. */
export function httpUrl({ httpTlsCert }: Pick<Settings, 'httpTlsCert'>, at: Address): string {
  return `${httpTlsCert ? 'https' : 'http'}://${formatAddress(at)}`
}

/** The URL of the metrics of a process with these settings, which serves them at an address. */
export function metricsUrl({ tlsCert }: Pick<Settings, 'tlsCert'>, at: Address): string {
  return `${tlsCert ? 'https' : 'http'}://${formatAddress(at)}/metrics`
}

/** An address in the notation of the settings, `host:port`, with IPv6 in brackets. */
export function formatAddress({ host, port }: Address): string {
  return `${isIP(host) === 6 ? `[${host}]` : host}:${port}`
}

function lookUp({ name, secret }: Setting<unknown>, env: Environment) {
  const path = secret ? env[`${name}_FILE`] : undefined
  if (!path) return withoutQuotes(env[name] || undefined)
  if (env[name]) throw new SettingError(`${name} and ${name}_FILE are both set; keep one`)
  let text: string
  withoutQuotes(path, `${name}_FILE`)
  try {
    text = decodePlainText(readFileSync(path))
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    // An installation, which alone needs it, refuses that it is missing.
    if (name === table.adminPassword.name && code === 'ENOENT') return undefined
    throw new SettingError(`the file that ${name}_FILE names ${code ? `can’t be read (${code})` : message}`)
  }
  if (text === '') throw new SettingError(`the file that ${name}_FILE names is empty`)
  return withoutQuotes(text, `the content of the file that ${name}_FILE names`)
}

/** Refuses a value in quotation marks. A shell removes them; where containers read files of variables, they are a part of it. */
function withoutQuotes<T extends string | undefined>(value: T, what = 'the value'): T {
  if (value === undefined || unquoted(value) === undefined) return value
  throw new SettingError(`${what} is in quotation marks, ${value[0]}…${value[0]}: leave them out`)
}

/** Names of variables that are settings, or that name the file of a setting. */
const known = Object.values(table).flatMap(({ name, secret }) => (secret ? [name, `${name}_FILE`] : [name]))

function isKnown(name: string): boolean {
  return known.includes(name) || name === 'AUTH_CONTEXT' // Read by auth-admin.
}

/** Finds mistyped names, whose defaults would silently apply. Names that resemble no setting belong to other programs. */
function unknownNames(env: Environment): string[] {
  return Object.keys(env)
    .filter(name => /^(AUTH|DATABASE_URL|SMTP_URL)_/.test(name) && !isKnown(name) && !ofKubernetes.test(name))
    .flatMap(name => {
      const [near] = known.filter(other => resembles(name, other)).sort((a, b) => distance(name, a) - distance(name, b))
      return near ? [`${name}: there is no such setting; did you mean ${near}?`] : []
    })
}

/** Variables that Kubernetes makes for each Service, such as AUTH_SERVICE_HOST for one with the name `auth`. */
const ofKubernetes = /_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$/

/** Whether a name may be a mistyped one: prefix and `_FILE` don't count, and of a longer name more may differ. */
function resembles(name: string, other: string): boolean {
  // DATABASE_URL_2 may be another program's.
  if (!name.startsWith('AUTH_')) return other.endsWith('_FILE') && distance(name, other) <= 2
  const [a, b] = [name, other].map(each => each.replace(/^AUTH_|_FILE$/g, '')) as [string, string]
  return distance(a, b) <= Math.max(2, b.length / 5)
}

/** Levenshtein distance: how many characters to insert, delete or replace. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++)
      next.push(Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1)))
    row = next
  }
  return row[b.length]!
}

/** The path of a PEM file (RFC 7468), which must hold a block of this kind. */
function pem(kind: Parameters<typeof readPem>[1]) {
  return checked(path => readPem(path, kind))
}

/** What is wrong with the TLS files of these settings; certificate and key must belong together. */
function tlsFault(names: string, { cert, key, ca }: Readonly<Record<string, string | undefined>>): string | undefined {
  if (!cert !== !key) return `${names}_CERT, ${names}_KEY: set both or neither`
  // Node.js 20 parses all its root certificates for an empty context: 20 ms.
  if (!cert && !ca) return undefined
  const read = (path: string | undefined) => (path === undefined ? undefined : readFileSync(path))
  try {
    createSecureContext({ cert: read(cert), key: read(key), ca: read(ca) })
    return undefined
  } catch (error) {
    const all = `${names}_CERT, ${names}_KEY${ca ? `, ${names}_CA` : ''}`
    return `${all}: can’t be used together (${(error as { code?: string }).code})`
  }
}

function text(value: string): string {
  if (/[\u0000-\u001f\u007f]/.test(value)) throw new SettingError('must not hold control characters')
  return value
}

function username(value: string): string {
  if (isReservedUsername(value)) throw new SettingError('this username is reserved; choose another')
  return text(value)
}

function audience(value: string): string {
  if (isAdministrationAudience(value))
    throw new SettingError(
      `${administrationAudience} is for tokens of administrators; choose another, such as ${firstAudience}`,
    )
  return text(value)
}

function address(value: string): Address {
  const { bracketed, plain, digits } =
    /^(?:\[(?<bracketed>[^\]]+)\]|(?<plain>[^:[\]\s/]+)):(?<digits>\d{1,5})$/.exec(value)?.groups ?? {}
  const host = bracketed ?? plain
  if (host === undefined || (bracketed !== undefined && isIP(bracketed) !== 6) || Number(digits) > 65535)
    throw new SettingError('expected host:port, such as 127.0.0.1:8080 or [::1]:8080, with a port from 0 to 65535')
  return Object.freeze({ host, port: Number(digits) })
}

/** The same, or undefined for `off`. */
function orOff<T>(read: (value: string) => T) {
  return (value: string): T | undefined => {
    if (value === 'off') return undefined
    try {
      return read(value)
    } catch (error) {
      throw new SettingError(`${(error as Error).message}, or off`)
    }
  }
}

/** A gRPC target: host:port, written as a URL or not, or a name whose addresses get calls in turn. */
function target(value: string): string {
  if (value.includes(','))
    throw new SettingError('names several addresses; name one: a server, or a load balancer before several')
  const [, scheme = '', rest = ''] = /^(dns:\/\/\/|https?:\/\/)?(.*?)\/?$/.exec(value) ?? []
  try {
    return (scheme === 'dns:///' ? scheme : '') + formatAddress(address(rest))
  } catch {
    throw new SettingError('expected host:port, such as auth.example:50051, or dns:///auth.example:50051')
  }
}

/** Reads a master key. Throws an Error whose message says what is expected. */
export function readMasterKey(value: string): Buffer {
  const hexadecimal = /^(?:[0-9a-f]{2}){32,}$/i.test(value)
  const base64 = /^[A-Za-z0-9+/_-]+={0,2}$/.test(value)
  const bytes = hexadecimal ? Buffer.from(value, 'hex') : base64 ? Buffer.from(value, 'base64') : Buffer.alloc(0)
  if (bytes.length < 32)
    throw new SettingError(
      'expected at least 32 bytes in base64 or hexadecimal; make them with `openssl rand -base64 32`',
    )
  return bytes
}
