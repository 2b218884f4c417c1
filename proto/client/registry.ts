import type { DescService } from '@bufbuild/protobuf'
import { type Client, createClient, type Transport } from '@connectrpc/connect'
import type { UniversalClientFn } from '@connectrpc/connect/protocol'
import { createTransport } from '@connectrpc/connect/protocol-connect'
import { emitWarning, type Warning } from './warning.js'

/** Where the registry is, and who calls. */
export interface RegistryOptions {
  /** URL of the registry’s HTTP port, for instance `https://auth.example.org`. */
  readonly url: string
  /** The key of this service, `authsvc_…`. A secret: read it from the environment or a secret store. */
  readonly key: string
  /** Sends requests: for a proxy, or an own certificate authority. Default: the global `fetch`. */
  readonly fetch?: typeof fetch
  /** Receives warnings. Default: `process.emitWarning`. */
  readonly onWarning?: (warning: Warning) => void
}

/** The options with their defaults, checked. */
export function completed(options: RegistryOptions): Required<RegistryOptions> {
  const { url, key, fetch = globalThis.fetch, onWarning = emitWarning } = options
  if (!/^https?:$/.test(URL.canParse(url) ? new URL(url).protocol : ''))
    throw new TypeError('`url` must be an http or https URL, such as https://auth.example.org.')
  if (!/^authsvc_[\w-]{43}$/.test(key))
    throw new TypeError('`key` must be the key of a service: authsvc_ and 43 characters.')
  return { url: url.replace(/\/+$/, ''), key, fetch, onWarning }
}

/** Creates a client of one of the registry’s services, by the Connect protocol over `fetch`. */
export function clientOf<S extends DescService>(service: S, options: Required<RegistryOptions>): Client<S> {
  return createClient(service, transportOf(options))
}

/** Maximum bytes of a response; a page of the feed has at most 1 MB. */
const maxResponse = 8 * 1024 * 1024

function transportOf({ url, key, fetch }: Required<RegistryOptions>): Transport {
  return createTransport({
    baseUrl: url,
    httpClient: httpClientOf(fetch),
    useBinaryFormat: true,
    interceptors: [
      next => request => {
        request.header.set('authorization', `Bearer ${key}`)
        return next(request)
      },
    ],
    acceptCompression: [],
    sendCompression: null,
    compressMinBytes: 0,
    readMaxBytes: maxResponse,
    writeMaxBytes: 64 * 1024,
  })
}

/** An HTTP client for unary calls. */
function httpClientOf(fetch: RegistryOptions['fetch'] & {}): UniversalClientFn {
  return async ({ url, method, header, body = [], signal }) => {
    const chunks: Uint8Array[] = []
    for await (const chunk of body) chunks.push(chunk)
    const response = await fetch(url, {
      method,
      headers: header,
      // Not a Blob, which costs as much as the rest of the request.
      body: Buffer.concat(chunks),
      redirect: 'error',
      signal: signal ?? null,
    })
    const { status, headers } = response
    return { status, header: headers, body: iterate(response), trailer: new Headers() }
  }
}

async function* iterate(response: Response): AsyncGenerator<Uint8Array> {
  yield new Uint8Array(await response.arrayBuffer())
}
