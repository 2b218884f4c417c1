/**
 * Database URLs, `postgres://user:password@host:port/database?parameter=value`, as pg-connection-string reads them, with the
 * meaning that libpq gives to `sslmode`. The package ignores what it doesn't know; here every other parameter is refused, and
 * no PG… variable of the environment completes a URL. database/connections.ts connects.
 */
import { type ConnectionOptions, createSecureContext } from 'node:tls'
import { parse } from 'pg-connection-string'
import { readPem } from './pem.js'

/** What a database URL specifies. */
export type DatabaseTarget = ReturnType<typeof readDatabaseUrl>

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

const modes = ['disable', 'prefer', 'require', 'verify-ca', 'verify-full'] as const

const known = [
  ...['host', 'port', 'user', 'password', 'sslmode', 'sslrootcert', 'sslcert', 'sslkey', 'sslnegotiation'],
  ...['channel_binding', 'connect_timeout', 'application_name', 'fallback_application_name', 'options'],
]

/**
 * Reads a database URL, and the files that it names. Throws an Error that says what is wrong. It quotes nothing of the URL,
 * which holds a password, but names of parameters.
 */
export function readDatabaseUrl(url: string) {
  const [, authority, path = ''] = /^postgres(?:ql)?:\/\/([^/?#]*)([^#]*)$/s.exec(url) ?? []
  if (authority === undefined) throw new Error('expected a URL postgres://user:password@host:port/database')
  const query = /\?(.*)$/s.exec(path)?.[1] ?? ''
  // As for libpq, the last of several applies.
  const given = new Map(new URLSearchParams(query))
  for (const name of given.keys()) if (!known.includes(name)) throw new Error(unknownParameter(name, query))
  if ([authority.replace(/^.*@/s, ''), given.get('host'), given.get('port')].some(text => text?.includes(',')))
    throw new Error(
      'expected one host: put a proxy that finds the primary in front of several, or use the address that your cloud has for it',
    )
  const mode = oneOf(modes, 'sslmode', given.get('sslmode') || 'prefer')
  const binding = oneOf(['disable', 'prefer', 'require'], 'channel_binding', given.get('channel_binding') || 'prefer')
  if (binding === 'require' && ['disable', 'prefer'].includes(mode))
    throw new Error('channel_binding=require needs TLS: use sslmode=require or stricter')
  const sslnegotiation = oneOf(['postgres', 'direct'], 'sslnegotiation', given.get('sslnegotiation') || 'postgres')
  if (sslnegotiation === 'direct' && ['disable', 'prefer'].includes(mode))
    throw new Error('sslnegotiation=direct needs sslmode=require or stricter')
  const config = read(url, mode, given)
  if (!(Number(config.port || 5432) >= 1 && Number(config.port || 5432) <= 65_535)) throw new Error(badAddress)
  const user = config.user || 'postgres'
  return {
    /** Configuration of the driver. Nothing is left for a PG… variable of the environment or a password file. */
    config: {
      host: config.host || 'localhost',
      port: Number(config.port || 5432),
      user,
      // The driver sends no password where it has none, and asks no other source for a function’s.
      password: config.password || (() => ''),
      database: config.database || user,
      // A Unix socket has no TLS.
      ssl: mode === 'disable' || config.host?.startsWith('/') ? false : (config.ssl as ConnectionOptions),
      sslnegotiation,
      enableChannelBinding: binding === 'require',
      application_name: config.application_name || config.fallback_application_name || 'auth',
      options: readOptions(config.options),
      connectionTimeoutMillis: readSeconds(given.get('connect_timeout')) * 1000,
    },
    /** `sslmode`. With `prefer`, a connection does without TLS where the server has none. */
    mode,
  }
}

/** Lets the package read the URL and its files, which must fit together. */
function read(url: string, mode: string, given: ReadonlyMap<string, string>) {
  const file = (name: string, kind: Parameters<typeof readPem>[1]) => {
    const path = given.get(name)
    try {
      return path ? readPem(path, kind) : undefined
    } catch (error) {
      throw new Error(`${name}: ${(error as Error).message}`)
    }
  }
  const ca = file('sslrootcert', 'CERTIFICATE')
  const cert = file('sslcert', 'CERTIFICATE')
  const key = file('sslkey', 'PRIVATE KEY')
  if (!cert !== !key) throw new Error('sslcert and sslkey: set both or neither')
  if (mode === 'verify-ca' && !ca)
    throw new Error('sslmode=verify-ca needs sslrootcert: it would accept a certificate of any public authority')
  try {
    if (ca || cert) createSecureContext({ ca, cert, key })
  } catch (error) {
    throw new Error(`sslrootcert, sslcert, sslkey: can’t be used together (${(error as { code?: string }).code})`)
  }
  try {
    return parse(given.get('sslmode') ? url : withMode(url, mode), { useLibpqCompat: true })
  } catch (error) {
    throw new Error(error instanceof URIError ? 'invalid percent-encoding: expected UTF-8' : badAddress)
  }
}

const badAddress = 'invalid host or port: expected host:port or [IPv6]:port, with a port from 1 to 65535'

function withMode(url: string, mode: string): string {
  return `${url}${url.includes('?') ? '&' : '?'}sslmode=${mode}`
}

/** Names an unknown parameter, unless the query may be a part of a password with a question mark. */
function unknownParameter(name: string, query: string): string {
  const isName = /^[a-z][a-z_]{0,39}$/i.test(name) && !query.includes('@')
  return `unknown parameter${isName ? ` ${name}` : ''}: expected one of ${known.join(', ')}`
}

/** Refuses options that set what the service sets itself. */
function readOptions(options: string | undefined): string | undefined {
  for (const [, name] of options?.matchAll(/(?:-c\s*|--)([\w-]+)\s*=/g) ?? []) {
    const fixed = fixedSettings.find(each => each.toLowerCase() === name!.toLowerCase().replaceAll('-', '_'))
    if (fixed) throw new Error(`options: leave out ${fixed}, which the service sets itself`)
  }
  return options
}

/** Without a limit in the URL, which libpq writes as 0, the default applies: no start waits forever. */
function readSeconds(text: string | undefined): number {
  if (!/^\d{0,9}$/.test(text ?? '')) throw new Error('connect_timeout: expected seconds')
  return Math.min(Number(text) || 3, 600)
}

function oneOf<T extends string>(allowed: readonly T[], name: string, value: string): T {
  if (!(allowed as readonly string[]).includes(value)) throw new Error(`${name}: expected ${allowed.join(', ')}`)
  return value as T
}
