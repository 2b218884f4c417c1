// What is wrong with a server that can't be reached, or with what answers in its place, and what to do about it.
import type { ConnectError } from '@connectrpc/connect'
import { isLoopback } from '../server/process/settings.js'
import { quote } from '../server/rules/shell.js'
import { type ExitCode, fail } from './exit-codes.js'

/** A server to connect to. */
export interface Server {
  /** Name of its context. */
  readonly name?: string
  /** `https://host:port`, or `http://` on this machine. */
  readonly url: string
  /** PEM file of the authority that its certificate comes from, instead of those that the system trusts. */
  readonly ca?: string
  /** Name that its certificate is verified for, instead of the host of the URL. */
  readonly serverName?: string
}

/** A server, to begin a sentence with. */
export function nameOf({ name, url }: Server): string {
  return name === undefined ? url : `Context ${name} (${url})`
}

/** The command that signs in to a server, by its context or at a URL. */
export function loginTo({ name, url }: Server, at?: string): string {
  const where = at ?? (name === undefined ? url : undefined)
  const context = name === undefined ? undefined : `--context ${quote(name)}`
  return ['auth-admin login', where, context].filter(Boolean).join(' ')
}

/** The port of the administration listener by the settings of this shell, which are those of the service where it has them. */
function port(): { readonly port: string; readonly set: boolean } {
  const port = /:(\d+)$/.exec(process.env.AUTH_ADMIN_ADDRESS?.trim() ?? '')?.[1]
  return { port: port ?? '50052', set: port !== undefined }
}

/** Where the administration listener is. */
function listener(): string {
  return `AUTH_ADMIN_ADDRESS, ${port().set ? 'here' : 'by default'} port ${port().port}`
}

/** Milliseconds for each attempt to find out what answers. */
const timeout = 3_000

/**
 * Ends the command. `error` is that of the call, `failure` that of the connection. What speaks HTTP/2 and breaks off is a
 * server that stops, or the network.
 */
export async function explainFailure(
  server: Server,
  error: ConnectError,
  failure: NodeJS.ErrnoException | undefined,
  speaksHttp2: boolean,
): Promise<never> {
  const { Code } = await import('@connectrpc/connect')
  const { message, exitCode = 1 } =
    ofConnection(server, failure) ??
    ofAnswer(server, error, Code) ??
    (speaksHttp2 ? closed(server, error) : await ofProbe(server, error, failure))
  return fail(message, exitCode)
}

/** A sentence, and the exit code where that isn't 1. */
interface Found {
  readonly message: string
  readonly exitCode?: ExitCode
}

/** What an error of the socket or of TLS means. */
function ofConnection(server: Server, failure: NodeJS.ErrnoException | undefined): Found | undefined {
  const where = nameOf(server)
  const { hostname, host } = parse(server)
  const { code = '', message = '' } = failure ?? {}
  if (/^(ECONNREFUSED|EHOST|ENET|ETIMEDOUT|ENOTFOUND|EAI_)/.test(code)) {
    const why = { ENOTFOUND: `there is no host ${hostname}`, ECONNREFUSED: 'connection refused' }[code] ?? code
    return {
      message: `${where} can’t be reached: ${why}. Check the address, and that the service listens there (${listener()}).`,
      exitCode: 7,
    }
  }
  if (/^(UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|CERT_UNTRUSTED)/.test(code)) {
    const which = server.ca ? `that isn’t in ${server.ca}` : 'that this system doesn’t trust'
    return {
      message: `${where} has a certificate from an authority ${which}. Pass the PEM file of the authority: \`${loginTo(server, server.url)} --ca FILE\`.`,
    }
  }
  if (code === 'ERR_TLS_CERT_ALTNAME_INVALID') {
    const { cert } = failure as { cert?: { subjectaltname?: string } }
    const names = cert?.subjectaltname?.replaceAll(/DNS:|IP Address:/g, '') || 'another name'
    const command = `\`${loginTo(server, server.url)} --server-name NAME\``
    return {
      message: `${where} has a certificate for ${names}. Use a URL with one of these names, or pass one: ${command}.`,
    }
  }
  if (/^CERT_(HAS_EXPIRED|NOT_YET_VALID)$/.test(code)) {
    const state = code === 'CERT_HAS_EXPIRED' ? 'that has expired' : 'that isn’t valid yet'
    return { message: `${where} has a certificate ${state}. Renew it, or correct the clock of this machine.` }
  }
  if (/^(CERT|ERR_TLS_CERT)_/.test(code)) return { message: `${where} has an invalid certificate (${code}).` }
  if (/CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE/.test(code)) {
    return wrongPort(server, 'it asks callers for a certificate, as the gRPC listener for gateways does')
  }
  if (/wrong version number|packet length too long/i.test(message)) {
    const clear = isLoopback(hostname) ? ` For a service without TLS, use http://${host}.` : ''
    return { message: `${where} doesn’t speak TLS. Check the port (${listener()}).${clear}` }
  }
  return undefined
}

