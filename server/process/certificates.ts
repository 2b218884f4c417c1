/**
 * Certificates, keys and authorities in PEM files that may be replaced while the process runs. New connections use the new
 * contents after at most 5 seconds; open connections continue. Files that can't be used, or not together, are reported in
 * the log, and the last good ones stay in use.
 */
import { X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { Socket } from 'node:net'
import { createSecureContext, type SecureContext, TLSSocket } from 'node:tls'
import type { Logger } from 'pino'
import { readPem } from './pem.js'

/** Milliseconds between two checks of the files. */
const checkInterval = 5_000

/** Milliseconds before its end from which on the log warns of a certificate, once a day. */
const warningPeriod = 14 * 86_400_000
const day = 86_400_000

/** Paths of the files. A certificate comes with its key. */
export interface CertificateFiles {
  readonly cert?: string
  readonly key?: string
  /** Authority that must have issued the peer's certificate. */
  readonly ca?: string
}

type Pem = { readonly [K in keyof CertificateFiles]?: Buffer }
type OnAuthority = (update: { caCertificate: Buffer } | null) => void
type OnIdentity = (update: { certificate: Buffer; privateKey: Buffer } | null) => void

/** The current contents of the files. */
export type Certificates = ReturnType<typeof followCertificates>

/**
 * Reads the files and checks them for changes. Throws when they can't be used. `log` is absent where the same files are
 * followed already; `settings` is how the names of their settings begin.
 */
export function followCertificates(
  files: CertificateFiles,
  log?: Pick<Logger, 'info' | 'warn' | 'error'>,
  settings: 'AUTH_TLS' | 'AUTH_HTTP_TLS' = 'AUTH_TLS',
) {
  let current = load(read(files))
  /** Contents of the last check that can't be used, and whether the log says so: of two files, one is replaced first. */
  let broken: { readonly pem: Pem; logged: boolean } | undefined
  let warnedAt = Number.NEGATIVE_INFINITY
  const authorities = new Set<OnAuthority>()
  const identities = new Set<OnIdentity>()
  const notifyAuthority = (listener: OnAuthority) => {
    const { ca } = current.pem
    listener(ca ? { caCertificate: ca } : null)
  }
  const notifyIdentity = (listener: OnIdentity) => {
    const { cert, key } = current.pem
    listener(cert && key ? { certificate: cert, privateKey: key } : null)
  }

  function check() {
    let next: Pem = {}
    try {
      next = read(files)
      if (!isSame(next, current.pem)) {
        current = load(next)
        log?.info({ files }, 'certificates were replaced')
        authorities.forEach(notifyAuthority)
        identities.forEach(notifyIdentity)
      }
      broken = undefined
    } catch {
      if (!broken || !isSame(next, broken.pem)) broken = { pem: next, logged: false }
      else if (!broken.logged) {
        broken.logged = true
        log?.error({ why: faultOf(files, settings) }, 'certificates can’t be used; the previous ones stay in use')
      }
    }
    warn()
  }

  /** Warns of the end of a certificate. */
  function warn() {
    const { until } = current
    if (until === undefined || until - Date.now() > warningPeriod || Date.now() - warnedAt < day) return
    warnedAt = Date.now()
    log?.warn({ file: files.cert, until: new Date(until).toISOString() }, 'a certificate ends soon, or has ended')
  }

  warn()
  const timer = setInterval(check, checkInterval).unref()
  return {
    /** Whether there is a certificate of this process. */
    identified: files.cert !== undefined,
    /** Whether there is an authority for peers' certificates. */
    verifying: files.ca !== undefined,
    /** When the certificate of this process ends, in ms since 1970; undefined without one. */
    endsAt: () => current.until,
    /** What new connections use: another object once files were replaced. */
    context: () => current.context,
    /**
     * Starts TLS, version 1.2 or later, on an incoming connection, with HTTP/1.1 in it (ALPN, RFC 7301). The caller limits the
     * time of the handshake.
     */
    secure: (socket: Socket) => secureSocket(socket, current.context),
    // The next four are those of grpc-js' CertificateProvider.
    addCaCertificateListener(listener: OnAuthority) {
      authorities.add(listener)
      process.nextTick(notifyAuthority, listener)
    },
    removeCaCertificateListener: (listener: OnAuthority) => void authorities.delete(listener),
    addIdentityCertificateListener(listener: OnIdentity) {
      identities.add(listener)
      process.nextTick(notifyIdentity, listener)
    },
    removeIdentityCertificateListener: (listener: OnIdentity) => void identities.delete(listener),
    /** Stops checking the files. */
    stop: () => clearInterval(timer),
  }
}

/** Starts TLS on an incoming connection, with HTTP/1.1 in it. */
export function secureSocket(socket: Socket, secureContext: SecureContext): TLSSocket {
  return new TLSSocket(socket, { isServer: true, secureContext, ALPNProtocols: ['http/1.1'] })
}

function read(files: CertificateFiles): Pem {
  return Object.fromEntries(given(files).map(([name, path]) => [name, readFileSync(path)]))
}

const given = (files: CertificateFiles): [name: string, path: string][] =>
  Object.entries(files).filter(([, path]) => path !== undefined)

/** Which setting names a file that can't be used, and why. */
function faultOf(files: CertificateFiles, settings: string): string {
  for (const [name, path] of given(files)) {
    try {
      createSecureContext({ [name]: readPem(path, name === 'key' ? 'PRIVATE KEY' : 'CERTIFICATE') })
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException
      return `${settings}_${name.toUpperCase()}, ${path}: ${code ?? message}`
    }
  }
  return `${settings}_CERT, ${settings}_KEY: certificate and key don’t belong together`
}

/** What connections use of the contents. Throws when they can't be used, or not together. */
function load(pem: Pem): { readonly pem: Pem; readonly context: SecureContext; readonly until?: number } {
  const context = createSecureContext({ ...pem, minVersion: 'TLSv1.2' })
  return { pem, context, until: pem.cert && Date.parse(new X509Certificate(pem.cert).validTo) }
}

function isSame(one: Pem, other: Pem): boolean {
  return (['cert', 'key', 'ca'] as const).every(name => {
    const [a, b] = [one[name], other[name]]
    return a && b ? a.equals(b) : a === b
  })
}
