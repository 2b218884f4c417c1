/**
 * Transport to services in other processes, over gRPC. Calls are balanced over all connected servers. A server that dies is
 * skipped at once, one that hangs when a ping times out; the channel reconnects to both. A call that no server has begun
 * goes to the next server; a call that a server may have begun is retried only if its definition is idempotent, and once.
 * gRPC's own retries (proposal A6) don't cover answers that begin and break off.
 */
import { setTimeout as sleep } from 'node:timers/promises'
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
import { MethodOptions_IdempotencyLevel } from '@bufbuild/protobuf/wkt'
import { Code, ConnectError, type Transport, type UnaryResponse } from '@connectrpc/connect'
import { type CallOptions, Client, credentials, experimental, Metadata, type ServiceError } from '@grpc/grpc-js'
import { Changes } from '../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { StatusSchema } from '../proto/gen/google/rpc/status_pb.js'
import { Health } from '../proto/gen/health/v1/health_pb.js'
import { inSpan, SpanKind, traceHeaders, tracing } from '../server/observability/tracing.js'
import { roundRobin, type ServerStats, statsOption } from './servers.js'

/** Options of the transport. */
interface RemoteOptions {
  /**
   * gRPC target. `dns:///auth.internal:50051` balances calls over all addresses of the name; several addresses can be
   * listed as `ipv4:192.0.2.1:50051,192.0.2.2:50051`.
   */
  readonly target: string
  /**
   * Authority of the servers' certificates, and, if `identified`, the gateway's own certificate; both may change.
   * Absent: no TLS.
   */
  readonly certificates?: experimental.CertificateProvider & { readonly identified: boolean }
  /** Name in the servers' certificates; default: the (first) host of the target. */
  readonly serverName?: string | undefined
}

/** A transport that holds connections. */
type RemoteTransport = Transport & {
  /** Number of known and of connected servers. */
  servers(): ServerStats
  /** Closes the connections after the calls in progress. */
  close(): void
}

/** Messages for failed calls: they reveal neither addresses nor causes. */
const publicMessages: Partial<Record<Code, string>> = {
  [Code.Unavailable]: 'The service can’t answer now. Try again later.',
  [Code.DeadlineExceeded]: 'The deadline has passed. Try again.',
}

/**
 * During calls, servers are pinged; a server that doesn't answer within the timeout is disconnected, with all its calls. A
 * busy server answers in time, and a read has time left for another server.
 */
const keepalive = { 'grpc.keepalive_time_ms': 2_000, 'grpc.keepalive_timeout_ms': 8_000 }

const { IDEMPOTENT } = MethodOptions_IdempotencyLevel

/**
 * The service config (gRPC proposal A2), without outlier detection: grpc-js counts refusals as failures, so a client could
 * exclude healthy servers with wrong passwords.
 */
const serviceConfig = { loadBalancingConfig: [roundRobin] }

/** RPCs that may be retried. */
const idempotent: ReadonlySet<DescMethodUnary> = new Set([
  ...[...Users.methods, ...ForgotPasswords.methods, ...Changes.methods].filter(rpc => rpc.idempotency === IDEMPOTENT),
  Health.method.check,
] as DescMethodUnary[])

/** Milliseconds before a retry: by then a lost server is skipped. */
const pause = 10

/** Maximum lost calls that are retried, enough for the failure of a server. Each answered call reduces the count by one. */
const maxLost = 500

/**
 * Creates a transport to services in other processes over gRPC. It connects at the first call. Answers have no headers and
 * trailers, because the services send no relevant ones.
 */
