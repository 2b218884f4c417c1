/** Decoded and forged tokens, signed with the service's key where a test needs one with a single fault. */
import { randomUUID } from 'node:crypto'
import jwt from 'jsonwebtoken'
import { createSeals } from '../../server/access/seals.js'
import type { TestService } from './service.js'

/** Claims of a token, unchecked. */
// biome-ignore lint/suspicious/noExplicitAny: tests read arbitrary JSON
export function claimsOf(token: string): any {
  return JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString())
}

/** Header of a token. */
// biome-ignore lint/suspicious/noExplicitAny: tests read arbitrary JSON
export function headerOf(token: string): any {
  return JSON.parse(Buffer.from(token.split('.')[0] ?? '', 'base64url').toString())
}

/** Id of a token's holder. */
export function idOf(token: string): number {
  return Number(claimsOf(token).sub)
}

/** A token with the claims of a genuine one except those given, signed with the key of the service. */
export async function forge(
  service: TestService,
  genuine: string,
  claims: Record<string, unknown>,
  header: Record<string, unknown> = {},
): Promise<string> {
  return (await createForger(service, genuine))(claims, header)
}

/** Makes many such tokens. */
export async function createForger(
  { registry }: TestService,
  genuine: string,
): Promise<(claims: Record<string, unknown>, header?: Record<string, unknown>) => string> {
  const { kid } = headerOf(genuine)
  const key = (await registry.signingKeys.all()).find(each => each.kid === kid)
  return (claims, header = {}) => {
    const payload = { ...claimsOf(genuine), jti: randomUUID(), ...claims }
    for (const name of Object.keys(payload)) if (payload[name] === undefined) delete payload[name]
    const all = { alg: 'ES256' as const, typ: 'at+jwt', kid, ...header }
    return jwt.sign(payload, key!.privateKey, { algorithm: 'ES256', header: all })
  }
}

/** The token of a session of Administration that differs from a genuine one as given, sealed with the key of the service. */
export async function forgeSession(
  { registry }: TestService,
  genuine: string,
  change: (session: { readonly generation: number }) => Record<string, unknown>,
): Promise<string> {
  const { seal, open } = createSeals(registry.sealingKeys)
  const session = JSON.parse((await open('administration', genuine))!.payload)
  return seal('administration', JSON.stringify({ ...session, ...change(session) }))
}

/** Seconds since 1970. */
export function nowInSeconds(): number {
  return Math.floor(Date.now() / 1000)
}
