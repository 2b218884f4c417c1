import { create, type DescMessage, type DescMethodUnary, fromBinary, type Message, toBinary } from '@bufbuild/protobuf'
import { Code, ConnectError, type Transport } from '@connectrpc/connect'
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js'
import { StatusSchema } from '../proto/gen/google/rpc/status_pb.js'

/** Where the services are. */
export interface RemoteOptions {
  /**
   * gRPC target. `dns:///auth.internal:50051` spreads calls over all addresses of the name; several addresses can be
   * listed as `ipv4:192.0.2.1:50051,192.0.2.2:50051`.
   */
  readonly target: string
  /** Certificates in PEM for TLS; `cert` and `key` present the gateway itself. Absent: no TLS. */
  readonly tls?: { readonly ca: Buffer; readonly cert?: Buffer; readonly key?: Buffer }
}

/** A transport that holds connections. */
export type RemoteTransport = Transport & {
  /** Gives up the connections; calls under way come to an end first. */
  close(): void
}

/** What a caller is told when a call failed on its way: never where the services are or why they can't be reached. */
const lost: Partial<Record<Code, string>> = {
  [Code.Unavailable]: 'The service can’t answer now. Try again later.',
  [Code.DeadlineExceeded]: 'The answer would come too late.',
  [Code.Canceled]: 'The call was canceled.',
}

/** Returns a transport that calls services in another process over gRPC. It connects with the first call. */
export function createRemoteTransport({ target, tls }: RemoteOptions): RemoteTransport {
  const client = new Client(
    target,
    tls ? credentials.createSsl(tls.ca, tls.key ?? null, tls.cert ?? null) : credentials.createInsecure(),
    {
      'grpc.service_config': JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
      'grpc.enable_channelz': 0,
      'grpc.keepalive_time_ms': 30_000,
      'grpc.keepalive_timeout_ms': 10_000,
      // A server that comes back is found within seconds, not minutes.
      'grpc.max_reconnect_backoff_ms': 5_000,
    },
  )

  function unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    header: HeadersInit | undefined,
    input: Parameters<typeof create<I>>[1],
  ): ReturnType<Transport['unary']> {
    const { path, serialize, deserialize } = wireOf(method)
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(new ConnectError('The call was canceled.', Code.Canceled))
      const call = client.makeUnaryRequest<Message, Message>(
        path,
        serialize,
        deserialize,
        create(method.input, input),
        metadataOf(header),
        timeoutMs === undefined ? {} : { deadline: Date.now() + timeoutMs },
        (error, message) => {
          signal?.removeEventListener('abort', cancel)
          if (error) return reject(connectErrorOf(error))
          const { parent: service } = method
          resolve({ stream: false, service, method, header: none, message: message as never, trailer: none })
        },
      )
      const cancel = () => call.cancel()
      signal?.addEventListener('abort', cancel)
    })
  }

  return {
    unary: unary as Transport['unary'],
    stream: async () => {
      throw new ConnectError('Streams are not supported.', Code.Unimplemented)
    },
    close: () => client.close(),
  }
}

/** Headers and trailers of an answer: the services send none that matter beyond them. */
const none = new Headers()

/** How a method is called, made once for each. */
interface Wire {
  readonly path: string
  readonly serialize: (message: Message) => Buffer
  readonly deserialize: (bytes: Buffer) => Message
}

const wires = new Map<DescMethodUnary, Wire>()

function wireOf(method: DescMethodUnary): Wire {
  let wire = wires.get(method)
  if (!wire) {
    wire = {
      path: `/${method.parent.typeName}/${method.name}`,
      serialize: message => Buffer.from(toBinary(method.input, message)),
      deserialize: bytes => fromBinary(method.output, bytes),
    }
    wires.set(method, wire)
  }
  return wire
}

function metadataOf(header: HeadersInit | undefined): Metadata {
  const metadata = new Metadata()
  if (!header) return metadata
  const entries = Array.isArray(header) || header instanceof Headers ? header : Object.entries(header)
  for (const [name, value] of entries as Iterable<[string, string]>) metadata.set(name, value)
  return metadata
}

function connectErrorOf(error: ServiceError): ConnectError {
  const [bytes] = error.metadata?.get('grpc-status-details-bin') ?? []
  const status = Buffer.isBuffer(bytes) ? readStatus(bytes) : undefined
  if (!status)
    return new ConnectError(lost[error.code as number as Code] ?? 'Something went wrong.', error.code as number)
  const result = new ConnectError(status.message, status.code)
  result.details = status.details.map(({ typeUrl, value }) => ({
    type: typeUrl.slice(typeUrl.lastIndexOf('/') + 1),
    value,
  }))
  return result
}

function readStatus(bytes: Buffer) {
  try {
    return fromBinary(StatusSchema, bytes)
  } catch {
    return undefined
  }
}
