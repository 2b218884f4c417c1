/**
 * Database URLs in the notation of libpq (PostgreSQL's documentation, "Connection URIs"):
 * `postgres://user:password@host:port,host:port/database?parameter=value`. The environment may supply what they omit
 * (PGUSER, PGPASSWORD, PGPASSFILE, PGDATABASE, PGHOST, PGPORT, PGOPTIONS, PGSSLMODE). database/connections.ts connects.
 */
import { readFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { type ConnectionOptions, createSecureContext, type SecureVersion } from 'node:tls'
import { readPem } from './pem.js'

/** The address of one server; the environment or a default replaces what is undefined. */
export interface Host {
  /** Name, IP address without brackets, or folder of a Unix socket. */
  readonly host: string | undefined
  /** The IP address to connect to, where the URL names it beside the host. */
  readonly address?: string
  readonly port: number | undefined
}

/** What a database URL specifies. */
export type DatabaseTarget = ReturnType<typeof readDatabaseUrl>

/** How the server must authenticate the service, and itself. */
export type Authentication = ReturnType<typeof readAuthentication>

/** Settings that the service needs in all sessions (database/session-settings.ts); `options` can't change them. */
const fixedSettings = [
  'client_encoding',
  'DateStyle',
  'TimeZone',
  'standard_conforming_strings',
  'default_transaction_isolation',
  'IntervalStyle',
  'array_nulls',
  'bytea_output',
  'extra_float_digits',
] as const
export type FixedSetting = (typeof fixedSettings)[number]

const modes = ['disable', 'allow', 'prefer', 'require', 'verify-ca', 'verify-full'] as const

const words = (text: string) => text.trim().split(/\s+/)

/** Parameters that have an effect. */
const used = words(`
  host hostaddr port user password passfile dbname
  sslmode ssl sslrootcert sslcert sslkey sslpassword sslcertmode sslcrl sslnegotiation
  ssl_min_protocol_version ssl_max_protocol_version channel_binding require_auth
  target_session_attrs load_balance_hosts connect_timeout keepalives keepalives_idle
  application_name fallback_application_name options`)

/**
 * Parameters of libpq that promise nothing which the service doesn't do anyway, or that concern what it doesn't use: the encoding
 * is UTF-8, whatever is named, and a silent connection is closed after seconds (database/connections.ts).
 */
const ignored = words(`
  client_encoding keepalives_interval keepalives_count tcp_user_timeout
  sslcompression sslsni sslkeylogfile krbsrvname gsslib gssdelegation max_protocol_version
  oauth_issuer oauth_client_id oauth_client_secret oauth_scope oauth_ca_file`)

/** Parameters of libpq that can't be honored: the values with which they ask for nothing, and what to do instead. */
const refused: Readonly<Record<string, { readonly idle?: RegExp; readonly instead: string }>> = {
  gssencmode: { idle: /^(disable|prefer)$/, instead: 'encryption by GSSAPI isn’t supported: use sslmode=verify-full' },
  requirepeer: {
    instead: 'the owner of a Unix socket isn’t checked: leave it out, and protect the folder of the socket',
  },
  sslcrldir: { instead: 'folders aren’t supported: name a file in sslcrl' },
  min_protocol_version: { idle: /^3\.0$/, instead: 'the service speaks version 3.0: leave it out' },
  replication: { idle: /^(false|off|no|0)$/, instead: 'the service needs an ordinary connection: leave it out' },
  scram_client_key: { instead: 'keys of SCRAM aren’t supported: use password' },
  scram_server_key: { instead: 'keys of SCRAM aren’t supported: use password' },
  service: { instead: 'service files aren’t supported: put host, user and database into the URL' },
  servicefile: { instead: 'service files aren’t supported: put host, user and database into the URL' },
}

const known = [...used, ...ignored, ...Object.keys(refused)]

/**
 * Reads a database URL, and the files that it names. Throws an Error that says what is wrong. It quotes nothing of the URL,
 * which holds a password, but names of parameters.
 */
export function readDatabaseUrl(url: string) {
  const { credentials, authority, path, query } =
    /^postgres(?:ql)?:\/\/(?:(?<credentials>[^/?]*)@)?(?<authority>[^/?]*)(?:\/(?<path>[^?]*))?(?:\?(?<query>.*))?$/.exec(
      url,
    )?.groups ?? {}
  if (authority === undefined) throw new Error('expected a URL postgres://user:password@host:port/database')
  const { user, password } = /^(?<user>[^:]*)(?::(?<password>.*))?$/s.exec(credentials ?? '')?.groups ?? {}
  const given = readParameters(query)

  const [host, address] = [given.get('host'), given.get('hostaddr')]
  const isListed = host !== undefined || address !== undefined
  const named = authority.split(',').map(text => readHost(text, isListed ? undefined : given.get('port')))
  // A host in the query replaces only the hosts before it, not their ports.
  const ports = given.get('port') ?? named.map(({ port }) => port ?? '').join(',')
  const hosts = isListed ? readHostList(host, ports, address) : named
  const mode = readMode(given)
  const authentication = readAuthentication(given, mode)
  const attributes = given.get('target_session_attrs') ?? (hosts.length > 1 ? 'read-write' : 'any')
  const balance = oneOf(['disable', 'random'], 'load_balance_hosts', given.get('load_balance_hosts') ?? 'disable')
  const direct = oneOf(['postgres', 'direct'], 'sslnegotiation', given.get('sslnegotiation') ?? 'postgres') === 'direct'
  if (direct && isWeak(mode)) throw new Error('sslnegotiation=direct needs sslmode=require or stricter')
  return {
    /** In the order in which they are tried. */
    hosts: balance === 'random' ? shuffle(hosts) : hosts,
    user: given.get('user') ?? decode(user),
    password: given.get('password') ?? decode(password),
    /** Lines of a password file, which apply without a password. */
    passwords: readPasswords(given.get('passfile')),
    database: given.get('dbname') ?? decode(path),
    /** Options of TLS; undefined without TLS. */
    tls: readTls(mode, given),
    /** Begins with TLS, without asking the server. */
    direct,
    /** `sslmode`. */
    mode,
    /** Connects without TLS where the server has none. */
    plainToo: (mode === 'prefer' || mode === 'allow') && !authentication.bindsChannel,
    /** Uses a server only if its sessions can write: a standby is of no use here. */
    writable: oneOf(['any', 'read-write', 'primary'], 'target_session_attrs', attributes) !== 'any',
    /** Milliseconds that a server has to accept a connection. */
    connectTimeout: readConnectTimeout(given.get('connect_timeout')),
    /** Milliseconds of silence after which the operating system probes a connection; undefined: never. */
    keepAliveDelay:
      given.get('keepalives') === '0'
        ? undefined
        : (readSeconds('keepalives_idle', given.get('keepalives_idle')) || 10) * 1000,
    authentication,
    applicationName: given.get('application_name') ?? given.get('fallback_application_name') ?? 'auth',
    /** Command-line options for the server. */
    options: readOptions(given.get('options') ?? process.env.PGOPTIONS),
  }
}

function readParameters(query: string | undefined): ReadonlyMap<string, string> {
  const given = new Map<string, string>()
  for (const pair of query ? query.split('&') : []) {
    const [, name = '', value = ''] = /^([^=]*)=?(.*)$/s.exec(pair) ?? []
    if (!known.includes(name)) throw new Error(unknownParameter(name, query!))
    if (value !== '') given.set(name, decode(value)!)
  }
  for (const [name, { idle, instead }] of Object.entries(refused)) {
    const value = given.get(name)
    if (value !== undefined && !idle?.test(value)) throw new Error(`${name}: ${instead}`)
  }
  return given
}

/** Names an unknown parameter, unless the query may be a part of a password with a question mark. */
function unknownParameter(name: string, query: string): string {
  const isName = /^[a-z][a-z_]{0,39}$/i.test(name) && !query.includes('@')
  return `unknown parameter${isName ? ` ${name}` : ''}: expected one of ${[...used, ...ignored].join(', ')}`
}

/** `allow` would try a connection without TLS first, and promises nothing else: it is taken as `prefer`. */
function readMode(given: ReadonlyMap<string, string>): (typeof modes)[number] {
  const isSystem = given.get('sslrootcert') === 'system'
  if (given.has('ssl')) oneOf(['true'], 'ssl', given.get('ssl')!)
  const short = given.has('ssl') ? 'require' : undefined
  const fallback = process.env.PGSSLMODE ?? (isSystem ? 'verify-full' : 'prefer')
  const mode = oneOf(modes, 'sslmode', given.get('sslmode') ?? short ?? fallback)
  if (isSystem && mode !== 'verify-full') throw new Error('sslrootcert=system needs sslmode=verify-full')
  return mode
}

const isWeak = (mode: (typeof modes)[number]) => ['disable', 'allow', 'prefer'].includes(mode)

/** Methods in `require_auth` of libpq. */
const methods = ['password', 'md5', 'gss', 'sspi', 'scram-sha-256', 'oauth', 'none']

/** With `require_auth`, the server may use only the listed methods, or only others, if all begin with `!`. */
function readAuthentication(given: ReadonlyMap<string, string>, mode: (typeof modes)[number]) {
  const binding = given.get('channel_binding') ?? 'prefer'
  const bindsChannel = oneOf(['disable', 'prefer', 'require'], 'channel_binding', binding) === 'require'
  if (bindsChannel && mode === 'disable')
    throw new Error('channel_binding=require needs TLS: use another sslmode than disable')
  const required = given.get('require_auth')
  const listed = required?.split(',').map(text => text.trim()) ?? []
  const excluded = listed.filter(text => text.startsWith('!')).map(text => text.slice(1))
  for (const name of [...listed.filter(text => !text.startsWith('!')), ...excluded])
    oneOf(methods, 'require_auth', name)
  if (excluded.length > 0 && excluded.length < listed.length)
    throw new Error('require_auth: begin all methods with !, or none')
  const parameters = [
    bindsChannel && 'channel_binding=require',
    required !== undefined && `require_auth=${listed.join(',')}`,
  ]
  return {
    /** The parameter that requires it, for messages; undefined without requirements. */
    parameter: parameters.filter(Boolean).join(' and ') || undefined,
    /** Whether only SCRAM bound to the TLS connection (RFC 5929) may be used. */
    bindsChannel,
    /** Whether the server may use a method, by its name in `require_auth`. */
    allows: (method: string) =>
      (!bindsChannel || method === 'scram-sha-256') &&
      (listed.length === 0 || (excluded.length > 0 ? !excluded.includes(method) : listed.includes(method))),
  }
}

/** Refuses options that set what the service sets itself. */
function readOptions(options: string | undefined): string | undefined {
  const names = options?.matchAll(/(?:-c\s*|--)([\w-]+)\s*=/g) ?? []
  for (const [, name] of names) {
    const fixed = fixedSettings.find(each => each.toLowerCase() === name!.toLowerCase().replaceAll('-', '_'))
    if (fixed) throw new Error(`options: leave out ${fixed}, which the service sets itself`)
  }
  return options
}

/** The lines of a password file, as of libpq. */
function readPasswords(path: string | undefined): readonly string[] {
  if (path === undefined) return []
  try {
    return readFileSync(path, 'utf8').split(/\r?\n/)
  } catch (error) {
    throw new Error(`passfile: the file can’t be read (${(error as NodeJS.ErrnoException).code})`)
  }
}

/** Returns the password of the first line `host:port:database:user:password` that matches; `*` matches everything. */
export function passwordIn(lines: readonly string[], wanted: readonly [...string[]]): string | undefined {
  for (const line of lines) {
    if (line.startsWith('#')) continue
    const fields = (line.match(/(?:\\.|[^:\\])*(?::|$)/g) ?? []).map(text => text.replace(/:$/, ''))
    const plain = fields.map(text => text.replace(/\\(.)/g, '$1'))
    if (wanted.every((text, index) => fields[index] === '*' || plain[index] === text)) return plain[wanted.length]
  }
  return undefined
}

function shuffle<T>(list: readonly T[]): T[] {
  return list
    .map(each => ({ each, at: Math.random() }))
    .sort((a, b) => a.at - b.at)
    .map(({ each }) => each)
}

function readHost(text: string, fallback: string | undefined): Host {
  const { bracketed, plain, port } =
    /^(?:\[(?<bracketed>[^\]]+)\]|(?<plain>[^:[\]]*))(?::(?<port>[^:]*))?$/.exec(text)?.groups ?? {}
  if (bracketed === undefined && plain === undefined)
    throw new Error('invalid host: expected host:port, [IPv6]:port, or several separated by commas')
  return { host: decode(bracketed ?? plain), port: readPort(port || fallback) }
}

