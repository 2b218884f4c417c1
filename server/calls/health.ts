/**
 * Health checking (grpc.health.v1). Check asks now, Watch and List report the status that was set last. The package
 * grpc-health-check doesn't do: it can't end its Watch calls, which would hold up each stop for the whole grace period, and
 * it loads a second protobuf library.
 */
import { create } from '@bufbuild/protobuf'
import { type ServerUnaryCall, type ServerWritableStream, status as Status, type sendUnaryData } from '@grpc/grpc-js'
import {
  type HealthCheckRequest,
  type HealthCheckResponse,
  HealthCheckResponse_ServingStatus,
  HealthCheckResponseSchema,
  type HealthListResponse,
  HealthListResponseSchema,
} from '../../proto/gen/grpc/health/v1/health_pb.js'

const { SERVING, NOT_SERVING, SERVICE_UNKNOWN } = HealthCheckResponse_ServingStatus

/** Answers the check of a known service. */
type Check = (
  incoming: ServerUnaryCall<HealthCheckRequest, HealthCheckResponse>,
  callback: sendUnaryData<HealthCheckResponse>,
) => void

type Watch = ServerWritableStream<HealthCheckRequest, HealthCheckResponse>

/** Creates the handlers for services of these names, all of them serving at first. */
export function createHealth(names: readonly string[], check: Check) {
  let current = SERVING
  const watches = new Set<Watch>()
  let closed = false
  const response = (name: string) =>
    create(HealthCheckResponseSchema, { status: names.includes(name) ? current : SERVICE_UNKNOWN })

  /** Sets the status of all services, and sends a change to watchers. */
  function setServing(serving: boolean) {
    if (serving === (current === SERVING)) return
    current = serving ? SERVING : NOT_SERVING
    for (const watch of watches) {
      const { service } = watch.request
      // The status of an unknown service never changes.
      if (names.includes(service)) watch.write(response(service))
    }
  }

  return {
    handlers: {
      check(incoming: Parameters<Check>[0], callback: Parameters<Check>[1]) {
        if (names.includes(incoming.request.service)) check(incoming, callback)
        else callback({ code: Status.NOT_FOUND, details: 'There is no such service.' })
      },
      watch(watch: Watch) {
        watch.write(response(watch.request.service))
        if (closed) return void watch.end()
        watches.add(watch)
        watch.on('cancelled', () => watches.delete(watch))
      },
      list(_: unknown, callback: sendUnaryData<HealthListResponse>) {
        const statuses = Object.fromEntries(names.map(name => [name, response(name)]))
        callback(null, create(HealthListResponseSchema, { statuses }))
      },
    },
    setServing,
    /** Reports that no service is serving, and ends the Watch calls, for which a closing server would wait. */
    close() {
      setServing(false)
      closed = true
      for (const watch of watches) watch.end()
      watches.clear()
    },
  }
}
