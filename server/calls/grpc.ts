import { randomUUID, X509Certificate } from 'node:crypto'
import type { Socket } from 'node:net'
import type { PeerCertificate } from 'node:tls'
import { create, type DescMethodUnary, type DescService, fromBinary, type Message, toBinary } from '@bufbuild/protobuf'
import { anyPack } from '@bufbuild/protobuf/wkt'
import {
  Metadata,
  Server,
  type ServerUnaryCall,
  type ServiceDefinition,
  type sendUnaryData,
  type UntypedHandleCall,
} from '@grpc/grpc-js'
import { LRUCache } from 'lru-cache'
import { StatusSchema } from '../../proto/gen/google/rpc/status_pb.js'
import { Health } from '../../proto/gen/health/v1/health_pb.js'
import { keyPrefix } from '../models/service.js'
import type { Log } from '../observability/log.js'
import type { OnSender } from '../observability/undeclared-proxy.js'
import type { Certificates } from '../process/certificates.js'
import { type Call, type IncomingCall, readMalformedFields } from '../requests/call.js'
import { createSenderOf, type Sender } from '../requests/client-address.js'
import type { Refusal } from '../requests/refusal.js'
import { credentialsOf } from './credentials.js'
import type { Calls } from './dispatch.js'
import { detailsOf } from './error-details.js'
import { createHealth } from './health.js'
import { addReflection } from './reflection.js'

/** Largest message that is taken, in bytes. */
const largestMessage = 64 * 1024

/** What a gRPC server is made of. */
export interface GrpcDeps extends Trust {
  readonly calls: Calls
  readonly log: Log
  /** What it presents to callers; absent: no TLS. */
  readonly certificates?: Certificates | undefined
}

/** The gRPC server of all services, for connections that somebody else takes. */
export interface GrpcServer {
  /** Speaks gRPC on a connection that came in. */
  take(socket: Socket): void
  /** Tells health checkers whether the service can answer. */
  setServing(serving: boolean): void
  /** Takes no new calls, lets those under way end for `grace` milliseconds, then cuts them: connections end. */
  close(grace: number): void
}

/** Mounts all RPCs on grpc-js, with health checking (grpc.health.v1) and reflection. */
export function createGrpcServer(deps: GrpcDeps): GrpcServer {
  const server = new Server({
    'grpc.max_receive_message_length': largestMessage,
    'grpc.max_send_message_length': 4 * 1024 * 1024,
    'grpc.max_metadata_size': 16 * 1024,
    'grpc.max_concurrent_streams': 128,
    'grpc.keepalive_time_ms': 60_000,
    'grpc.keepalive_timeout_ms': 20_000,
    'grpc.max_connection_idle_ms': 30 * 60_000,
    // Who connects anew looks names up anew: servers that came later get calls, too.
    'grpc.max_connection_age_ms': 10 * 60_000,
    'grpc.max_connection_age_grace_ms': 30_000,
    // Statistics that nothing here shows.
    'grpc.enable_channelz': 0,
  })
  const { services } = deps.calls
  const senderOf = createSenderOfCall(deps)

  function serve(method: DescMethodUnary, request: Message, incoming: Incoming, callback: sendUnaryData<Message>) {
    const call = toCall(incoming, senderOf(incoming))
    const answer: typeof callback = (...result) => {
      // grpc-js says of an answered call that it was cancelled; nobody needs to hear that.
      incoming.removeAllListeners('cancelled')
      callback(...result)
    }
    deps.calls.run(method, request, call).then(
      response => answer(null, response),
      refusal => answer(toStatus(refusal, call.requestId)),
    )
  }

  for (const service of services) {
    const handlers: Record<string, UntypedHandleCall> = {}
    for (const method of service.methods as DescMethodUnary[])
      handlers[method.localName] = (incoming: Incoming, callback: sendUnaryData<Message>) =>
        serve(method, incoming.request, incoming, callback)
    server.addService(definitionOf(service), handlers)
  }

  const names = ['', ...services.map(({ typeName }) => typeName)]
  const health = createHealth(names, (incoming, callback) =>
    serve(Health.method.check, incoming.request, incoming, callback as sendUnaryData<Message>),
  )
  server.addService(definitionOf(health.service), health.handlers as Record<string, UntypedHandleCall>)
  addReflection(server, services)

  const { injectConnection, drain } = server.createConnectionInjector(credentialsOf(deps.certificates))
  return {
    take: injectConnection,
    setServing: health.setServing,
    close(grace) {
      health.close()
      // Not `forceShutdown`, which knows of no connections where channelz is off.
      drain(grace)
      server.tryShutdown(() => {})
    },
  }
}

