/** Verification of tokens by the client package, jose and VerifyToken, and how soon revocations reach many verifiers. */
import { setTimeout as sleep } from 'node:timers/promises'
import { createLocalJWKSet, jwtVerify } from 'jose'
import jwt from 'jsonwebtoken'
import { createVerifier, type Verifier } from '../../proto/client/verify.js'
import { openRegistry } from '../../server/models/define-models.js'
import { createLog } from '../../server/observability/log.js'
import { readSettings } from '../../server/process/settings.js'
import { serviceKey } from '../_helpers/service-key.js'
import { claimsOf, headerOf, idOf } from '../_helpers/tokens.js'
import type { Prepared, Sample, Segment } from './measure.js'
import { startLoad } from './processes.js'
import { underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

/** Verifiers, spread over two replicas, and how many of them are checked for a revocation. */
const verifiers = 100
const looks = 4

/** Revocations a second, and for how many seconds. */
const revocations = { rate: 50, seconds: 10 }

/** Tokens that take turns: more than are verified in a turn. */
const many = 20_000

const users = 1000

export async function verifying(bench: Bench): Promise<Prepared> {
  const { service, world, again, env } = await serviceOn(bench, users, 4, { AUTH_LIMIT_FACTOR: '1000' })
  const replicas = [service, await again()]
  const registry = await openRegistry(readSettings(env), { log: createLog('silent'), connections: 1 })
  await registry.masterKey.load()
  const key = await serviceKey({ registry }, ['tokens.watch', 'tokens.verify'])
  const [{ privateKey } = { privateKey: undefined }] = await registry.signingKeys.all()
  await registry.close()

  const [{ token: model } = { token: '' }] = world.holders
  const { iss: issuer, aud: audience, ver } = claimsOf(model)
  const { kid } = headerOf(model)
  let minted = 0
  const mint = (sub: number, generation: number) => {
    const claims = { ...claimsOf(model), sub: String(sub), ver: generation, jti: String(++minted) }
    return jwt.sign(claims, privateKey!, { algorithm: 'ES256', header: { alg: 'ES256', typ: 'at+jwt', kid } })
  }
  const open = async (http: number): Promise<Verifier> => {
    const verifier = createVerifier({ url: `http://127.0.0.1:${http}`, key, issuer, audience })
    await verifier.ready()
    return verifier
  }

  /** Verifies tokens with a new verifier. */
  const verified =
    (tokens: readonly string[]): Segment =>
    async scale => {
      const verifier = await open(service.http)
      const sample = await closed(tokens, token => verifier.verify(token))(scale)
      verifier.close()
      return sample
    }
  const jwks = createLocalJWKSet(await (await fetch(`http://127.0.0.1:${service.http}/.well-known/jwks.json`)).json())
  const jose = (token: string) => jwtVerify(token, jwks, { algorithms: ['ES256'], typ: 'at+jwt', issuer, audience })
  const seen = world.holders.map(({ token }) => token)
  // Users whose tokens aren't revoked, and others whose are.
  const held = new Set(seen.map(idOf))
  const first = Math.min(...held)
  const unseen = Array.from({ length: many }, (_, index) => mint(first + (index % (users / 2)), ver))
  const revocable = Array.from({ length: users / 2 - 100 }, (_, index) => first + users / 2 + index).filter(
    id => !held.has(id),
  )

  let crowd: Promise<Verifier[]> | undefined
  /** Generation of each user's tokens. */
  const generations = new Map<number, number>()
  let next = 0

  async function revoke(): Promise<number[]> {
    const sub = revocable[next++ % revocable.length]!
    const generation = generations.get(sub) ?? ver
    const token = mint(sub, generation)
    const all = await crowd!
    const watching = Array.from({ length: looks }, (_, index) => all[(next * looks + index) % verifiers]!)
    for (const each of watching) await each.verify(token)
    const sentAt = performance.now()
    const { status } = await fetch(`http://127.0.0.1:${replicas[next % 2]!.http}/users/revokemytokens`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}` },
    })
    if (status !== 200) throw new Error(`revoking: ${status}`)
    generations.set(sub, generation + 1)
    const refused = async (verifier: Verifier) => {
      for (;;) {
        const accepted = await verifier.verify(token).then(
          () => true,
          () => false,
        )
        if (!accepted) return performance.now() - sentAt
        // The verifiers and these loops share a process: with more, the loops would dominate.
        await sleep(20)
      }
    }
    return Promise.all(watching.map(refused))
  }

  async function manyRevocations(scale: number): Promise<Sample> {
    crowd ??= Promise.all(Array.from({ length: verifiers }, (_, index) => open(replicas[index % 2]!.http)))
    await crowd
    const errors: Record<string, number> = {}
    const latencies: number[] = []
    const begun: Promise<void>[] = []
    const start = performance.now()
    const count = Math.round(revocations.rate * revocations.seconds * scale)
    for (let each = 0; each < count; each++) {
      await sleep(start + (each * 1000) / revocations.rate - performance.now())
      begun.push(
        revoke().then(
          found => void latencies.push(...found),
          (error: Error) => {
            errors[error.message] = (errors[error.message] ?? 0) + 1
          },
        ),
      )
    }
    await Promise.all(begun)
    for (const each of await crowd) each.close()
    crowd = undefined
    return { figures: { perSecond: (1000 * count) / (performance.now() - start) }, latencies, errors }
  }

  const load = startLoad()
  const job = { world, endpoint: 'grpc', mix: { verify: 1 }, connections: 16, seconds: 1 } as const
  return {
    segments: {
      'seen before': verified(seen),
      'jose, the same': closed(seen, jose),
      'VerifyToken, the same': underLoad(load, [service], { ...job, port: service.grpc }),
      'not seen before': verified(unseen),
      'jose, not seen before': closed(unseen, jose),
      revocations: manyRevocations,
    },
    rows: [
      {
        label: 'tokens seen before ÷ jose',
        subject: 'seen before',
        baseline: 'jose, the same',
        figure: 'perSecond',
        goal: { least: 10 },
      },
      {
        label: 'tokens seen before ÷ VerifyToken',
        subject: 'seen before',
        baseline: 'VerifyToken, the same',
        figure: 'perSecond',
        goal: { least: 20 },
      },
      {
        label: 'tokens not seen before ÷ jose',
        subject: 'not seen before',
        baseline: 'jose, not seen before',
        figure: 'perSecond',
        goal: { least: 0.9 },
      },
      { label: 'revocation to refusal, ms', subject: 'revocations', figure: 'p50' },
      { label: 'revocation to refusal, ms', subject: 'revocations', figure: 'p99', goal: { most: 1000 } },
    ],
  }
}

/** 16 callers, each with one token at a time. */
function closed(tokens: readonly string[], verify: (token: string) => Promise<unknown>): Segment {
  let next = 0
  return async scale => {
    const start = performance.now()
    const end = start + 1000 * scale
    let count = 0
    const call = async () => {
      while (performance.now() < end) {
        await verify(tokens[next++ % tokens.length]!)
        count++
      }
    }
    await Promise.all(Array.from({ length: 16 }, call))
    return { figures: { perSecond: (1000 * count) / (performance.now() - start) } }
  }
}
