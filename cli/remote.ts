import { readFile } from 'node:fs/promises'
import type { Transport } from '@connectrpc/connect'
import { isLoopback } from '../server/process/settings.js'
import type { Context } from './contexts.js'
import { fail } from './exit-codes.js'

/**
 * Connects to Administration on a server, over gRPC. Calls carry the token, if there is one, and time out after `timeout`
 * milliseconds.
 */
export async function openRemote(
  { url, ca }: Pick<Context, 'url' | 'ca'>,
  token?: string,
  { timeout = 30_000 }: { readonly timeout?: number } = {},
): Promise<{ transport: Transport; close(): Promise<void> }> {
  const { createGrpcTransport, Http2SessionManager } = await import('@connectrpc/connect-node')
  const authority = ca ? { ca: await readFile(ca).catch(() => fail(`The file ${ca} can’t be read.`)) } : {}
  const sessionManager = new Http2SessionManager(url, {}, authority)
  const transport = createGrpcTransport({
    baseUrl: url,
    sessionManager,
    defaultTimeoutMs: timeout,
    interceptors: [
      next => request => {
        if (token) request.header.set('authorization', `Bearer ${token}`)
        return next(request)
      },
    ],
  })
  return { transport, close: async () => sessionManager.abort() }
}

/** A URL of a server, without a path. Only a loopback address may use http. Undefined for any other text. */
export function readUrl(text: string): string | undefined {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (url?.pathname !== '/' || url.search || url.hash || url.username) return undefined
  const host = url.hostname.replace(/^\[(.*)\]$/, '$1')
  if (url.protocol !== 'https:' && !(url.protocol === 'http:' && isLoopback(host))) return undefined
  return url.origin
}
