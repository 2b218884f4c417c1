import {
  create,
  type DescMessage,
  type DescMethodUnary,
  fromBinary,
  type Message,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from '@bufbuild/protobuf'
import { Code, ConnectError, type Transport, type UnaryResponse } from '@connectrpc/connect'
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
  /** Closes the connections; calls under way come to an end first. */
  close(): void
}

/** What a caller is told when a call failed on its way: never where the services are or why they can't be reached. */
const lost: Partial<Record<Code, string>> = {
  [Code.Unavailable]: 'The service can’t answer now. Try again later.',
  [Code.DeadlineExceeded]: 'The answer would come too late.',
}

/**
 * Returns a transport that calls services in another process over gRPC. It connects with the first call. Answers come
 * without headers and trailers: the services send none that matter.
 */
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

  async function unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    headers: HeadersInit | undefined,
    input: MessageInitShape<I>,
  ): Promise<UnaryResponse<I, O>> {
    if (signal?.aborted) throw reasonOf(signal)
    const { path, serialize, deserialize } = wireOf(method)
    const request = create(method.input, input)
    const message = await new Promise<Message>((resolve, reject) => {
      const call = client.makeUnaryRequest<Message, Message>(
        path,
        serialize,
        deserialize,
        request,
        metadataOf(headers),
        timeoutMs === undefined || timeoutMs <= 0 ? {} : { deadline: Date.now() + timeoutMs },
        (error, message) => {
          signal?.removeEventListener('abort', cancel)
          if (signal?.aborted) reject(reasonOf(signal))
          else if (error) reject(connectErrorOf(error))
          else resolve(message!)
        },
      )
      const cancel = () => call.cancel()
      signal?.addEventListener('abort', cancel)
    })
    return {
      stream: false,
      service: method.parent,
      method,
      header: new Headers(),
      trailer: new Headers(),
      message: message as MessageShape<O>,
    }
  }

  return {
    unary,
    stream: async () => {
      throw new ConnectError('There are no streams.', Code.Unimplemented)
    },
    close: () => client.close(),
  }
}

/** Why a call was aborted: by whoever made it, or since Connect's deadline passed. */
function reasonOf({ reason }: AbortSignal): ConnectError {
  return reason instanceof ConnectError ? reason : new ConnectError('The call was canceled.', Code.Canceled)
}

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

/** Headers as metadata, which has ASCII only: what else HTTP allows in a value can't be part of a good one. */
function metadataOf(headers: HeadersInit = {}): Metadata {
  const metadata = new Metadata()
  const pairs = Symbol.iterator in headers ? headers : Object.entries(headers)
  for (const [name = '', value = ''] of pairs) metadata.add(name, value.replace(/[^ -~]/g, '?'))
  return metadata
}

function connectErrorOf(error: ServiceError): ConnectError {
  const code: Code = error.code as number
  const [bytes] = error.metadata?.get('grpc-status-details-bin') ?? []
  const status = Buffer.isBuffer(bytes) ? readStatus(bytes) : undefined
  // The cause is for the log, which leaves its text out.
  if (!status) return new ConnectError(lost[code] ?? 'Something went wrong.', code, undefined, undefined, error)
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
