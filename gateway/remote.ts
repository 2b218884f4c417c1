/**
 * Transport to services in another process, over gRPC: one target, which is a server, or a load balancer before several. A
 * call that can't be delivered is repeated once if its definition is idempotent.
 *
 * All clients share the connections to the target, so none may break or fill them. A stream is never reset, because Node.js
 * closes a connection after too many resets: what its client gives up ends at the server. Metadata are no longer than any
 * peer accepts. Calls that wait at the server hold no slot of the scheduler, and have connections of their own.
 */
import type { SecureContext } from 'node:tls'
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
import { Code, ConnectError, type ContextValues, type Transport, type UnaryResponse } from '@connectrpc/connect'
import { Client, type ClientUnaryCall, credentials, Metadata, type ServiceError } from '@grpc/grpc-js'
import { Changes } from '../proto/gen/auth/v1/changes_pb.js'
import { StatusSchema } from '../proto/gen/google/rpc/status_pb.js'
import { Health } from '../proto/gen/grpc/health/v1/health_pb.js'
import { turnKey } from '../server/limits/scheduler.js'
import { inSpan, SpanKind, traceHeaders, tracing } from '../server/observability/tracing.js'
import { clientServices } from '../server/policy/services.js'
import { needsOfRpc } from './operations.js'

/** Options of the transport. */
interface RemoteOptions {
  /** gRPC target: `host:port`, or `dns:///name:port`, whose addresses get calls in turn. */
  readonly target: string
  /** Authority of the servers' certificates, and perhaps the gateway's own; both may change. Absent: no TLS. */
  readonly certificates?: { readonly context: () => SecureContext }
  /** Name in the servers' certificates; default: the host of the target. */
  readonly serverName?: string | undefined
  /** Gets a line for each call that was lost, with what grpc-js says of the connection. */
  readonly log?: { warn(fields: object, message: string): void }
}

/** A transport that holds connections. */
type RemoteTransport = Transport & {
  /** Ends the waits of `Changes.Poll`: servers answer these calls now, and later ones without a wait. */
  endWaits(): void
  /** Closes the connections after the calls in progress. */
  close(): void
}

/**
 * Maximum calls in progress on a connection. The limit of a load balancer isn't known; HTTP/2 recommends that none permits
 * fewer (RFC 9113, 6.5.2).
 */
export const maxStreams = 100

/** Milliseconds after its deadline at which a call that the server hasn't ended is reset. */
const patience = 2_000

/** Milliseconds that a poll may take once waits have ended. Servers end a wait half a second before the deadline. */
const endedWait = 1_000

const { poll } = Changes.method
const { IDEMPOTENT } = MethodOptions_IdempotencyLevel
const rpcs = clientServices.flatMap(([service]) => service.methods) as DescMethodUnary[]

/** RPCs that wait at the server, for a change or for a hash thread. */
const waiting: ReadonlySet<DescMethodUnary> = new Set([poll, ...rpcs.filter(rpc => needsOfRpc(rpc).hashes)])

/** The service config (gRPC proposals A2 and A6). Half of 1,000 lost calls may be retried, and as many as are answered. */
const serviceConfig = {
  loadBalancingConfig: [{ round_robin: {} }],
  methodConfig: [
    {
      name: [...rpcs.filter(({ idempotency }) => idempotency === IDEMPOTENT), Health.method.check].map(
        ({ parent, name }) => ({ service: parent.typeName, method: name }),
      ),
      retryPolicy: {
        maxAttempts: 2,
        initialBackoff: '0.01s',
        maxBackoff: '0.1s',
        backoffMultiplier: 2,
        retryableStatusCodes: ['UNAVAILABLE'],
      },
    },
  ],
  retryThrottling: { maxTokens: 1_000, tokenRatio: 1 },
}

