/** Clients that call a gateway continuously, and their results. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import type { ServerProcess } from './apart.js'
import type { Teardown } from './database.js'
import type { GrpcClient } from './grpc.js'
import { type Answer, password, type TestService } from './service.js'
import { waitFor } from './wait.js'

type Request = TestService['request']

/** Logs a user in, by default the administrator, and returns the token. */
export async function login(request: Request, username = 'admin'): Promise<string> {
  const { status, text } = await request('POST', '/users/login', { body: { username, password } })
  if (status !== 200) throw new Error(`${status} ${text}`)
  return text
}

/** How many calls a server has answered, except health checks of gateways. */
export async function callsOf({ metrics }: ServerProcess): Promise<number> {
  const text = await (await fetch(metrics)).text()
  return [...text.matchAll(/^auth_calls_total\{(?!rpc="Check").*\} (\d+)$/gm)].reduce(
    (sum, [, count]) => sum + Number(count),
    0,
  )
}

/** Waits until reads reach every one of the servers. */
export async function usesAll(request: Request, token: string, servers: readonly ServerProcess[]): Promise<void> {
  const before = await Promise.all(servers.map(callsOf))
  await waitFor(async () => {
    await request('GET', '/users/me', { token })
    const now = await Promise.all(servers.map(callsOf))
    return now.every((count, index) => count > before[index]!)
  })
}

/** Milliseconds between an answer and the next call: the machine has time left for what the test does. */
const pause = 100

/**
 * Repeats a call in 16 loops, until `end` or the end of the test; `statuses` holds the status of each answer. A trusted proxy
 * would name a network for each loop in its headers.
 */
export function load(
  t: Teardown,
  call: (headers: Readonly<Record<string, string>>) => Promise<Pick<Answer, 'status' | 'json'>>,
) {
  const statuses: number[] = []
  const reasons = new Set<string>()
  let slowest = 0
  let ended = false
  const one = async (index: number) => {
    const headers = { 'x-forwarded-for': `10.${index}.0.1` }
    while (!ended) {
      const from = performance.now()
      const { status, json } = await call(headers).catch(error => ({
        status: 0,
        json: { reason: String(error.cause ?? error) },
      }))
      statuses.push(status)
      if (status !== 200) reasons.add(`${status} ${json?.reason}`)
      slowest = Math.max(slowest, performance.now() - from)
      await sleep(pause)
    }
  }
  const all = Promise.all(Array.from({ length: 16 }, (_, index) => one(index)))
  const end = async () => {
    ended = true
    await all
  }
  t.teardown(end)
  return {
    statuses,
    /** Milliseconds of the slowest answer. */
    slowest: () => slowest,
    /** A summary of the results. */
    summary: () =>
      `${statuses.length}, ${retriesOf(statuses)} × 503 (${[...reasons]}), the slowest after ${(slowest / 1000).toFixed(1)} s`,
    /** Waits for so many further responses. */
    more: (count: number) => {
      const until = statuses.length + count
      return waitFor(
        () => statuses.length >= until,
        () => statuses.length,
      )
    },
    end,
  }
}

/** Reads. */
export const readsOf = (t: Teardown, request: Request, token: string) =>
  load(t, headers => request('GET', '/users/me', { token, headers, once: true }))
/** Reads over gRPC; the status of those that are answered is 200, too. */
export const grpcReadsOf = (t: Teardown, client: GrpcClient, token: string) =>
  load(t, async metadata => {
    await client.call(Users.method.getMe, {}, { token, metadata, once: true })
    return { status: 200, json: undefined }
  })
/** Sign-ups: independent writes. */
export function writesOf(t: Teardown, request: Request) {
  const fields = { password, state: 'CE', city: 'Crato', termsofusage: true, roles: ['ROLE_CLIENT'] }
  return load(t, headers => {
    const body = { username: randomUUID(), nickname: randomUUID(), ...fields }
    return request('POST', '/users/signup', { body, headers, once: true })
  })
}

/** How many were answered with a request to retry. */
export const retriesOf = (statuses: readonly number[]) => statuses.filter(status => status === 503).length

export type Load = ReturnType<typeof load>
