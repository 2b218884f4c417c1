/** The feed of changes: the cost of 1,000 watchers, and the time of a revocation to 100 watchers of two replicas. */
import { setTimeout as sleep } from 'node:timers/promises'
import { create, fromBinary, toBinary } from '@bufbuild/protobuf'
import { durationFromMs } from '@bufbuild/protobuf/wkt'
import { Client, credentials, Metadata } from '@grpc/grpc-js'
import {
  ChangeKind,
  Changes,
  PollRequestSchema,
  type PollResponse,
  PollResponseSchema,
} from '../../proto/gen/auth/v1/changes_pb.js'
import { openDatabase } from '../../server/database/connection.js'
import { createStoredKeys } from '../../server/models/data-key.js'
import { defineModels, type Models } from '../../server/models/define-models.js'
import { newServiceKey } from '../../server/models/service.js'
import { idOf } from '../_helpers/tokens.js'
import type { Prepared, Segment } from './measure.js'
import { processorSeconds, type ServiceProcess, startLoad } from './processes.js'
import { underLoad } from './segments.js'
import { type Bench, masterKey, serviceOn } from './world.js'

/** Calls on a connection: a server accepts 128 streams. */
const perConnection = 100

const revocationsPerSecond = 50

export async function feed(bench: Bench): Promise<Prepared> {
  const { service, world, url, again } = await serviceOn(bench, 1000, 4)
  const [other, quiet] = [await again(), await again()]
  const database = openDatabase(url, 4)
  const models = defineModels(database, createStoredKeys(database, masterKey))
  await models.masterKey.load()
  const key = await addService(models)
  // Not those whose tokens the load uses.
  const held = new Set(world.holders.map(({ token }) => idOf(token)))
  const revocable = Array.from({ length: 990 }, (_, index) => 2 + index).filter(id => !held.has(id))
  const load = startLoad()
  const job = { world, endpoint: 'http', mix: { me: 1 }, connections: 64, seconds: 4, rate: 300 } as const

  /** Measures while so many watchers poll a server. */
  const beside =
    (watchers: number, of: ServiceProcess, segment: Segment): Segment =>
    async scale => {
      const stop = await watch(of.grpc, watchers, key, () => {})
      try {
        return await segment(scale)
      } finally {
        await stop()
      }
    }

  const idle: Segment = async scale => {
    const [before, from] = [processorSeconds([service.pid]), performance.now()]
    await sleep(20_000 * scale)
    const seconds = (performance.now() - from) / 1000
    return { figures: { core: (processorSeconds([service.pid]) - before) / seconds } }
  }

  /** Milliseconds from the end of a revocation to each watcher, over two servers. */
  const delivery: Segment = async scale => {
    const latencies: number[] = []
    const revoked = new Map<string, number>()
    const take = ({ revocations }: PollResponse) => {
      const now = performance.now()
      for (const { sub, minGeneration } of revocations) {
        const at = revoked.get(`${sub} ${minGeneration}`)
        if (at !== undefined) latencies.push(Math.max(0, now - at))
      }
    }
    const stops = await Promise.all([service, other].map(({ grpc }) => watch(grpc, 50, key, take)))
    const all: Promise<void>[] = []
    const count = Math.round(10 * scale * revocationsPerSecond)
    // Each revocation of another user: of several ones between two responses a watcher gets the latest.
    for (let index = 0; index < count; index++) {
      const id = revocable[index % revocable.length]!
      all.push(
        database.transact(async t => {
          await models.users.revokeTokens(id, t)
          await models.audit.append(
            { action: 'user.revoke-tokens', outcome: 'ok', actor: 'service', subject_id: id },
            t,
          )
          const { rows } = { rows: await database.run<{ n: number }>(generation, [id], t) }
          // A moment before it ends, so that no watcher gets it earlier.
          revoked.set(`${id} ${rows[0]!.n}`, performance.now())
        }),
      )
      await sleep(1000 / revocationsPerSecond)
    }
    await Promise.all(all)
    await sleep(2_000)
    for (const stop of stops) await stop()
    const missing = count * 100 - latencies.length
    return { figures: {}, latencies, ...(missing > 0 && { note: `${missing} were merged into later ones or missed` }) }
  }

  const me = (of: ServiceProcess) => underLoad(load, [of], { ...job, port: of.http })
  return {
    segments: {
      '1,000 watchers': beside(1000, service, idle),
      'me beside 1,000 watchers': beside(1000, service, me(service)),
      'me alone': me(quiet),
      delivery,
    },
    rows: [
      { label: 'share of a core, 1,000 watchers', subject: '1,000 watchers', figure: 'core', goal: { most: 0.05 } },
      {
        label: 'me beside 1,000 watchers ÷ alone',
        subject: 'me beside 1,000 watchers',
        baseline: 'me alone',
        figure: 'p99',
        goal: { most: 1.2, orPlus: 2 },
      },
      { label: 'revocation to 100 watchers', subject: 'delivery', figure: 'p50' },
      { label: 'revocation to 100 watchers', subject: 'delivery', figure: 'p99', goal: { most: 1_000 } },
    ],
  }
}

const generation = {
  name: 'bench-generation',
  text: 'SELECT token_generation AS n FROM users WHERE id = $1',
}

async function addService({ database, services }: Models): Promise<string> {
  const key = newServiceKey()
  await database.transact(async t => {
    const row = await services.add({ name: 'verifiers', scopes: ['tokens.watch'] }, t)
    await services.addKey(row!.id, key, new Date(Date.now() + 86_400_000), t)
  })
  return key
}

/** Starts watchers of a gRPC port, each at the end of the feed; returns what stops them. */
async function watch(
  port: number,
  count: number,
  key: string,
  take: (response: PollResponse) => void,
): Promise<() => Promise<void>> {
  const { parent, name } = Changes.method.poll
  const metadata = new Metadata()
  metadata.set('authorization', `Bearer ${key}`)
  let stopped = false
  const calls = new Set<{ cancel(): void }>()
  const poll = (client: Client, cursor: string, ms: number) =>
    new Promise<PollResponse | undefined>((resolve, reject) => {
      const request = create(PollRequestSchema, { cursor, wait: durationFromMs(ms), kinds: [ChangeKind.REVOCATIONS] })
      const call = client.makeUnaryRequest(
        `/${parent.typeName}/${name}`,
        message => Buffer.from(toBinary(PollRequestSchema, message)),
        bytes => fromBinary(PollResponseSchema, bytes),
        request,
        metadata,
        (error, response) => {
          calls.delete(call)
          if (stopped || !error) resolve(response)
          else reject(error)
        },
      )
      calls.add(call)
    })
  const clients = Array.from({ length: Math.ceil(count / perConnection) }, () => {
    // Otherwise they would share a connection.
    const options = { 'grpc.use_local_subchannel_pool': 1 }
    return new Client(`127.0.0.1:${port}`, credentials.createInsecure(), options)
  })
  let { cursor, more } = (await poll(clients[0]!, '', 0))!
  while (more) ({ cursor, more } = (await poll(clients[0]!, cursor, 0))!)
  const running = Array.from({ length: count }, async (_, index) => {
    // They don't all end at the same time.
    await sleep((index * 5_000) / count)
    for (let at = cursor; !stopped; ) {
      const response = await poll(clients[Math.floor(index / perConnection)]!, at, 10_000)
      if (!response) return
      at = response.cursor
      take(response)
    }
  })
  await sleep(5_500)
  return async () => {
    stopped = true
    for (const call of calls) call.cancel()
    await Promise.all(running)
    for (const client of clients) client.close()
  }
}
