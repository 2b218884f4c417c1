/** Segments that several scenarios use. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Job } from './load.js'
import type { Segment } from './measure.js'
import type { Endpoint } from './operations.js'
import { type Load, type Process, processorSeconds, type ServiceProcess } from './processes.js'

/** The port of a service for an endpoint. */
export function portOf({ http, grpc }: ServiceProcess, endpoint: Endpoint): number {
  return endpoint === 'grpc' ? grpc : http
}

/** Measures a load, and the processor time that it costs these processes. */
export function underLoad(load: Load, on: readonly Process[], job: Job): Segment {
  const pids = on.map(({ pid }) => pid)
  return async scale => {
    const before = processorSeconds(pids)
    const report = await load.ask({ ...job, seconds: job.seconds * scale, lead: (job.lead ?? 0) * scale })
    const used = processorSeconds(pids) - before
    const { perSecond, answers, latencies, lost, errors } = report
    const figures = { perSecond, time: 1e6 / perSecond, processor: (used * 1e6) / answers }
    return { figures, latencies, errors: { ...lost, ...errors } }
  }
}

/** Waits afterwards, because hashes without a waiting caller can't be stopped. */
export function settled(segment: Segment): Segment {
  return async scale => {
    const sample = await segment(scale)
    await sleep(600)
    return sample
  }
}
