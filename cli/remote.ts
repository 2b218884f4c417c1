import { readFile } from 'node:fs/promises'
import type { ClientHttp2Session } from 'node:http2'
import type { Client, Transport } from '@connectrpc/connect'
import type { GrpcTransportOptions } from '@connectrpc/connect-node'
import type { Administration } from '../proto/gen/auth/v1/administration_pb.js'
import { isLoopback } from '../server/process/settings.js'
import { loginTo, nameOf, type Server } from './contexts.js'
import { fail } from './exit-codes.js'

/** A connection to a server. */
export interface Remote {
  readonly transport: Transport
  close(): Promise<void>
}

/**
 * Connects to Administration on a server, over gRPC. Calls carry the token, if there is one, and the reason for the audit log, and
 * time out after 30 s. Errors name the server, and what failed of the connection.
 */
export async function openRemote(server: Server, tokenOf: () => string | undefined, reason?: string): Promise<Remote> {
  const [{ createGrpcTransport }, { connect }, { ConnectError }] = await Promise.all([
    import('@connectrpc/connect-node'),
    import('node:http2'),
    import('@connectrpc/connect'),
  ])
  const { url, ca, serverName } = server
  const tls = {
    ca: ca && (await readFile(ca).catch(({ code }) => fail(`${ca} can’t be read (${code}).`))),
    servername: serverName,
  }
  let session: ClientHttp2Session | undefined
  let failure: NodeJS.ErrnoException | undefined
  let speaksHttp2 = false
  // Connect's own manager stops listening to a session that failed, whose later errors then end the process.
  const sessionManager: NonNullable<GrpcTransportOptions['sessionManager']> = {
    authority: url,
    async request(method, path, headers, options) {
      if (!session || session.closed || session.destroyed) {
        failure = undefined
        session = connect(url, tls)
          .on('error', error => {
            failure ??= error
          })
          .on('remoteSettings', () => {
            speaksHttp2 = true
          })
      }
      return session.request({ ...headers, ':method': method, ':path': path }, options)
    },
    notifyResponseByteRead() {},
  }
  const transport = createGrpcTransport({
    baseUrl: url,
    sessionManager,
    defaultTimeoutMs: 30_000,
    interceptors: [
      next => request => {
        const token = tokenOf()
        if (token) request.header.set('authorization', `Bearer ${token}`)
        if (reason !== undefined) request.header.set('x-reason', encodeURIComponent(reason))
        return next(request)
      },
    ],
  })
  return {
    transport: {
      async unary(...call) {
        try {
          return await transport.unary(...call)
        } catch (thrown) {
          const error = ConnectError.from(thrown)
          const commands = { login: loginTo(server), loginAnew: loginTo(server, url) }
          // What speaks HTTP/2 and breaks off is a server that stops, or the network.
          const broken = speaksHttp2 ? undefined : (failure ?? (error.cause as typeof failure))
          throw Object.assign(error, { server: { where: nameOf(server), ...commands, failure: broken } })
        }
      },
      stream: transport.stream,
    },
    close: async () => session?.destroy(),
  }
}

/** Does `work` with the RPCs of a server. */
export async function atServer<T>(
  server: Server,
  token: string | undefined,
  work: (api: Client<typeof Administration>) => Promise<T>,
): Promise<T> {
  const [{ createClient }, { Administration }, { transport, close }] = await Promise.all([
    import('@connectrpc/connect'),
    import('../proto/gen/auth/v1/administration_pb.js'),
    openRemote(server, () => token),
  ])
  try {
    return await work(createClient(Administration, transport))
  } finally {
    await close()
  }
}

/** A URL of a server, without a path. Only a loopback address may use http. Undefined for any other text. */
export function readUrl(text: string): string | undefined {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (url?.pathname !== '/' || url.search || url.hash || url.username) return undefined
  const host = url.hostname.replace(/^\[(.*)\]$/, '$1')
  if (url.protocol !== 'https:' && !(url.protocol === 'http:' && isLoopback(host))) return undefined
  return url.origin
}
