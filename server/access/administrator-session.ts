// Sessions of administrators: sealed tokens of Administration, which are good nowhere else and aren't refreshed.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { refuse } from '../requests/refusal.js'
import { tooLong } from '../rules/sizes.js'
import type { Seals } from './seals.js'

/** Seconds that a session lasts. */
const length = 12 * 3600

/** The use of the sealed tokens. */
const use = 'administration'

/** The session of a token. Times are in seconds since 1970. */
export interface AdministratorSession {
  readonly userId: number
  /** Token generation of the user when the session began. */
  readonly generation: number
  readonly startedAt: number
  readonly expiresAt: number
  /** Whether a one-time code was given in addition to the password. */
  readonly withCode: boolean
  /** Id of the sealing key. */
  readonly keyId: string
}

/** Begins sessions of administrators, and reads their tokens. */
export type AdministratorSessions = ReturnType<typeof createAdministratorSessions>

/** Creates the sessions; `now` is a clock in ms since 1970. */
export function createAdministratorSessions({ seals, now }: { seals: Seals; now: () => number }) {
  const seconds = () => Math.floor(now() / 1000)
  return {
    /** Begins a session, and returns its token. */
    async begin(user: { readonly id: number; readonly tokenGeneration: number }, withCode: boolean) {
      const [startedAt, expiresAt] = [seconds(), seconds() + length]
      const payload = JSON.stringify({
        userId: user.id,
        generation: user.tokenGeneration,
        startedAt,
        expiresAt,
        withCode,
      })
      return { token: await seals.seal(use, payload), expiresAt }
    },
    /** Returns the session of a token. Refuses with INVALID_TOKEN unless it is one of Administration that hasn't expired. */
    async read(token: string): Promise<AdministratorSession> {
      const opened = tooLong(token, 'token') ? undefined : await seals.open(use, token)
      const session = opened && { ...JSON.parse(opened.payload), keyId: opened.keyId }
      return session?.expiresAt > seconds() ? session : refuseSession()
    },
  }
}

/** Refuses with INVALID_TOKEN, and how to go on. */
export function refuseSession(): never {
  return refuse(Reason.INVALID_TOKEN, { text: 'The session has ended. Sign in again.' })
}
