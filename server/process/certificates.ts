/**
 * Certificates, keys and authorities in PEM files that somebody replaces while the process runs. Connections that begin
 * use what the files hold by then, at most 5 seconds late; those that are there live on. Files that can't be used, or
 * not together, are told in the log and leave the last good ones in force.
 */
import { X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { Socket } from 'node:net'
import { createSecureContext, type SecureContext, TLSSocket } from 'node:tls'
import type { Log } from '../observability/log.js'

/** Milliseconds between two looks at the files. */
const interval = 5_000

/** Milliseconds before its end from which on a certificate is told to end, once a day. */
const notice = 14 * 86_400_000
const day = 86_400_000

/** Paths of the files. A certificate comes with its key. */
export interface CertificateFiles {
  readonly cert?: string | undefined
  readonly key?: string | undefined
  /** Authority that certificates of the other side must come from. */
  readonly ca?: string | undefined
}

type Pem = { readonly [K in keyof CertificateFiles]?: Buffer }
type OnAuthority = (update: { caCertificate: Buffer } | null) => void
type OnIdentity = (update: { certificate: Buffer; privateKey: Buffer } | null) => void

/** What files hold now. The methods that add and remove listeners are those of a certificate provider of grpc-js. */
export interface Certificates {
  /** Whether there is a certificate of our own. */
  readonly identified: boolean
  /** Whether there is an authority for the other side's certificates. */
  readonly verifying: boolean
  /** When our own certificate ends, in ms since 1970; undefined when there is none. */
  endsAt(): number | undefined
  /**
   * Speaks TLS, 1.2 at the least, on a connection that came in, and HTTP/1.1 within it (ALPN, RFC 7301). The caller
   * limits the time of the handshake.
   */
  secure(socket: Socket): TLSSocket
  addCaCertificateListener(listener: OnAuthority): void
  removeCaCertificateListener(listener: OnAuthority): void
  addIdentityCertificateListener(listener: OnIdentity): void
  removeIdentityCertificateListener(listener: OnIdentity): void
  /** Looks at the files no longer. */
  stop(): void
}

/** Reads the files and follows them from then on. Throws when they can't be used. */
export function followCertificates(files: CertificateFiles, log: Log): Certificates {
  let used = use(read(files))
  /** What the last look found and couldn't be used, and whether that was told: of two files, one is replaced first. */
  let broken: { readonly pem: Pem; told: boolean } | undefined
  let noticed = Number.NEGATIVE_INFINITY
  const authorities = new Set<OnAuthority>()
  const identities = new Set<OnIdentity>()
  const tellAuthority = (listener: OnAuthority) => {
    const { ca } = used.pem
    listener(ca ? { caCertificate: ca } : null)
  }
  const tellIdentity = (listener: OnIdentity) => {
    const { cert, key } = used.pem
    listener(cert && key ? { certificate: cert, privateKey: key } : null)
  }

  function look() {
    let next: Pem = {}
    try {
      next = read(files)
      if (!isSame(next, used.pem)) {
        used = use(next)
        log.info({ files }, 'certificates were replaced')
        authorities.forEach(tellAuthority)
        identities.forEach(tellIdentity)
      }
      broken = undefined
    } catch (error) {
      if (!broken || !isSame(next, broken.pem)) broken = { pem: next, told: false }
      else if (!broken.told) {
        broken.told = true
        log.error({ err: error, files }, 'certificates can’t be used; those before stay in force')
      }
    }
    warn()
  }

  /** Says in time that a certificate ends. */
  function warn() {
    const { until } = used
    if (until === undefined || until - Date.now() > notice || Date.now() - noticed < day) return
    noticed = Date.now()
    log.warn({ file: files.cert, until: new Date(until).toISOString() }, 'a certificate ends soon, or has ended')
  }

  warn()
  const timer = setInterval(look, interval).unref()
  return {
    identified: files.cert !== undefined,
    verifying: files.ca !== undefined,
    endsAt: () => used.until,
    secure: socket => speakTls(socket, used.context),
    addCaCertificateListener(listener) {
      authorities.add(listener)
      process.nextTick(tellAuthority, listener)
    },
    removeCaCertificateListener: listener => void authorities.delete(listener),
    addIdentityCertificateListener(listener) {
      identities.add(listener)
      process.nextTick(tellIdentity, listener)
    },
    removeIdentityCertificateListener: listener => void identities.delete(listener),
    stop: () => clearInterval(timer),
  }
}

/** Speaks TLS on a connection that came in, and HTTP/1.1 within it. */
export function speakTls(socket: Socket, secureContext: SecureContext): TLSSocket {
  return new TLSSocket(socket, { isServer: true, secureContext, ALPNProtocols: ['http/1.1'] })
}

function read(files: CertificateFiles): Pem {
  const given = Object.entries(files).filter(([, path]) => path !== undefined)
  return Object.fromEntries(given.map(([name, path]) => [name, readFileSync(path)]))
}

/** What connections need of the contents. Throws when they can't be used, or not together. */
function use(pem: Pem): { readonly pem: Pem; readonly context: SecureContext; readonly until?: number } {
  const context = createSecureContext({ ...pem, minVersion: 'TLSv1.2' })
  return { pem, context, ...(pem.cert && { until: Date.parse(new X509Certificate(pem.cert).validTo) }) }
}

function isSame(one: Pem, other: Pem): boolean {
  return (['cert', 'key', 'ca'] as const).every(name => {
    const [a, b] = [one[name], other[name]]
    return a && b ? a.equals(b) : a === b
  })
}
