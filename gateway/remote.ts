/**
 * Transport to services in other processes, over gRPC. Calls are balanced over all servers that answer (servers.ts). A
 * server that dies is skipped at once, one that hangs when it answers neither a health check nor a call in time; the channel
 * reconnects to both. A call that no server has begun goes to the next server; a call that a server may have begun is
 * retried only if its definition is idempotent, and once. gRPC's own retries (proposal A6) don't cover answers that begin
 * and break off.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
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
import { Client, credentials, experimental, type ServiceError } from '@grpc/grpc-js'
import { Changes } from '../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { StatusSchema } from '../proto/gen/google/rpc/status_pb.js'
import {
  Health,
  type HealthCheckResponse,
  HealthCheckResponse_ServingStatus,
} from '../proto/gen/grpc/health/v1/health_pb.js'
import { inSpan, SpanKind, traceHeaders, tracing } from '../server/observability/tracing.js'
import {
  type BalancedCall,
  CallMetadata,
  countServers,
  isConnected,
  roundRobin,
  type Server,
  type Health as ServerHealth,
  type ServerStats,
  type Servers,
  serversOption,
} from './servers.js'

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
  /** Gets a line when a server is lost, with the error of its connection, and when it is back. */
  readonly log?: Log
}

/** A pino logger fits. */
interface Log {
  info(fields: object, message: string): void
  warn(fields: object, message: string): void
}

/** A transport that holds connections. Its health check answers for all servers: SERVING while one of them is ready. */
type RemoteTransport = Transport & {
  /** Number of known servers, and of those that are connected and answer. */
  servers(): ServerStats
  /** Ends the waits of `Changes.Poll`: servers answer these calls now, and later ones without a wait. */
  endWaits(): void
  /** Closes the connections after the calls in progress. */
  close(): void
}

/** Messages for failed calls: they reveal neither addresses nor causes. */
const publicMessages: Partial<Record<Code, string>> = {
  [Code.Unavailable]: 'The service can’t answer now. Try again later.',
  [Code.DeadlineExceeded]: 'The deadline has passed. Try again.',
}

/**
 * Each server is checked a second after its last check, and has so many ms to answer; it needs at most 2 s. A server that
 * answers nothing meanwhile, neither the check nor a call, is lost.
 */
const checkInterval = 1_000
const checkTimeout = 2_500

/**
 * During calls, servers are pinged; a server that doesn't answer within the timeout is disconnected, with all its calls, after
 * at most 10 s. A busy server answers in time. When a server ends a connection, grpc-js cuts the calls in progress at the next
 * ping (https://github.com/grpc/grpc-node/issues/3068), so the interval is long compared to most calls.
 */
const keepalive = { 'grpc.keepalive_time_ms': 4_000, 'grpc.keepalive_timeout_ms': 6_000 }

const { IDEMPOTENT } = MethodOptions_IdempotencyLevel
const { SERVING, NOT_SERVING } = HealthCheckResponse_ServingStatus

/**
 * The service config (gRPC proposal A2), without outlier detection: grpc-js counts refusals as failures, so a client could
 * exclude healthy servers with wrong passwords.
 */
const serviceConfig = { loadBalancingConfig: [roundRobin] }

/** The RPC that waits at a server, which ends the wait half a second before the deadline. */
const { poll } = Changes.method

/** Milliseconds that a poll may take once waits have ended. */
const endedWait = 1_000

/** RPCs that may be retried. */
const idempotent: ReadonlySet<DescMethodUnary> = new Set(
  ([...Users.methods, ...ForgotPasswords.methods, ...Changes.methods] as DescMethodUnary[]).filter(
    rpc => rpc.idempotency === IDEMPOTENT,
  ),
)

/** Milliseconds before a retry: by then a lost server is skipped. */
const pause = 10

/** Maximum lost calls that are retried, enough for the failure of a server. Each answered call reduces the count by one. */
const maxLost = 500

/** A call in progress. */
interface Attempt extends BalancedCall {
  readonly method: DescMethodUnary
  /** Ends a call that may be retried, as lost. */
  readonly abandon?: () => void
}

/**
 * Creates a transport to services in other processes over gRPC, and connects. Answers have no headers and trailers, because
 * the services send no relevant ones.
 */
