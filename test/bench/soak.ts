/** Three servers behind a gateway for a quarter of an hour, at 70% of their capacity, one of them killed each minute. */
import { readdirSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Report } from './load.js'
import { levelOf, type Prepared, percentile } from './measure.js'
import { memory, startGateway, startLoad } from './processes.js'
import { type Bench, serviceOn } from './world.js'

const minutes = 15

/** Share of their capacity. */
const part = 0.7

/** Below the ephemeral ports, so that no client takes a server's port while it is down. */
const ports = [25_051, 25_052, 25_053]

/** Seconds into each minute after which a server is killed; it is started again at once. */
const killAfter = 20

export async function soak(bench: Bench): Promise<Prepared> {
  const first = await serviceOn(bench, 1000, bench.cost, { AUTH_TRUSTED_PROXIES: '127.0.0.1' })
  const start = (port: number) => first.again({ AUTH_GRPC_ADDRESS: `127.0.0.1:${port}` })
  const servers = await Promise.all(ports.map(start))
  await first.service.stop()
  const gateway = await startGateway(...ports)
  const load = startLoad()
  const mix = { me: 16, refresh: 3, login: 1 }
  const job = { world: first.world, endpoint: 'http', port: gateway.http, mix } as const

  /** Kills the server whose turn it is, and starts it again. */
  async function kill(turn: number): Promise<void> {
    const index = turn % servers.length
    const { pid, grpc, stop } = servers[index]!
    process.kill(pid, 'SIGKILL')
    // It occupies its port until it has ended.
    await stop()
    servers[index] = await start(grpc)
  }

  return {
    rounds: 1,
    segments: {
      async soak(scale) {
        const { perSecond } = await load.ask({ ...job, connections: 32, seconds: 20 * scale, lead: 5 * scale })
        const reports: Report[] = []
        const gatewayMemory: number[] = []
        const serverMemory: number[] = []
        const handles: number[] = []
        for (let minute = 0; minute < minutes; minute++) {
          const [report] = await Promise.all([
            load.ask({ ...job, connections: 64, rate: part * perSecond, seconds: 60 * scale }),
            sleep(killAfter * 1000 * scale).then(() => kill(minute)),
          ])
          reports.push(report)
          // Until the load's own connections are closed.
          await sleep(1000)
          gatewayMemory.push(memory(gateway.pid))
          serverMemory.push(Math.max(...servers.map(({ pid }) => memory(pid))))
          handles.push(handlesOf(gateway.pid))
        }
        const p99s = reports.map(({ latencies }) => percentile(latencies, 99))
        const all = reports.flatMap(({ lost, errors }) => Object.entries({ ...lost, ...errors }))
        const sum = (entries: [string, number][]) => entries.reduce((total, [, count]) => total + count, 0)
        const unavailable = all.filter(([what]) => /^503 .*:unavailable"/.test(what))
        return {
          figures: {
            answers: reports.reduce((total, { answers }) => total + answers, 0),
            unavailable: sum(unavailable),
            memory: Math.max(...gatewayMemory),
            'server memory': Math.max(...serverMemory),
            'memory level': levelOf(gatewayMemory),
            'handles level': levelOf(handles),
            'p99 level': levelOf(p99s),
          },
          latencies: reports.flatMap(({ latencies }) => latencies),
          errors: Object.fromEntries(all.filter(([what]) => !/^503 .*:unavailable"/.test(what))),
          note: `${Math.round(part * perSecond)} a second; p99 of each minute, ms: ${p99s.map(Math.round).join(' ')}; handles ${handles.join(' ')}`,
        }
      },
    },
    rows: [
      { label: 'right answers', subject: 'soak', figure: 'answers' },
      { label: 'answered with 503 UNAVAILABLE', subject: 'soak', figure: 'unavailable' },
      { label: 'latency', subject: 'soak', figure: 'p99' },
      { label: 'its last third ÷ the second', subject: 'soak', figure: 'p99 level', goal: { most: 1.25 } },
      { label: 'most memory of the gateway', subject: 'soak', figure: 'memory' },
      { label: 'its last third ÷ the second', subject: 'soak', figure: 'memory level', goal: { most: 1.05 } },
      { label: 'most memory of a server', subject: 'soak', figure: 'server memory' },
      {
        label: 'handles of the gateway, last third ÷ second',
        subject: 'soak',
        figure: 'handles level',
        goal: { most: 1.05 },
      },
    ],
  }
}

function handlesOf(pid: number): number {
  return readdirSync(`/proc/${pid}/fd`).length
}