/** The hosts of the parameters `host`, `hostaddr` and `port`: as many ports as hosts, one for all, or none. */
function readHostList(hosts: string | undefined, ports: string, addresses?: string): Host[] {
  const [names, numbers, ips] = [(hosts ?? addresses)!.split(','), ports.split(','), addresses?.split(',')]
  if (numbers.length > 1 && numbers.length !== names.length)
    throw new Error('expected as many ports as hosts, or one port')
  if (ips && ips.length !== names.length) throw new Error('hostaddr: expected as many addresses as hosts')
  if (ips?.some(ip => ip !== '' && isIP(ip) === 0)) throw new Error('hostaddr: expected IP addresses')
  return names.map((name, index) => ({
    host: name || undefined,
    port: readPort(numbers.length > 1 ? numbers[index] : numbers[0]),
    address: ips?.[index] || undefined,
  }))
}

function readPort(text: string | undefined): number | undefined {
  if (!text) return undefined
  if (!/^\d{1,5}$/.test(text) || Number(text) < 1 || Number(text) > 65535)
    throw new Error('invalid port: expected a number from 1 to 65535')
  return Number(text)
}

function readSeconds(name: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  if (!/^-?\d{1,9}$/.test(text)) throw new Error(`${name}: expected seconds`)
  return Math.max(0, Number(text))
}