export function createRemoteTransport(options: RemoteOptions): RemoteTransport {
  const { target, certificates, serverName, log } = options
  const servers: Servers = new Map()
  const inFlight = new Set<Attempt>()
  let waitsEnded = false
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
      [serversOption]: servers,
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
    headers: HeadersInit | undefined,
    deadline: number,
    signal?: AbortSignal,
    only?: Server,
  ) {
    const { path, serialize, deserialize } = wireOf(method)
    return new Promise<Message>((resolve, reject) => {
      if (signal?.aborted) return reject(reasonOf(signal))
      let abandoned = false
      const cancel = () => call.cancel()
      const abandon = () => {
        abandoned = true
        cancel()
      }
      const attempt: Attempt = { method, ...(only && { only }), ...(idempotent.has(method) && { abandon }) }
      const isBrief = waitsEnded && method === poll
      const call = client.makeUnaryRequest<Message, Message>(
        path,
        serialize,
        deserialize,
        request,
        metadataOf(headers, attempt),
        { deadline: isBrief ? Math.min(deadline, Date.now() + endedWait) : deadline },
        (error, message) => {
          inFlight.delete(attempt)
          signal?.removeEventListener('abort', cancel)
          if (attempt.server && (!error || detailsOf(error))) attempt.server.answeredAt = performance.now()
          if (signal?.aborted) reject(reasonOf(signal))
          else if (abandoned) reject(new ConnectError(publicMessages[Code.Unavailable]!, Code.Unavailable))
          else if (error) reject(connectErrorOf(error))
          else resolve(message!)
        },
      )
      inFlight.add(attempt)
      signal?.addEventListener('abort', cancel)
    })
  }

  const checks = new Map<Server, Promise<void>>()

  /** Asks a server for its health, unless it is being asked already. */
  function check(server: Server): Promise<void> {
    const running = checks.get(server)
    if (running) return running
    const from = performance.now()
    const { check: rpc } = Health.method
    const made = callOnce(rpc, create(rpc.input), undefined, Date.now() + checkTimeout, undefined, server)
      .then(
        response => note(server, (response as HealthCheckResponse).status === SERVING ? 'ready' : 'not ready'),
        () => server.answeredAt < from && note(server, 'lost'),
      )
      .then(() => void checks.delete(server))
    checks.set(server, made)
    return made
  }

  /** Notes the health of a server. Calls in progress at a lost server go to another one if they may be repeated. */
  function note(server: Server, health: ServerHealth): void {
    const { health: before = 'ready', address } = server
    server.health = health
    if (health === before || servers.get(address) !== server) return
    if (health === 'ready') log?.info({ server: address }, 'a server is back')
    else void report(server, health)
    if (health !== 'lost') return
    for (const attempt of inFlight) if (attempt.server === server) attempt.abandon?.()
  }

  /** Logs that a server isn't ready, once it is known of every other whether it is. */
  async function report(server: Server, health: ServerHealth): Promise<void> {
    await Promise.all([...servers.values()].filter(each => each.health === undefined).map(check))
    const { address, failure } = server
    if (server.health !== health || servers.get(address) !== server) return
    const rest = isReady() ? 'others get its calls' : 'no other is ready'
    log?.warn({ server: address, why: failure }, `a server is ${health}: ${rest}`)
  }

  const checkAll = () => Promise.all([...servers.values()].map(check))
  const isReady = () => [...servers.values()].some(server => server.health === 'ready' && isConnected(server))

  /** The health of all servers together. What isn't known yet, or was bad, is asked now. */
  async function health(): Promise<Message> {
    if (!isReady()) {
      if (servers.size === 0)
        await promisify(client.waitForReady.bind(client))(Date.now() + checkTimeout).catch(() => {})
      await checkAll()
    }
    return create(Health.method.check.output, { status: isReady() ? SERVING : NOT_SERVING })
  }

  // Connects.
  client.getChannel().getConnectivityState(true)
  const checking = setInterval(checkAll, checkInterval).unref()

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
      if (!isLost || (lost >= maxLost && !waitsEnded)) throw error
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
    const deadline = timeoutMs === undefined || timeoutMs <= 0 ? Number.POSITIVE_INFINITY : Date.now() + timeoutMs
    const request = create(method.input, input)
    const call = idempotent.has(method) ? callWithRetry : callOnce
    const isCheck = (method as DescMethodUnary) === Health.method.check
    const message = isCheck ? await health() : await call(method, request, headers, deadline, signal)
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
    servers: () => countServers(servers),
    endWaits() {
      waitsEnded = true
      for (const { method, abandon } of inFlight) if (method === poll) abandon?.()
    },
    close() {
      clearInterval(checking)
      // Ends their checks without a line in the log.
      servers.clear()
      client.close()
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

/** Headers as metadata, which is ASCII only: other characters don't occur in valid values. */
function metadataOf(headers: HeadersInit = {}, call: BalancedCall): CallMetadata {
  const metadata = new CallMetadata(call)
  const pairs = Symbol.iterator in headers ? headers : Object.entries(headers)
  for (const [name = '', value = ''] of pairs) metadata.add(name, value.replace(/[^ -~]/g, '?'))
  // Replaces the incoming trace headers, because this is the next hop.
  if (tracing) for (const [name, value] of Object.entries(traceHeaders())) metadata.set(name, value)
  return metadata
}

function connectErrorOf(error: ServiceError): ConnectError {
  const code: Code = error.code as number
  const bytes = detailsOf(error)
  const status = bytes && readStatus(bytes)
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

/** The details of a refusal, which only a server sends. */
function detailsOf(error: ServiceError): Buffer | undefined {
  const [bytes] = error.metadata?.get('grpc-status-details-bin') ?? []
  return Buffer.isBuffer(bytes) ? bytes : undefined
}

function readStatus(bytes: Buffer) {
  try {
    return fromBinary(StatusSchema, bytes)
  } catch {
    return undefined
  }
}
