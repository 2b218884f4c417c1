import {
  create,
  type DescMessage,
  type DescMethodUnary,
  type MessageInitShape,
  type MessageShape,
} from '@bufbuild/protobuf'
import { Code, ConnectError, type ContextValues, type Transport, type UnaryResponse } from '@connectrpc/connect'
import { turnKey } from '../limits/scheduler.js'
import {
  type IncomingCall,
  type LocalAdministrator,
  readMalformedFields,
  readSecretsInQuery,
  type Turn,
} from '../requests/call.js'
import type { FieldViolation, Refusal } from '../requests/refusal.js'
import { describeRefusal } from './error-details.js'
import type { Calls } from './run.js'

const never = new AbortController().signal

/**
 * Creates a transport for a gateway, or for the command line, in the same process: requests and answers pass without a
 * socket or an encoding. Headers are those of this project's gateway and are trusted; answers have none. `local` is the
 * administrator at a command line on the database itself.
 */
export function createInProcessTransport(
  calls: Calls,
  { local }: { readonly local?: LocalAdministrator } = {},
): Transport {
  async function unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    headers: HeadersInit | undefined,
    message: MessageInitShape<I>,
    values?: ContextValues,
  ): Promise<UnaryResponse<I, O>> {
    const call = new InProcessCall(createReader(headers), signal ?? never, timeoutMs, values?.get(turnKey), local)
    try {
      const response = await calls.run(method, create(method.input, message), call)
      return new Response(method, response as MessageShape<O>)
    } catch (error) {
      const refusal = error as Refusal
      const { text, details } = describeRefusal(refusal, call)
      throw new ConnectError(text, refusal.code, undefined, details, refusal.cause)
    }
  }

  return {
    unary,
    stream: async () => {
      throw new ConnectError('There are no streams.', Code.Unimplemented)
    },
  }
}

/** A call by its headers. */
class InProcessCall implements IncomingCall {
  readonly endpoint = 'http'
  readonly authorization: string | undefined
  address: string
  readonly acceptLanguage: string | undefined
  readonly requestId: string
  readonly traceparent: string | undefined
  readonly tracestate: string | undefined
  readonly undecodable: boolean
  readonly malformedFields: readonly FieldViolation[]
  readonly secretsInQuery: readonly string[]
  deadline: number

  constructor(
    read: (name: string) => string | undefined,
    readonly signal: AbortSignal,
    timeoutMs: number | undefined,
    readonly turn: Turn | undefined,
    readonly local: LocalAdministrator | undefined,
  ) {
    this.authorization = read('authorization')
    this.address = read('x-forwarded-for') ?? ''
    this.acceptLanguage = read('accept-language')
    this.requestId = read('x-request-id') ?? ''
    this.traceparent = read('traceparent')
    this.tracestate = read('tracestate')
    this.undecodable = read('x-malformed-message') !== undefined
    this.malformedFields = readMalformedFields(read('x-malformed-fields'))
    this.secretsInQuery = readSecretsInQuery(read('x-secrets-in-query'))
    this.deadline = timeoutMs === undefined || timeoutMs <= 0 ? Number.POSITIVE_INFINITY : Date.now() + timeoutMs
  }

  get gone() {
    return this.signal.aborted
  }
}

/** The response to a call. */
class Response<I extends DescMessage, O extends DescMessage> implements UnaryResponse<I, O> {
  readonly stream = false

  constructor(
    readonly method: DescMethodUnary<I, O>,
    readonly message: MessageShape<O>,
  ) {}

  get service() {
    return this.method.parent
  }

  // Created on demand: the gateway reads neither.
  get header() {
    return new Headers()
  }

  get trailer() {
    return new Headers()
  }
}

/** Reads headers by their names in lower case. */
function createReader(headers: HeadersInit = {}): (name: string) => string | undefined {
  const isRecord = !(Symbol.iterator in headers)
  // The gateway passes a record in lower case; Headers of it would take longer than the rest of a call.
  if (isRecord && Object.keys(headers).every(name => name === name.toLowerCase())) return name => headers[name]
  const all = new Headers(headers)
  return name => all.get(name) ?? undefined
}
