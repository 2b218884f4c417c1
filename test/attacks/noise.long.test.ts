/**
 * A minute of meaningless bytes on each port. At the public and metrics ports the process survives it,
 * with stable memory and no connection left; for ports in trusted networks the test only reports how the process ended.
 */
import { createRequire } from 'node:module'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { scrape } from '../_helpers/metrics.js'
import { makeNoise, noises } from '../_helpers/noise.js'
import { freePort } from '../_helpers/relay.js'
import { type Spawned, spawnService } from '../_helpers/spawned.js'
import { waitFor } from '../_helpers/wait.js'

/** For each kind of noise; TEST_NOISE_SECONDS sets another time. */
const seconds = Number(process.env.TEST_NOISE_SECONDS ?? 60)

/** Those of `npm start`. */
const flags = (createRequire(import.meta.url)('#package').scripts.start as string).match(/--\S+/g) ?? []

const portOf = (url: string) => Number(new URL(url).port)

/** A service with metrics and Administration on separate ports. */
async function start(t: Parameters<typeof spawnService>[0]) {
  const [metrics, administration] = [await freePort(), await freePort()]
  const service = await spawnService(
    t,
    {
      AUTH_METRICS_ADDRESS: `127.0.0.1:${metrics}`,
      AUTH_ADMIN_ADDRESS: `127.0.0.1:${administration}`,
      // Otherwise each refusal is logged.
      AUTH_LOG_LEVEL: 'error',
    },
    { flags },
  )
  const gRPC = portOf(`http://${service.grpc}`)
  return { service, ports: { HTTP: portOf(service.http), metrics, gRPC, Administration: administration } }
}

/** The line of a process's output that says why it ended. */
function causeIn(output: string): string {
  return /^.*(?:Error|Assertion|FATAL|corrupt|free\(\)).*$/m.exec(output)?.[0].slice(0, 300) ?? 'without a word'
}

/** Sends noise for the given time, or until the process has ended. */
async function sendNoiseTo(service: Spawned, port: number, kind: keyof typeof noises) {
  const from = performance.now()
  const lasted = () => (performance.now() - from) / 1000
  const connections = await makeNoise(port, noises[kind]!, () => service.alive() && lasted() < seconds)
  return { connections, lasted: lasted() }
}

/** Resources of a process: megabytes of the heap and in all, and open files (sockets) where the system counts them. */
async function readUsage(metrics: number) {
  const { value } = await scrape(`http://127.0.0.1:${metrics}/metrics`)
  const megabytes = (name: string) => (value(name) ?? Number.NaN) / 2 ** 20
  return {
    heap: megabytes('nodejs_heap_size_used_bytes') + megabytes('nodejs_external_memory_bytes'),
    resident: megabytes('process_resident_memory_bytes'),
    files: value('process_open_fds') ?? 0,
  }
}

for (const port of ['HTTP', 'metrics'] as const) {
  for (const kind of Object.keys(noises)) {
    test.serial(
      `${kind} on the ${port} port: the process survives, serves other clients and leaks no memory or connection`,
      async t => {
        t.timeout(seconds * 1000 + 400_000)
        const { service, ports } = await start(t)
        const before = await readUsage(ports.metrics)
        const usages: (typeof before)[] = []
        let over = false
        t.teardown(() => {
          over = true
        })
        async function watch() {
          while (!over && service.alive()) {
            usages.push(await readUsage(ports.metrics))
            t.is((await fetch(`${service.http}/healthz`)).status, 200)
            await sleep((seconds * 1000) / 60)
          }
        }
        const watching = watch().catch(error => error)
        const { connections, lasted } = await sendNoiseTo(service, ports[port], kind)
        over = true
        const failed = await watching
        if (!service.alive()) t.fail(`it ended after ${lasted.toFixed(1)} s: ${causeIn(service.output())}`)
        t.is(failed, undefined)

        // The heap grows between two collections; only its size after one matters.
        const third = Math.floor(usages.length / 3)
        const floor = (part: typeof usages) => Math.round(Math.min(...part.map(({ heap }) => heap)))
        const [second, last] = [floor(usages.slice(third, 2 * third)), floor(usages.slice(-third))]
        const most = Math.round(Math.max(...usages.map(({ resident }) => resident)))
        t.log(`${connections} connections; ${second} MB in use in the second third of the time, ${last} MB in the last`)
        t.log(`at most ${most} MB in all, and ${Math.max(...usages.map(({ files }) => files))} files`)
        t.true(last - second < 25, `${second} MB, then ${last} MB`)

        const filesNow = async () => (await readUsage(ports.metrics)).files
        await waitFor(async () => (await filesNow()) < before.files + 40, filesNow)
        t.is(/"level":"(?:error|fatal)".*/.exec(service.output())?.[0], undefined)
      },
    )
  }
}

for (const port of ['gRPC', 'Administration'] as const) {
  test.serial(`HTTP/2 frames on the ${port} port: the test reports how the process ended`, async t => {
    t.timeout(seconds * 1000 + 120_000)
    const { service, ports } = await start(t)
    const { connections, lasted } = await sendNoiseTo(service, ports[port], 'frames of HTTP/2')
    const ended = service.alive() ? 'lives' : `ended with ${await service.ended}: ${causeIn(service.output())}`
    t.log(
      `Node.js ${process.version}: after ${lasted.toFixed(1)} s and ${connections} connections the process ${ended}`,
    )
    t.pass()
  })
}