/** Milliseconds; without a limit in the URL, which libpq writes as 0, the default: no start waits forever. */
function readConnectTimeout(text: string | undefined): number {
  return Math.min(readSeconds('connect_timeout', text) || 3, 600) * 1000
}

/** The meaning of a mode in libpq: only the verify modes, or a private authority, authenticate the server. */
function readTls(mode: (typeof modes)[number], given: ReadonlyMap<string, string>): ConnectionOptions | undefined {
  if (mode === 'disable') return undefined
  const file = (name: string, kind: Parameters<typeof readPem>[1]) => {
    const path = given.get(name)
    if (path === undefined) return undefined
    try {
      return readPem(path, kind)
    } catch (error) {
      throw new Error(`${name}: ${(error as Error).message}`)
    }
  }
  const ca = given.get('sslrootcert') === 'system' ? undefined : file('sslrootcert', 'CERTIFICATE')
  const certificates = oneOf(['disable', 'allow', 'require'], 'sslcertmode', given.get('sslcertmode') ?? 'allow')
  if (certificates === 'require')
    throw new Error('sslcertmode=require: whether the server asks for a certificate isn’t checked: leave it out')
  if (mode === 'verify-ca' && !ca)
    throw new Error('sslmode=verify-ca needs sslrootcert: it would accept a certificate of any public authority')
  const own = certificates === 'allow'
  const cert = own ? file('sslcert', 'CERTIFICATE') : undefined
  const key = own ? file('sslkey', 'PRIVATE KEY') : undefined
  if (!cert !== !key) throw new Error('sslcert and sslkey: set both or neither')
  const files = {
    ca,
    crl: file('sslcrl', 'X509 CRL'),
    cert,
    key: cert && key,
    passphrase: given.get('sslpassword'),
    minVersion: readProtocol('ssl_min_protocol_version', given),
    maxVersion: readProtocol('ssl_max_protocol_version', given),
  }
  try {
    if (Object.values(files).some(each => each !== undefined)) createSecureContext(files)
  } catch (error) {
    throw new Error(`sslrootcert, sslcert, sslkey: can’t be used together (${(error as { code?: string }).code})`)
  }
  if (mode === 'verify-full') return files
  if (mode === 'verify-ca' || (mode === 'require' && ca)) return { ...files, checkServerIdentity: () => undefined }
  return { ...files, rejectUnauthorized: false }
}

function readProtocol(name: string, given: ReadonlyMap<string, string>): SecureVersion | undefined {
  const value = given.get(name)
  return value === undefined ? undefined : oneOf(['TLSv1', 'TLSv1.1', 'TLSv1.2', 'TLSv1.3'] as const, name, value)
}

function oneOf<T extends string>(allowed: readonly T[], name: string, value: string): T {
  if (!(allowed as readonly string[]).includes(value)) throw new Error(`${name}: expected ${allowed.join(', ')}`)
  return value as T
}

/** Decodes percent-encoding. A percent sign that encodes nothing stays, since passwords may contain one. */
function decode(text: string | undefined): string | undefined {
  if (!text) return undefined
  try {
    return decodeURIComponent(text.replace(/%(?![0-9a-f]{2})/gi, '%25'))
  } catch {
    throw new Error('invalid percent-encoding: expected UTF-8')
  }
}
