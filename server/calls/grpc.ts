// The gRPC server: it mounts all RPCs on grpc-js, with health checking (grpc.health.v1) and reflection.
import { randomUUID } from 'node:crypto'
import type { EventEmitter } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import {
  create,
  type DescMessage,
  type DescMethodUnary,
  type DescService,
  isMessage,
  type Message,
  toBinary,
} from '@bufbuild/protobuf'
import { anyPack } from '@bufbuild/protobuf/wkt'
import {
  experimental,
  Metadata,
  Server,
  ServerCredentials,
  type ServerDuplexStream,
  type ServiceDefinition,
  type sendUnaryData,
  type UntypedHandleCall,
} from '@grpc/grpc-js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { BadRequestSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import { StatusSchema } from '../../proto/gen/google/rpc/status_pb.js'
import { Health } from '../../proto/gen/grpc/health/v1/health_pb.js'
import {
  ServerReflection,
  type ServerReflectionRequest,
  type ServerReflectionResponse,
} from '../../proto/gen/grpc/reflection/v1/reflection_pb.js'
import type { Certificates } from '../process/certificates.js'
import { type Address, formatAddress } from '../process/settings.js'
import { type IncomingCall, readMalformedFields, readReason, readSecretsInQuery } from '../requests/call.js'
import { costOfInput, readBinary } from '../requests/input.js'
import { type FieldViolation, Refusal } from '../requests/refusal.js'
import { describeRefusal } from './error-details.js'
import { correctTimeouts, decompressLater } from './grpc-js.js'
import { createHealth } from './health.js'
import { createPeerOf, type Incoming, type Peer, type Trust, textOf } from './peer.js'
import { createReflection, reflectionNames } from './reflection.js'
import type { Calls } from './run.js'

/** Largest request, in bytes. */
const maxRequest = 64 * 1024

/** What a gRPC server is made of. */
export interface GrpcDeps extends Trust {
  readonly calls: Calls
  /** What it presents to callers; absent: no TLS. */
  readonly certificates?: Certificates | undefined
}

/** A gRPC server that listens. */
export type GrpcServer = Awaited<ReturnType<typeof startGrpcServer>>

