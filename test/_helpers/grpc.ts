/** A generic gRPC client that uses only the descriptors of the services. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { DescMessage } from '@bufbuild/protobuf'
import {
  create,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from '@bufbuild/protobuf'
import {
  type CallOptions,
  type ChannelCredentials,
  Client,
  type ClientUnaryCall,
  credentials,
  Metadata,
  type ServiceError,
  status,
} from '@grpc/grpc-js'
import test from 'ava'
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import { StatusSchema } from '../../proto/gen/google/rpc/status_pb.js'
import type { Teardown } from './database.js'
import { patience } from './wait.js'

/** Metadata, deadline and cancellation of a call. */
export interface GrpcOptions extends CallOptions {
  readonly token?: string
  readonly metadata?: Record<string, string>
  /** Receives the call, to cancel it. */
  readonly started?: (call: ClientUnaryCall) => void
  /** Returns UNAVAILABLE and OVERLOADED, for tests of them. Otherwise the call is retried after the time in its RetryInfo. */
  readonly once?: boolean
}

/** Calls RPCs over one connection. */
export interface GrpcClient {
  call<I extends DescMessage, O extends DescMessage>(
    rpc: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    options?: GrpcOptions,
  ): Promise<MessageShape<O>>
  close(): void
}

/** Opens a client of the server at `host:port`; without TLS by default. */
export function openGrpc(target: string, channel = credentials.createInsecure()): GrpcClient {
  const client = new Client(target, channel)
  const send: GrpcClient['call'] = (rpc, request, { token, metadata = {}, started, once: _, ...options } = {}) =>
    new Promise((resolve, reject) => {
      const sent = new Metadata()
      if (token !== undefined) sent.set('authorization', `Bearer ${token}`)
      for (const [name, value] of Object.entries(metadata)) sent.set(name, value)
      const call = client.makeUnaryRequest(
        `/${rpc.parent.typeName}/${rpc.name}`,
        message => Buffer.from(toBinary(rpc.input, message)),
        bytes => fromBinary(rpc.output, bytes),
        create(rpc.input, request),
        sent,
        options,
        (error, message) => (error ? reject(error) : resolve(message!)),
      )
      started?.(call)
    })
  return {
    async call(rpc, request, options = {}) {
      for (let times = 1; ; times++) {
        try {
          return await send(rpc, request, options)
        } catch (error) {
          const { code, info, retryInfo } = refusalOf(error)
          const isBusy = code === status.UNAVAILABLE || info?.reason === 'OVERLOADED'
          const wait = isBusy && Number(retryInfo?.retryDelay?.seconds ?? 0)
          if (!wait || options.once || times === patience) throw error
          await sleep(wait * 1000)
        }
      }
    },
    close: () => client.close(),
  }
}

/** Opens a client that closes with the test. */
export function grpcOf(t: Teardown, target: string, channel?: ChannelCredentials): GrpcClient {
  const client = openGrpc(target, channel)
  t.teardown(async () => client.close())
  return client
}

/** Opens a client of a file's service before its tests, and closes it after them. */
export function grpcForFile(service: { readonly grpc: string }): GrpcClient {
  const client = {} as GrpcClient
  test.serial.before(() => {
    Object.assign(client, openGrpc(service.grpc))
  })
  test.after.always(() => client.close?.())
  return client
}

/** The error of a failed call: code, message, and machine-readable details. */
export function refusalOf(error: unknown) {
  const { code, details: message, metadata } = error as ServiceError
  const [bytes] = metadata?.get('grpc-status-details-bin') ?? []
  const decoded = Buffer.isBuffer(bytes) ? fromBinary(StatusSchema, bytes) : undefined
  const find = <D extends DescMessage>(schema: D): MessageShape<D> | undefined => {
    const detail = decoded?.details.find(({ typeUrl }) => typeUrl === `type.googleapis.com/${schema.typeName}`)
    return detail && fromBinary(schema, detail.value)
  }
  return {
    code,
    message,
    status: decoded,
    info: find(ErrorInfoSchema),
    badRequest: find(BadRequestSchema),
    retryInfo: find(RetryInfoSchema),
  }
}
