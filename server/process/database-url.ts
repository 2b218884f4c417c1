/**
 * Database URLs in the notation of libpq (PostgreSQL's documentation, "Connection URIs"):
 * `postgres://user:password@host:port,host:port/database?parameter=value`. The environment may supply what they omit
 * (PGUSER, PGPASSWORD, PGPASSFILE, PGDATABASE, PGHOST, PGPORT). database/connections.ts connects.
 */
import { type ConnectionOptions, createSecureContext } from 'node:tls'
import { readPem } from './pem.js'

/** The address of one server; the environment or a default replaces what is undefined. */
export interface Host {
  /** Name, IP address without brackets, or folder of a Unix socket. */
  readonly host: string | undefined
  readonly port: number | undefined
}

/** What a database URL specifies. */
export interface DatabaseTarget {
  /** In the order in which they are tried. */
  readonly hosts: readonly Host[]
  readonly user: string | undefined
  readonly password: string | undefined
  readonly database: string | undefined
  /** Options of TLS; undefined without TLS. */
  readonly tls: ConnectionOptions | undefined
  /** Connects without TLS where the server has none (`sslmode=prefer`). */
  readonly plainToo: boolean
  /** Uses a server only if its sessions can write. */
  readonly writable: boolean
  /** Milliseconds that a server has to accept a connection. */
  readonly connectTimeout: number
  readonly applicationName: string
  /** Command-line options for the server. */
  readonly options: string | undefined
}

const modes = ['disable', 'prefer', 'require', 'verify-ca', 'verify-full'] as const

/** Supported parameters. Others are refused, since a mistyped `sslmode` would go unnoticed. */
const known = [
  'host',
  'port',
  'user',
  'password',
  'dbname',
  'sslmode',
  'sslrootcert',
  'sslcert',
  'sslkey',
  'sslpassword',
  'target_session_attrs',
  'connect_timeout',
  'application_name',
  'options',
]

/**
 * Reads a database URL, and the certificate files that it names. Throws an Error that says what is wrong and quotes nothing
 * of the URL, which holds a password.
 */
export function readDatabaseUrl(url: string): DatabaseTarget {
  const { credentials, authority, path, query } =
    /^postgres(?:ql)?:\/\/(?:(?<credentials>[^/?]*)@)?(?<authority>[^/?]*)(?:\/(?<path>[^?]*))?(?:\?(?<query>.*))?$/.exec(
      url,
    )?.groups ?? {}
  if (authority === undefined) throw new Error('expected a URL postgres://user:password@host:port/database')
  const { user, password } = /^(?<user>[^:]*)(?::(?<password>.*))?$/s.exec(credentials ?? '')?.groups ?? {}
  const given = readParameters(query)

  const hosts = given.has('host')
    ? readHostList(given.get('host')!, given.get('port'))
    : authority.split(',').map(text => readHost(text, given.get('port')))
  const mode = oneOf(modes, 'sslmode', given.get('sslmode') ?? process.env.PGSSLMODE ?? 'prefer')
  const attributes = given.get('target_session_attrs') ?? (hosts.length > 1 ? 'read-write' : 'any')
  return {
    hosts,
    user: given.get('user') ?? decode(user),
    password: given.get('password') ?? decode(password),
    database: given.get('dbname') ?? decode(path),
    tls: readTls(mode, given),
    plainToo: mode === 'prefer',
    // A standby is of no use here.
    writable: oneOf(['any', 'read-write', 'primary'], 'target_session_attrs', attributes) !== 'any',
    connectTimeout: readSeconds(given.get('connect_timeout')) ?? 3_000,
    applicationName: given.get('application_name') ?? 'auth',
    options: given.get('options'),
  }
}

function readParameters(query: string | undefined): ReadonlyMap<string, string> {
  const given = new Map<string, string>()
  for (const pair of query ? query.split('&') : []) {
    const [, name = '', value = ''] = /^([^=]*)=?(.*)$/s.exec(pair) ?? []
    if (!known.includes(name)) throw new Error(`unknown parameter: expected one of ${known.join(', ')}`)
    if (value !== '') given.set(name, decode(value)!)
  }
  return given
}

function readHost(text: string, fallback: string | undefined): Host {
  const { bracketed, plain, port } =
    /^(?:\[(?<bracketed>[^\]]+)\]|(?<plain>[^:[\]]*))(?::(?<port>[^:]*))?$/.exec(text)?.groups ?? {}
  if (bracketed === undefined && plain === undefined)
    throw new Error('invalid host: expected host:port, [IPv6]:port, or several separated by commas')
  return { host: decode(bracketed ?? plain), port: readPort(port || fallback) }
}

/** The hosts of the parameters `host` and `port`: as many ports as hosts, one for all, or none. */
function readHostList(hosts: string, ports = ''): Host[] {
  const [names, numbers] = [hosts.split(','), ports.split(',')]
  if (numbers.length > 1 && numbers.length !== names.length)
    throw new Error('expected as many ports as hosts, or one port')
  return names.map((name, index) => ({
    host: name || undefined,
    port: readPort(numbers.length > 1 ? numbers[index] : numbers[0]),
  }))
}

function readPort(text: string | undefined): number | undefined {
  if (!text) return undefined
  if (!/^\d{1,5}$/.test(text) || Number(text) < 1 || Number(text) > 65535)
    throw new Error('invalid port: expected a number from 1 to 65535')
  return Number(text)
}

function readSeconds(text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  if (!/^\d{1,2}$/.test(text) || Number(text) < 1) throw new Error('connect_timeout: expected seconds from 1 to 99')
  return Number(text) * 1000
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
  const ca = file('sslrootcert', 'CERTIFICATE')
  if (mode === 'verify-ca' && !ca)
    throw new Error('sslmode=verify-ca needs sslrootcert: it would accept a certificate of any public authority')
  const cert = file('sslcert', 'CERTIFICATE')
  const key = file('sslkey', 'PRIVATE KEY')
  if (!cert !== !key) throw new Error('sslcert and sslkey: set both or neither')
  const passphrase = given.get('sslpassword')
  const files = { ...(ca && { ca }), ...(cert && { cert, key }), ...(passphrase && { passphrase }) }
  try {
    if (Object.keys(files).length > 0) createSecureContext(files)
  } catch (error) {
    throw new Error(`sslrootcert, sslcert, sslkey: can’t be used together (${(error as { code?: string }).code})`)
  }
  if (mode === 'verify-full') return files
  if (mode === 'verify-ca' || (mode === 'require' && ca)) return { ...files, checkServerIdentity: () => undefined }
  return { ...files, rejectUnauthorized: false }
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