const channelOptions = {
  'grpc.service_config': JSON.stringify(serviceConfig),
  // The config is fixed; TXT records of the name are ignored.
  'grpc.service_config_disable_resolution': 1,
  // The variables are those of a shell, for other programs.
  'grpc.enable_http_proxy': 0,
  // Otherwise clients with equal options share connections.
  'grpc.use_local_subchannel_pool': 1,
  'grpc.enable_channelz': 0,
  // During calls, the peer is pinged. A busy server answers in time.
  'grpc.keepalive_time_ms': 4_000,
  'grpc.keepalive_timeout_ms': 6_000,
  // Reconnects to a restarted server within seconds, not minutes.
  'grpc.max_reconnect_backoff_ms': 5_000,
  // Resolves the name again within seconds after a lost connection.
  'grpc.dns_min_time_between_resolutions_ms': 5_000,
  // Connections beyond the first one are closed when they aren't used.
  'grpc.client_idle_timeout_ms': 60_000,
}

/** Messages for failed calls: they reveal neither addresses nor causes. */
const unavailable = 'The service can’t answer now. Try again later.'
const late = 'The deadline has passed. Try again.'

/**
 * Creates a transport to services in another process. Answers have no headers and trailers, because the services send no
 * relevant ones. A call that was begun ignores its signal: it resolves when the server ends it.
 */
export function createRemoteTransport({ target, certificates, serverName, log }: RemoteOptions): RemoteTransport {
  const connections = { waiting: createConnections(open), others: createConnections(open) }
  let context = certificates?.context()
  let waitsEnded = false
  const polls = new Set<ClientUnaryCall>()

  function open(): Client {
    const secure = context ? credentials.createFromSecureContext(context) : credentials.createInsecure()
    const name = serverName !== undefined && { 'grpc.ssl_target_name_override': serverName }
    return new Client(target, secure, { ...channelOptions, ...name })
  }

  function close(): void {
    for (const each of Object.values(connections)) each.close()
  }

  async function callOnce(method: DescMethodUnary, request: Message, metadata: Metadata, deadline: number) {
    const current = certificates?.context()
    // Open connections keep their certificates.
    if (current !== context) {
      close()
      context = current
    }
    using connection = connections[waiting.has(method) ? 'waiting' : 'others'].take()
    const { path, serialize, deserialize } = wireOf(method)
    return await new Promise<Message>((resolve, reject) => {
      const left = Math.max(1, deadline - Date.now())
      // With this as its own deadline, grpc-js would reset the stream when it passes.
      metadata.set('grpc-timeout', `${Math.ceil(Math.min(left, 99_999_999))}m`)
      const call = connection.client.makeUnaryRequest<Message, Message>(
        path,
        serialize,
        deserialize,
        request,
        metadata,
        (error, message) => {
          clearTimeout(timer)
          polls.delete(call)
          if (error) reject(error)
          else resolve(message!)
        },
      )
      const timer = setTimeout(() => call.cancel(), Math.min(left + patience, 2 ** 31 - 1))
      if (method === poll) polls.add(call)
    })
  }

  /** A poll that waits is asked again without a wait when waits end. */
  async function callPoll(method: DescMethodUnary, request: Message, metadata: Metadata, deadline: number) {
    const brief = () => callOnce(method, request, metadata, Math.min(deadline, Date.now() + endedWait))
    if (waitsEnded) return brief()
    return callOnce(method, request, metadata, deadline).catch(error => {
      if (waitsEnded) return brief()
      throw error
    })
  }

  async function unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    headers: HeadersInit | undefined,
    input: MessageInitShape<I>,
    values?: ContextValues,
  ): Promise<UnaryResponse<I, O>> {
    if (signal?.aborted) throw reasonOf(signal)
    const deadline = timeoutMs === undefined || timeoutMs <= 0 ? Number.POSITIVE_INFINITY : Date.now() + timeoutMs
    const call = (method as DescMethodUnary) === poll ? callPoll : callOnce
    const work = () => call(method, create(method.input, input), metadataOf(headers), deadline)
    const turn = values?.get(turnKey)
    try {
      const message = await (turn && waiting.has(method) ? turn.pause(work) : work())
      return {
        stream: false,
        service: method.parent,
        method,
        header: new Headers(),
        trailer: new Headers(),
        message: message as MessageShape<O>,
      }
    } catch (error) {
      const refusal = connectErrorOf(error as ServiceError, deadline)
      if (refusal.cause) log?.warn({ err: refusal, why: (error as ServiceError).details }, 'a call was lost')
      throw refusal
    }
  }

  return {
    unary: tracing ? inCallSpan(unary) : unary,
    stream: async () => {
      throw new ConnectError('Streams are not supported.', Code.Unimplemented)
    },
    endWaits() {
      waitsEnded = true
      for (const call of polls) call.cancel()
    },
    close,
  }
}