/** What an answer means that isn't one of Administration. */
function ofAnswer(
  server: Server,
  { code, rawMessage }: ConnectError,
  { DeadlineExceeded, Unavailable, Unimplemented }: typeof import('@connectrpc/connect').Code,
): Found | undefined {
  const where = nameOf(server)
  if (code === DeadlineExceeded) {
    return { message: `${where} didn’t answer in time. Check the address, or try again later.`, exitCode: 7 }
  }
  const [status] = /^HTTP \d+$/.exec(rawMessage) ?? []
  if (status && code === Unavailable) {
    return { message: `${where}: a proxy answers ${status}. Try again later.`, exitCode: 7 }
  }
  if (status || /content type/.test(rawMessage)) return wrongPort(server, `it answers ${rawMessage}`)
  if (code !== Unimplemented) return undefined
  return wrongPort(
    server,
    'it is another gRPC listener, such as the public one (AUTH_GRPC_ADDRESS), or an older version',
  )
}

/** What answers where HTTP/2 failed. */
async function ofProbe(
  server: Server,
  error: ConnectError,
  failure: NodeJS.ErrnoException | undefined,
): Promise<Found> {
  const where = nameOf(server)
  const { protocol, host } = parse(server)
  if (protocol === 'http:' && (await speaksTls(server))) {
    return { message: `${where} speaks TLS. Use https: \`${loginTo(server, `https://${host}`)}\`.` }
  }
  if (await speaksHttp1(server)) {
    return wrongPort(server, 'it speaks HTTP/1.1, as the HTTP gateway and the metrics do')
  }
  if (failure?.code && failure.code !== 'ECONNRESET') return wrongPort(server, `it doesn’t speak HTTP/2`)
  return closed(server, error)
}

function closed(server: Server, { rawMessage }: ConnectError): Found {
  return { message: `${nameOf(server)} closed the connection (${rawMessage}). Try again later.`, exitCode: 7 }
}

function wrongPort(server: Server, what: string): Found {
  const { protocol, hostname } = parse(server)
  const at = `${protocol}//${hostname.includes(':') ? `[${hostname}]` : hostname}:${port().port}`
  return {
    message: `${nameOf(server)} is not the administration listener (${listener()}): ${what}. Use the right port: \`${loginTo(server, at)}\`.`,
  }
}

function parse({ url }: Server) {
  const { protocol, hostname, host, port } = new URL(url)
  return { protocol, host, port: Number(port || 443), hostname: hostname.replace(/^\[(.*)\]$/, '$1') }
}

/** Whether a server speaks TLS. Nothing is sent to it but the handshake. */
async function speaksTls(server: Server): Promise<boolean> {
  const { connect } = await import('node:tls')
  const { hostname, port } = parse(server)
  return new Promise(resolve => {
    const socket = connect({ host: hostname, port, rejectUnauthorized: false, timeout })
    socket.once('secureConnect', () => {
      resolve(true)
      socket.destroy()
    })
    socket.once('timeout', () => socket.destroy())
    socket.on('error', () => {}).once('close', () => resolve(false))
  })
}

/** Whether a server answers a request of HTTP/1.1, with any certificate. */
async function speaksHttp1({ url }: Server): Promise<boolean> {
  const { get } = url.startsWith('https:') ? await import('node:https') : await import('node:http')
  return new Promise(resolve => {
    const request = get(url, { agent: false, rejectUnauthorized: false, timeout } as object, response => {
      resolve(true)
      response.destroy()
    })
    request.once('timeout', () => request.destroy())
    request.on('error', () => {}).once('close', () => resolve(false))
  })
}
