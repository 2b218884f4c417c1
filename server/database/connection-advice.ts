// What an operator can do about a connection that the server, or the driver, refuses.
import { adviceOn, isPassing, isSqlState } from './failures.js'

/** The connection that failed. */
interface Failed {
  readonly role: string | undefined
  readonly database: string | undefined
  /** The parameter that requires TLS. */
  readonly tlsParameter: string
}

/** Fails a connection whose authentication the parameters of the URL exclude. */
export class ExcludedAuthentication extends Error {}

/** Returns a sentence that says what to do, without a secret; undefined where waiting can help. */
export function adviseOnConnection(error: unknown, { role, database, tlsParameter }: Failed): string | undefined {
  if (error instanceof ExcludedAuthentication) return error.message
  const { code = '', message = '' } = error as { code?: string; message?: string }
  const unsupported = /unsupported startup parameter(?: in options)?: (\w+)/.exec(message)?.[1]
  if (unsupported)
    return `The pooler of DATABASE_URL refuses the startup parameter ${unsupported}: add it to ignore_startup_parameters there, or leave it out of the URL.`
  if (code === '28P01') return adviceOn(error)
  if (code.startsWith('28'))
    return `The database refuses the role ${role} of DATABASE_URL: check that it exists and has LOGIN, and that pg_hba.conf there has a line for this role, database, address and TLS.`
  if (code === '42501')
    return `The role of DATABASE_URL may not connect: have the owner of the database run \`GRANT CONNECT ON DATABASE ${quoted(database)} TO ${quoted(role)}\`.`
  if (code === '55000')
    return `The database of DATABASE_URL takes no connections: have a superuser run \`ALTER DATABASE ${quoted(database)} ALLOW_CONNECTIONS true\`.`
  if (code === '3D000') return undefined
  if (/^The server does not support SSL/.test(message))
    return `The server of DATABASE_URL doesn’t support TLS, which ${tlsParameter} needs: set \`ssl = on\` there with a certificate, or change the parameter where the network is trusted.`
  if (/password must be a|no password supplied/.test(message))
    return 'The database asks for a password, but DATABASE_URL has none: add it.'
  if (/^There was an error establishing an SSL connection/.test(message))
    return 'What listens at the address of DATABASE_URL doesn’t answer as PostgreSQL: check host and port.'
  if (/^(CERT_|CRL_|DEPTH_|SELF_SIGNED|UNABLE_TO_|HOSTNAME_|INVALID_|ERR_TLS_|ERR_SSL_)/.test(code))
    return `The database can’t be reached: its certificate or TLS isn’t accepted (${code}): check sslrootcert, sslmode and the host name in DATABASE_URL.`
  if (isPassing(error) || code === 'ENOTFOUND') return undefined
  if (isSqlState(code))
    return `The database refuses the connection (${code}): see the log of PostgreSQL, and the options of DATABASE_URL.`
  return `The database can’t be reached (${code || 'unknown answer'}): check DATABASE_URL, and that PostgreSQL runs there.`
}

/** Quotes an identifier, if necessary. */
function quoted(name = ''): string {
  return /^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`
}