export function createRemoteTransport({ target, certificates, serverName }: RemoteOptions): RemoteTransport {
  let servers: ServerStats = { known: 0, connected: 0 }
  const client = new Client(
    target,
    certificates
      ? experimental.createCertificateProviderChannelCredentials(
          certificates,
          certificates.identified ? certificates : null,
        )
      : credentials.createInsecure(),
    {
      'grpc.service_config': JSON.stringify(serviceConfig),
      // The config is fixed; TXT records of the name are ignored.
      'grpc.service_config_disable_resolution': 1,
      'grpc.enable_channelz': 0,
      ...keepalive,
      [statsOption]: (now: ServerStats) => {
        servers = now
      },
      // Reconnects to a restarted server within seconds, not minutes.
      'grpc.max_reconnect_backoff_ms': 5_000,
      // Resolves the name again within seconds after a lost connection.
      'grpc.dns_min_time_between_resolutions_ms': 5_000,
      ...(serverName !== undefined && { 'grpc.ssl_target_name_override': serverName }),
    },
  )

  function callOnce(
    method: DescMethodUnary,
    request: Message,
    headers: Metadata,
    options: CallOptions,
    signal?: AbortSignal,
  ) {
    const { path, serialize, deserialize } = wireOf(method)
    return new Promise<Message>((resolve, reject) => {
      if (signal?.aborted) return reject(reasonOf(signal))
      const call = client.makeUnaryRequest<Message, Message>(
        path,
        serialize,
        deserialize,
        request,
        headers,
        options,
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
  }

  let lost = 0

  /** Retries a lost call, unless more calls are lost than answered. */
  async function callWithRetry(...given: Parameters<typeof callOnce>): Promise<Message> {
    const answered = () => {
      lost = Math.max(0, lost - 1)
    }
    try {
      const message = await callOnce(...given)
      answered()
      return message
    } catch (error) {
      const isLost = (error as ConnectError).code === Code.Unavailable
      if (!isLost) answered()
      if (!isLost || lost >= maxLost) throw error
      lost++
      await sleep(pause)
      return callOnce(...given)
    }
  }

  async function unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    headers: HeadersInit | undefined,
    input: MessageInitShape<I>,
  ): Promise<UnaryResponse<I, O>> {
    const options = timeoutMs === undefined || timeoutMs <= 0 ? {} : { deadline: Date.now() + timeoutMs }
    const request = create(method.input, input)
    const call = idempotent.has(method) ? callWithRetry : callOnce
    const message = await call(method, request, metadataOf(headers), options, signal)
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
    unary: tracing ? inCallSpan(unary) : unary,
    stream: async () => {
      throw new ConnectError('Streams are not supported.', Code.Unimplemented)
    },
    servers: () => servers,
    close: () => client.close(),
  }
}

/** Wraps each call in a span, which measures the time of a request in the transport. */
function inCallSpan(unary: Transport['unary']): Transport['unary'] {
  return (method, ...rest) => {
    const { typeName } = method.parent
    const attributes = { 'rpc.system': 'grpc', 'rpc.service': typeName, 'rpc.method': method.name }
    const span = { name: `${typeName}/${method.name}`, kind: SpanKind.CLIENT, attributes }
    return inSpan(span, () => unary(method, ...rest))
  }
}

/** Reason of an aborted call: the caller, or Connect's deadline. */
function reasonOf({ reason }: AbortSignal): ConnectError {
  return reason instanceof ConnectError ? reason : new ConnectError('The call was canceled.', Code.Canceled)
}

/** Path and codec of a method, created once for each. */
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

/** Headers as metadata, which is ASCII only: other characters don't occur in valid values. */
function metadataOf(headers: HeadersInit = {}): Metadata {
  const metadata = new Metadata()
  const pairs = Symbol.iterator in headers ? headers : Object.entries(headers)
  for (const [name = '', value = ''] of pairs) metadata.add(name, value.replace(/[^ -~]/g, '?'))
  // Replaces the incoming trace headers, because this is the next hop.
  if (tracing) for (const [name, value] of Object.entries(traceHeaders())) metadata.set(name, value)
  return metadata
}

function connectErrorOf(error: ServiceError): ConnectError {
  const code: Code = error.code as number
  const [bytes] = error.metadata?.get('grpc-status-details-bin') ?? []
  const status = Buffer.isBuffer(bytes) ? readStatus(bytes) : undefined
  // The cause is for the log, which omits its message.
  if (!status)
    return new ConnectError(publicMessages[code] ?? 'Something went wrong.', code, undefined, undefined, error)
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
