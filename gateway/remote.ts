/**
 * The way to services in other processes, over gRPC. Calls are spread evenly over all servers that are connected. One
 * that dies is left out at once, one that hangs once it has let a ping wait; both come back by themselves. A call that no
 * server has begun goes to the next; a call that one may have begun only where the definition says that it is idempotent,
 * and once. That isn't left to gRPC's own retries (proposal A6), which give up where an answer has begun and broken off.
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
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { StatusSchema } from '../proto/gen/google/rpc/status_pb.js'
import { Health } from '../proto/gen/health/v1/health_pb.js'
import { inSpan, SpanKind, traceHeaders, tracing } from '../server/observability/tracing.js'
import { roundRobin, type ServerStats, statsOption } from './servers.js'

/** Where the services are. */
export interface RemoteOptions {
  /**
   * gRPC target. `dns:///auth.internal:50051` spreads calls over all addresses of the name; several addresses can be
   * listed as `ipv4:192.0.2.1:50051,192.0.2.2:50051`.
   */
  readonly target: string
  /**
   * Authority of the servers' certificates, and, where `identified`, the gateway's own certificate; both may change.
   * Absent: no TLS.
   */
  readonly certificates?: experimental.CertificateProvider & { readonly identified: boolean }
  /** Name that servers' certificates must carry; the (first) host of the target unless told. */
  readonly serverName?: string | undefined
}

/** A transport that holds connections. */
export type RemoteTransport = Transport & {
  /** How many servers there are, and how many of them are connected. */
  servers(): ServerStats
  /** Closes the connections; calls under way come to an end first. */
  close(): void
}

/** What a caller is told when a call failed on its way: never where the services are or why they can't be reached. */
const said: Partial<Record<Code, string>> = {
  [Code.Unavailable]: 'The service can’t answer now. Try again later.',
  [Code.DeadlineExceeded]: 'The deadline has passed. Try again.',
}

/**
 * While there are calls, a server is pinged; one that leaves that unanswered for as long is cut off, with all its calls.
 * One that is merely busy is not, and a read has time left for another server.
 */
const keepalive = { 'grpc.keepalive_time_ms': 2_000, 'grpc.keepalive_timeout_ms': 8_000 }

const { IDEMPOTENT } = MethodOptions_IdempotencyLevel

/**
 * The service config (gRPC proposal A2). There is no outlier detection: grpc-js counts refusals as failures, so that
 * whoever sends wrong passwords could have good servers left out.
 */
const serviceConfig = { loadBalancingConfig: [roundRobin] }

/** What may be asked twice. */
const idempotent: ReadonlySet<DescMethodUnary> = new Set([
  ...[...Users.methods, ...ForgotPasswords.methods].filter(rpc => rpc.idempotency === IDEMPOTENT),
  Health.method.check,
] as DescMethodUnary[])

/** Milliseconds until a call is asked a second time: a server that was lost is left out by then. */
const pause = 10

/** Calls that may be lost and asked again at once: one server's end takes no more with it. Each answer makes room for one. */
const mostLost = 500

/**
 * Returns a transport that calls services in another process over gRPC. It connects with the first call. Answers come
 * without headers and trailers: the services send none that matter.
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
      // It is said here, not by a TXT record of the name.
      'grpc.service_config_disable_resolution': 1,
      'grpc.enable_channelz': 0,
      ...keepalive,
      [statsOption]: (now: ServerStats) => {
        servers = now
      },
      // A server that comes back is found within seconds, not minutes.
      'grpc.max_reconnect_backoff_ms': 5_000,
      // So are the addresses of a name, once one of them was lost.
      'grpc.dns_min_time_between_resolutions_ms': 5_000,
      ...(serverName !== undefined && { 'grpc.ssl_target_name_override': serverName }),
    },
  )

  function ask(
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

  /** Asks a second time where the answer didn't come; not while more calls are lost than answered. */
  async function askTwice(...given: Parameters<typeof ask>): Promise<Message> {
    const answered = () => {
      lost = Math.max(0, lost - 1)
    }
    try {
      const message = await ask(...given)
      answered()
      return message
    } catch (error) {
      const isLost = (error as ConnectError).code === Code.Unavailable
      if (!isLost) answered()
      if (!isLost || lost >= mostLost) throw error
      lost++
      await sleep(pause)
      return ask(...given)
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
    const how = idempotent.has(method) ? askTwice : ask
    const message = await how(method, request, metadataOf(headers), options, signal)
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
      throw new ConnectError('There are no streams.', Code.Unimplemented)
    },
    servers: () => servers,
    close: () => client.close(),
  }
}

/** Makes each call a span: what of a request is spent on the way. */
function inCallSpan(unary: Transport['unary']): Transport['unary'] {
  return (method, ...rest) => {
    const { typeName } = method.parent
    const attributes = { 'rpc.system': 'grpc', 'rpc.service': typeName, 'rpc.method': method.name }
    const span = { name: `${typeName}/${method.name}`, kind: SpanKind.CLIENT, attributes }
    return inSpan(span, () => unary(method, ...rest))
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
  // Instead of what came: this is one hop further.
  if (tracing) for (const [name, value] of Object.entries(traceHeaders())) metadata.set(name, value)
  return metadata
}

function connectErrorOf(error: ServiceError): ConnectError {
  const code: Code = error.code as number
  const [bytes] = error.metadata?.get('grpc-status-details-bin') ?? []
  const status = Buffer.isBuffer(bytes) ? readStatus(bytes) : undefined
  // The cause is for the log, which leaves its text out.
  if (!status) return new ConnectError(said[code] ?? 'Something went wrong.', code, undefined, undefined, error)
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
