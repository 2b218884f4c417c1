/** Runs generated requests against a service until a response violates a rule. */
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js'
import type { ExecutionContext } from 'ava'
import fc from 'fast-check'
import { createCast, grpcRequests, httpRequests, judgeHttp, messageBytes, sendHttp } from './fuzz.js'
import { refusalOf } from './grpc.js'
import type { TestService } from './service.js'

/** Counts are deleted repeatedly, because otherwise every response would soon be 429. */
const forgetAfter = 150

/** How many requests to send, and the seed they come from. */
export interface Run {
  readonly seed: number
  readonly requests: number
}

/** Sends requests over HTTP. */
export async function fuzzHttp(t: ExecutionContext, service: TestService, { seed, requests }: Run): Promise<void> {
  const cast = await createCast(service)
  const counts: Record<string, number> = {}
  let sent = 0
  const property = fc.asyncProperty(httpRequests, async request => {
    if (++sent % forgetAfter === 0) await forget(service)
    const answer = await sendHttp(service, request, cast)
    counts[answer.status] = (counts[answer.status] ?? 0) + 1
    const fault = await judgeHttp(request, answer, cast)
    if (fault)
      throw new Error(
        `${fault}: ${request.method} ${request.base}${request.path} answered ${answer.status} ${answer.text.slice(0, 300)}`,
      )
  })
  await fc.assert(property, { seed, numRuns: requests, endOnFailure: true, includeErrorInReport: true })
  t.log(counts)
  // Most of them succeed.
  for (const status of [200, 400, 403, 404, 422, 500]) t.true((counts[status] ?? 0) > requests / 200, String(status))
  t.true((counts[503] ?? 0) < requests / 50)
}

/** Calls RPCs over gRPC. */
export async function fuzzGrpc(t: ExecutionContext, service: TestService, { seed, requests }: Run): Promise<void> {
  const cast = await createCast(service)
  const client = new Client(service.grpc, credentials.createInsecure())
  t.teardown(() => client.close())
  const counts: Record<string, number> = {}
  let sent = 0
  const property = fc.asyncProperty(grpcRequests, async request => {
    if (++sent % forgetAfter === 0) await forget(service)
    const { rpc, role } = request
    const metadata = new Metadata()
    const token = cast.token(role)
    if (token) metadata.set('authorization', `Bearer ${token}`)
    metadata.set('x-forwarded-for', `10.3.${(sent >> 8) & 255}.${sent & 255}`)
    const bytes = messageBytes(request, cast)
    const error = await new Promise<ServiceError | null>(resolve => {
      const path = `/${rpc.parent.typeName}/${rpc.name}`
      const deadline = Date.now() + 20_000
      client.makeUnaryRequest(
        path,
        (value: Buffer) => value,
        value => value,
        bytes,
        metadata,
        { deadline },
        (failure, answer) => {
          const shown = `${failure?.details ?? ''}${answer?.toString('latin1') ?? ''}`
          const leaked = cast.secrets.some(secret => shown.includes(secret))
          resolve(
            leaked ? (Object.assign(new Error('it shows a secret'), { code: -1 }) as unknown as ServiceError) : failure,
          )
        },
      )
    })
    const said = error
      ? refusalOf(error.metadata ? error : Object.assign(error, { metadata: new Metadata() }))
      : undefined
    const reason = said?.info?.reason ?? (error ? `code ${error.code}` : 'OK')
    counts[reason] = (counts[reason] ?? 0) + 1
    const failed = (fault: string) => {
      throw new Error(`${fault}: ${rpc.name} as ${role} answered ${reason} ${error?.details ?? ''}`)
    }
    if (!error) return
    if (reason === 'INTERNAL') failed('the service failed inside')
    if (reason === 'INVALID_TOKEN' && (await cast.isGood(role))) failed('a good token was refused')
    // grpc-js itself answers what it can't read, with INTERNAL and without details.
    if (!said?.info && !(request.bytes && error.code === 13)) failed('no reason is given')
    if (/\.[jt]s:\d|node_modules|SELECT|violates/.test(error.details)) failed('it shows what is inside')
  })
  await fc.assert(property, { seed, numRuns: requests, endOnFailure: true })
  t.log(counts)
  for (const reason of ['OK', 'INVALID_TOKEN', 'ACCESS_DENIED', 'MISSING_PARAMETER'])
    t.true((counts[reason] ?? 0) > 0, reason)
}

async function forget({ registry }: TestService): Promise<void> {
  await registry.database.sequelize.query('DELETE FROM attempts')
}