/** Connections to a target: a call beyond `maxStreams` of each opens another one. */
function createConnections(open: () => Client) {
  const all: { readonly client: Client; calls: number }[] = []
  return {
    /** A connection for one call, until it is disposed of. */
    take(): Disposable & { readonly client: Client } {
      let connection = all.find(({ calls }) => calls < maxStreams)
      if (!connection) {
        connection = { client: open(), calls: 0 }
        all.push(connection)
      }
      const taken = connection
      taken.calls++
      return { client: taken.client, [Symbol.dispose]: () => void taken.calls-- }
    },
    /** Closes them after their calls; further calls open new ones. */
    close(): void {
      for (const { client } of all.splice(0)) client.close()
    },
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

/**
 * The headers that pass, and the most characters of each. Together with those of gRPC they have at most 8 KiB, which every
 * peer accepts: a larger block ends the connection. What is cut is refused as it would be whole.
 */
const passing: Readonly<Record<string, number>> = {
  // A token has at most 4 KiB.
  authorization: 4_200,
  'accept-language': 1_000,
  traceparent: 64,
  // W3C Trace Context, 3.3.1.5
  tracestate: 512,
  'x-request-id': 64,
  'x-forwarded-for': 64,
  'x-malformed-message': 1,
  'x-malformed-fields': 1_024,
  'x-secrets-in-query': 256,
}

/** Headers as metadata, which is ASCII only: other characters don't occur in valid values. */
function metadataOf(headers: HeadersInit = {}): Metadata {
  const metadata = new Metadata()
  const given = new Headers(headers)
  // Replaces the incoming trace headers, because this is the next hop.
  if (tracing) for (const [name, value] of Object.entries(traceHeaders())) given.set(name, value)
  for (const [name, length] of Object.entries(passing)) {
    const value = given.get(name)?.replace(/[^ -~]/g, '?')
    if (value === undefined) continue
    const isPairs = name === 'x-malformed-fields' && value.length > length
    metadata.set(name, value.slice(0, isPairs ? value.lastIndexOf('&', length) : length))
  }
  return metadata
}

/**
 * The refusal of a server, or the error of a call without one. An answer without details is of no server: its connection was
 * lost, or something on the way couldn't reach one, whatever code grpc-js has for it.
 */
function connectErrorOf(error: ServiceError, deadline: number): ConnectError {
  const status = readStatus(error)
  if (status) {
    const result = new ConnectError(status.message, status.code)
    result.details = status.details.map(({ typeUrl, value }) => ({
      type: typeUrl.slice(typeUrl.lastIndexOf('/') + 1),
      value,
    }))
    return result
  }
  // grpc-js answers with this code at the deadline, at the server.
  if ((error.code as number) === Code.DeadlineExceeded || Date.now() >= deadline)
    return new ConnectError(late, Code.DeadlineExceeded)
  // The cause is for the log, which omits its message.
  return new ConnectError(unavailable, Code.Unavailable, undefined, undefined, error)
}

/** The details of a refusal, which only a server sends. */
function readStatus({ metadata }: ServiceError) {
  const [bytes] = metadata?.get('grpc-status-details-bin') ?? []
  if (!Buffer.isBuffer(bytes)) return undefined
  try {
    return fromBinary(StatusSchema, bytes)
  } catch {
    return undefined
  }
}
