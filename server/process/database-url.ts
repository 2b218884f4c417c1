/**
 * The URL of a database as libpq writes it (PostgreSQL's documentation, "Connection URIs"):
 * `postgres://user:password@host:port,host:port/database?parameter=value`. What it leaves out the environment may say
 * (PGUSER, PGPASSWORD, PGPASSFILE, PGDATABASE, PGHOST, PGPORT). Who connects is database/connections.ts.
 */
import { readFileSync } from 'node:fs'
import { type ConnectionOptions, createSecureContext } from 'node:tls'

/** Where one server is; what is undefined the environment or the default says. */
export interface Host {
  /** Name, IP address without brackets, or folder of a Unix socket. */
  readonly host: string | undefined
  readonly port: number | undefined
}

/** What a database URL says. */
export interface DatabaseTarget {
  /** In the order in which they are asked. */
  readonly hosts: readonly Host[]
  readonly user: string | undefined
  readonly password: string | undefined
  readonly database: string | undefined
  /** How TLS is spoken; undefined where it isn't. */
  readonly tls: ConnectionOptions | undefined
  /** Goes on without TLS where the server has none (`sslmode=prefer`). */
  readonly plainToo: boolean
  /** Takes a server only when its sessions can write. */
  readonly writable: boolean
  /** Milliseconds that a server has to accept a connection. */
  readonly connectTimeout: number
  readonly applicationName: string
  /** Command-line options for the server. */
  readonly options: string | undefined
}

const modes = ['disable', 'prefer', 'require', 'verify-ca', 'verify-full'] as const

/** Parameters that are understood; another one is refused, since a mistyped `sslmode` would go unnoticed. */
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
 * Reads a database URL, and the files of certificates that it names. Throws an Error that says what is wrong and repeats
 * nothing of the URL, which holds a password.
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
    // A standby is of no use here, whoever asks for one.
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
    if (!known.includes(name)) throw new Error(`knows no parameters but ${known.join(', ')}`)
    if (value !== '') given.set(name, decode(value)!)
  }
  return given
}

function readHost(text: string, fallback: string | undefined): Host {
  const { bracketed, plain, port } =
    /^(?:\[(?<bracketed>[^\]]+)\]|(?<plain>[^:[\]]*))(?::(?<port>[^:]*))?$/.exec(text)?.groups ?? {}
  if (bracketed === undefined && plain === undefined)
    throw new Error('has a host that is none: expected host:port, [IPv6]:port, or several separated by commas')
  return { host: decode(bracketed ?? plain), port: readPort(port || fallback) }
}

/** The hosts of the parameters `host` and `port`: as many ports as hosts, one for all, or none. */
function readHostList(hosts: string, ports = ''): Host[] {
  const [names, numbers] = [hosts.split(','), ports.split(',')]
  if (numbers.length > 1 && numbers.length !== names.length)
    throw new Error('needs as many ports as hosts, or one port')
  return names.map((name, index) => ({
    host: name || undefined,
    port: readPort(numbers.length > 1 ? numbers[index] : numbers[0]),
  }))
}

function readPort(text: string | undefined): number | undefined {
  if (!text) return undefined
  if (!/^\d{1,5}$/.test(text) || Number(text) < 1 || Number(text) > 65535)
    throw new Error('has a port that is none: expected a number from 1 to 65535')
  return Number(text)
}

function readSeconds(text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  if (!/^\d{1,2}$/.test(text) || Number(text) < 1) throw new Error('connect_timeout: expected seconds from 1 to 99')
  return Number(text) * 1000
}

/** What libpq means by a mode: only the verify modes and an authority of one's own tell who the server is. */
function readTls(mode: (typeof modes)[number], given: ReadonlyMap<string, string>): ConnectionOptions | undefined {
  if (mode === 'disable') return undefined
  const ca = readPem('sslrootcert', 'CERTIFICATE', given)
  if (mode === 'verify-ca' && !ca)
    throw new Error('sslmode=verify-ca needs sslrootcert: whoever has a certificate of any authority would do')
  const cert = readPem('sslcert', 'CERTIFICATE', given)
  const key = readPem('sslkey', 'PRIVATE KEY', given)
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

function readPem(name: string, kind: string, given: ReadonlyMap<string, string>): Buffer | undefined {
  const path = given.get(name)
  if (path === undefined) return undefined
  let content: Buffer
  try {
    content = readFileSync(path)
  } catch (error) {
    throw new Error(`${name}: the file can’t be read (${(error as NodeJS.ErrnoException).code})`)
  }
  if (!content.includes(`${kind}-----`))
    throw new Error(`${name}: the file holds no PEM block of a ${kind.toLowerCase()}`)
  return content
}

function oneOf<T extends string>(allowed: readonly T[], name: string, value: string): T {
  if (!(allowed as readonly string[]).includes(value)) throw new Error(`${name}: expected ${allowed.join(', ')}`)
  return value as T
}

/** A percent sign that encodes nothing stands for itself, as many a password has one. */
function decode(text: string | undefined): string | undefined {
  if (!text) return undefined
  try {
    return decodeURIComponent(text.replace(/%(?![0-9a-f]{2})/gi, '%25'))
  } catch {
    throw new Error('has a percent-encoding that is no UTF-8')
  }
}