/** Starts a server at an address; port 0 means any free port. */
export async function startGrpcServer(address: Address, deps: GrpcDeps) {
  const server = new Server({
    'grpc.max_receive_message_length': maxRequest,
    'grpc.max_send_message_length': 4 * 1024 * 1024,
    'grpc.max_concurrent_streams': 128,
    // A client that reconnects resolves names again: servers that were added later get calls, too. The age also ends
    // connections of clients that vanished. There are no keepalive pings: grpc-js cuts the calls of a connection that it pings
    // during the grace (https://github.com/grpc/grpc-node/issues/3068).
    'grpc.max_connection_age_ms': 10 * 60_000,
    'grpc.max_connection_age_grace_ms': 30_000,
    // Statistics that nothing reads.
    'grpc.enable_channelz': 0,
    interceptors: [decompressLater],
  })
  correctTimeouts(server)
  const { services } = deps.calls
  const peerOf = createPeerOf(deps)

  function serve(method: DescMethodUnary, request: Message, incoming: Incoming, callback: sendUnaryData<Message>) {
    const call = new GrpcCall(incoming, peerOf(incoming))
    const answer: typeof callback = (...result) => {
      // grpc-js reports an answered call as cancelled.
      incoming.removeAllListeners('cancelled')
      callback(...result)
    }
    deps.calls.run(method, request, call).then(
      response => answer(null, response),
      refusal => answer(toStatus(refusal, call)),
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
  const { watch } = health.handlers
  type Watch = Parameters<typeof watch>[0]
  server.addService(definitionOf(Health), {
    ...health.handlers,
    watch: (stream: Watch) => (inputs.get(stream.request)?.undecodable ? refuseMessage(stream) : watch(stream)),
  } as Record<string, UntypedHandleCall>)

  const reflect = createReflection([...services, Health, ServerReflection])
  for (const typeName of reflectionNames)
    server.addService(definitionOf({ typeName, methods: ServerReflection.methods }), {
      serverReflectionInfo(stream: ServerDuplexStream<ServerReflectionRequest, ServerReflectionResponse>) {
        const answer = (request: ServerReflectionRequest) => stream.write(reflect(request))
        stream.on('data', request => (inputs.get(request)?.undecodable ? refuseMessage(stream) : answer(request)))
        stream.on('end', () => stream.end())
      },
    })

  const port = await promisify(server.bindAsync.bind(server))(formatAddress(address), credentialsOf(deps.certificates))
  return {
    port,
    /** Sets the status that health checks report. */
    setServing: health.setServing,
    /** Takes no new calls, lets calls in flight end for `grace` milliseconds, then cuts them. */
    async close(grace: number) {
      health.close()
      server.drain(formatAddress({ ...address, port }), grace)
      // A connection without a finished TLS handshake has no calls to wait for, and no session to cut.
      await Promise.race([promisify(server.tryShutdown.bind(server))(), sleep(grace, undefined, { ref: false })])
    },
  }
}

/** TLS where there is a certificate; callers must present one of the authority where there is one. */
function credentialsOf(certificates: Certificates | undefined): ServerCredentials {
  if (!certificates?.identified) return ServerCredentials.createInsecure()
  const { verifying } = certificates
  // grpc-js declares the two providers the other way round.
  return experimental.createCertificateProviderServerCredentials(
    certificates,
    verifying ? certificates : null,
    verifying,
  )
}

/** A service as grpc-js describes it. */
function definitionOf({ typeName, methods }: Pick<DescService, 'typeName' | 'methods'>): ServiceDefinition {
  const definition: Record<string, ServiceDefinition[string]> = {}
  for (const { name, localName, methodKind, input, output } of methods)
    definition[localName] = {
      path: `/${typeName}/${name}`,
      requestStream: methodKind === 'bidi_streaming',
      responseStream: methodKind !== 'unary',
      requestSerialize: message => Buffer.from(toBinary(input, message)),
      requestDeserialize: bytes => decode(input, bytes),
      responseSerialize: message => asBuffer(toBinary(output, message)),
      responseDeserialize: bytes => decode(output, bytes),
    }
  return definition
}

/** How messages were decoded. An error in `requestDeserialize` would be answered with INTERNAL. */
const inputs = new WeakMap<Message, ReturnType<typeof readBinary> & { readonly bytes: number }>()

function decode(schema: DescMessage, bytes: Buffer): Message {
  const input = readBinary(schema, bytes)
  inputs.set(input.message, { ...input, bytes: bytes.length })
  return input.message
}

/** Ends a stream whose request can't be decoded. */
function refuseMessage(stream: EventEmitter): void {
  stream.emit(
    'error',
    toStatus(new Refusal(Reason.MALFORMED_REQUEST, { text: 'The message can’t be decoded.' }), {
      requestId: '',
      acceptLanguage: undefined,
    }),
  )
}

/** A call by its metadata. Few read the getters, which cost more than the rest of a call. */
class GrpcCall implements IncomingCall {
  readonly endpoint = 'grpc'
  readonly authorization: string | undefined
  address: string
  readonly networks: readonly string[]
  readonly certificate: string | undefined
  readonly forwardedFor: string | undefined
  readonly acceptLanguage: string | undefined
  readonly requestId: string
  readonly traceparent: string | undefined
  readonly undecodable: boolean
  readonly malformedFields: readonly FieldViolation[]
  readonly secretsInQuery: readonly string[]
  readonly inputCost: number
  deadline: number
  private aborter: AbortController | undefined

  constructor(
    private readonly incoming: Incoming,
    { address, proxied, networks, certificate }: Peer,
  ) {
    const read = (name: string) => textOf(incoming, name)
    const requestId = proxied ? read('x-request-id') : undefined
    this.authorization = read('authorization')
    this.address = address
    this.networks = networks
    this.certificate = certificate
    this.forwardedFor = proxied ? undefined : (read('x-forwarded-for') ?? '')
    this.acceptLanguage = read('accept-language')
    this.requestId = requestId && /^[\w-]{1,64}$/.test(requestId) ? requestId : randomUUID()
    this.traceparent = read('traceparent')
    const { bytes = 0, values, undecodable, malformed } = inputs.get(incoming.request) ?? {}
    this.inputCost = costOfInput(bytes, values)
    this.undecodable = undecodable || read('x-malformed-message') !== undefined
    this.malformedFields = malformed ?? readMalformedFields(read('x-malformed-fields'))
    this.secretsInQuery = readSecretsInQuery(read('x-secrets-in-query'))
    this.deadline = Number(incoming.getDeadline())
  }

  get tracestate() {
    return textOf(this.incoming, 'tracestate')
  }

  get reason() {
    return readReason(textOf(this.incoming, 'x-reason'))
  }

  get signal() {
    if (!this.aborter) {
      const aborter = new AbortController()
      this.aborter = aborter
      if (this.gone) aborter.abort()
      else this.incoming.on('cancelled', () => aborter.abort())
    }
    return this.aborter.signal
  }

  get gone() {
    return this.incoming.cancelled
  }
}

/** The same bytes, without a copy. */
function asBuffer({ buffer, byteOffset, byteLength }: Uint8Array<ArrayBuffer>): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength)
}

/**
 * Maximum bytes of the trailers of a refusal, without those of gRPC itself: clients accept 8 KiB by default, and a larger
 * block can end their connection.
 */
const maxTrailers = 7 * 1024

/** Maximum characters of the text of a refusal that is too large. */
const cutText = 500

/** The status of a refusal. Where it would be too large, its text is cut, and the last of its wrong fields are left out. */
function toStatus(refusal: Refusal, call: Parameters<typeof describeRefusal>[1]) {
  const { text: whole, details: all } = describeRefusal(refusal, call)
  const wrong = all.map(({ value }) => value).find(value => isMessage(value, BadRequestSchema))
  for (let text = whole; ; text = [...text].slice(0, cutText).join('')) {
    const details = all.map(({ desc, value }) => anyPack(desc, value))
    const bytes = toBinary(StatusSchema, create(StatusSchema, { code: refusal.code, message: text, details }))
    const size = encodeURI(text).length + (bytes.length * 4) / 3
    if (size > maxTrailers && (text.length > cutText || wrong?.fieldViolations.length)) {
      if (wrong && text.length <= cutText) wrong.fieldViolations.length = Math.floor(wrong.fieldViolations.length * 0.8)
      continue
    }
    const metadata = new Metadata()
    metadata.set('grpc-status-details-bin', Buffer.from(bytes))
    return { code: refusal.code as number, details: text, metadata }
  }
}
