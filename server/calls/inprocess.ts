import { create, type DescMethodUnary } from '@bufbuild/protobuf'
import { Code, ConnectError, type Transport } from '@connectrpc/connect'
import { type Call, readMalformedFields } from '../call.js'
import type { Refusal } from '../refusal.js'
import type { Calls } from './dispatch.js'
import { detailsOf } from './errordetails.js'

const never = new AbortController().signal
const none = new Headers()

/**
 * The way from a gateway in the same process: calls are handed over as they are, without a socket or an encoding.
 * Headers come from our own gateway and are believed.
 */
export function createInProcessTransport(calls: Calls): Transport {
  return {
    async unary(method, signal, timeoutMs, header, message) {
      const headers = (header ?? {}) as Record<string, string | undefined>
      const call: Call = {
        authorization: headers.authorization,
        address: headers['x-forwarded-for'] ?? '',
        acceptLanguage: headers['accept-language'],
        requestId: headers['x-request-id'] ?? '',
        malformedFields: readMalformedFields(headers['x-malformed-fields']),
        signal: signal ?? never,
        deadline: timeoutMs === undefined || timeoutMs <= 0 ? Number.POSITIVE_INFINITY : Date.now() + timeoutMs,
      }
      try {
        const response = await calls.run(method as DescMethodUnary, create(method.input, message), call)
        return {
          stream: false,
          service: method.parent,
          method,
          header: none,
          trailer: none,
          message: response,
        } as never
      } catch (error) {
        const refusal = error as Refusal
        throw new ConnectError(refusal.message, refusal.code, undefined, detailsOf(refusal, call.requestId) as never)
      }
    },
    stream() {
      return Promise.reject(new ConnectError('There are no streams.', Code.Unimplemented))
    },
  }
}