/** A service as grpc-js wants it described. */
function definitionOf({ typeName, methods }: DescService): ServiceDefinition {
  const definition: Record<string, ServiceDefinition[string]> = {}
  for (const { name, localName, methodKind, input, output } of methods)
    definition[localName] = {
      path: `/${typeName}/${name}`,
      requestStream: false,
      responseStream: methodKind === 'server_streaming',
      requestSerialize: message => Buffer.from(toBinary(input, message)),
      requestDeserialize: bytes => fromBinary(input, bytes),
      responseSerialize: message => asBuffer(toBinary(output, message)),
      responseDeserialize: bytes => fromBinary(output, bytes),
    }
  return definition
}

/** Whose word on the client's address is taken: that of gateways. */
interface Trust {
  /** Told who sent each call, and of its `x-forwarded-for`, believed or not; of that nothing where a service shows its key. */
  readonly onSender?: OnSender
  /** Addresses and CIDR blocks of gateways, where callers present no certificates. */
  readonly trustedProxies: readonly string[]
  /** Names in the certificates of gateways, where callers present them. */
  readonly gatewayNames: readonly string[]
}

/** Who sent a call, by its certificate. */
type Peer = Pick<Call, 'certificate'>

type Incoming = ServerUnaryCall<Message, Message>

/**
 * Tells who sent a call. A certificate outweighs the address, which others on the network may take. It is a gateway's when
 * a DNS name in it is one of `gatewayNames`, or, where it has no DNS names, its common name (RFC 6125, 6.4.4).
 */
function createSenderOfCall({ trustedProxies, gatewayNames, onSender }: Trust): (incoming: Incoming) => Sender & Peer {
  const senderOf = createSenderOf(trustedProxies)
  // To read a certificate takes longer than the rest of a call.
  const known = new LRUCache<string, ReturnType<typeof read>>({ max: 1000 })

  function read({ raw, subject }: PeerCertificate) {
    const certificate = new X509Certificate(raw)
    const options = { subject: 'default', wildcards: false } as const
    const trusted = gatewayNames.some(name => certificate.checkHost(name, options) !== undefined)
    return { trusted, name: trusted ? undefined : ([subject.CN].flat()[0] ?? certificate.subjectAltName) }
  }

  return incoming => {
    const certificate = incoming.getAuthContext().sslPeerCertificate
    let caller = certificate && known.get(certificate.fingerprint256)
    if (certificate && !caller) {
      caller = read(certificate)
      known.set(certificate.fingerprint256, caller)
    }
    // The peer reads `127.0.0.1:51000`, `[::1]:51000` or `::1:51000`.
    const peer = incoming
      .getPeer()
      .replace(/:\d+$/, '')
      .replace(/^\[(.*)\]$/, '$1')
    const forwardedFor = textOf(incoming, 'x-forwarded-for')
    const sender = senderOf(peer, forwardedFor, caller?.trusted)
    // Of services it is believed by their keys, which are looked at later.
    onSender?.(sender, textOf(incoming, 'authorization')?.includes(keyPrefix) ? undefined : forwardedFor)
    return { ...sender, certificate: caller?.name }
  }
}

function textOf(incoming: Incoming, name: string): string | undefined {
  return incoming.metadata.get(name)[0]?.toString()
}

function toCall(incoming: Incoming, { address, proxied, networks, certificate }: Sender & Peer): IncomingCall {
  const requestId = proxied ? textOf(incoming, 'x-request-id') : undefined
  let gone: AbortController | undefined
  return {
    authorization: textOf(incoming, 'authorization'),
    address,
    endpoint: 'grpc',
    networks,
    certificate,
    forwardedFor: proxied ? undefined : (textOf(incoming, 'x-forwarded-for') ?? ''),
    acceptLanguage: textOf(incoming, 'accept-language'),
    requestId: requestId && /^[\w-]{1,64}$/.test(requestId) ? requestId : randomUUID(),
    traceparent: textOf(incoming, 'traceparent'),
    // Only a tracer asks for it.
    get tracestate() {
      return textOf(incoming, 'tracestate')
    },
    malformedFields: readMalformedFields(textOf(incoming, 'x-malformed-fields')),
    // Few calls ask for it, and it costs more than the rest of this.
    get signal() {
      if (!gone) {
        const controller = new AbortController()
        gone = controller
        if (incoming.cancelled) controller.abort()
        else incoming.on('cancelled', () => controller.abort())
      }
      return gone.signal
    },
    get gone() {
      return incoming.cancelled
    },
    deadline: Number(incoming.getDeadline()),
  }
}

/** The same bytes, not a copy. */
function asBuffer({ buffer, byteOffset, byteLength }: Uint8Array<ArrayBuffer>): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength)
}

function toStatus(refusal: Refusal, requestId: string) {
  const details = detailsOf(refusal, requestId).map(({ desc, value }) => anyPack(desc, value))
  const status = create(StatusSchema, { code: refusal.code, message: refusal.message, details })
  const metadata = new Metadata()
  metadata.set('grpc-status-details-bin', Buffer.from(toBinary(StatusSchema, status)))
  return { code: refusal.code as number, details: refusal.message, metadata }
}
