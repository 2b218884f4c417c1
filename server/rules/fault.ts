import type { FieldReason as Codes } from '../../proto/gen/auth/v1/reason_pb.js'

/** The codes of faults: reason.proto has their meanings. */
export type FieldReason = Exclude<keyof typeof Codes, 'UNSPECIFIED'>

/** What is wrong with a value. */
export interface Fault {
  /** By which programs decide. */
  readonly reason: FieldReason
  /** A sentence that says how to correct the value. */
  readonly message: string
  /** A value that is accepted now. */
  readonly suggestion?: string
}

/** Returns a fault. */
export const fault = (reason: FieldReason, message: string): Fault => ({ reason, message })

/** The fault of a text with more characters than this. */
export const longerThan = (most: number) => fault('TOO_LONG', `Use at most ${most} characters.`)

/** The fault of a text that must be one line and isn't. */
export const severalLines = fault('FORBIDDEN_CHARACTERS', 'Leave out line breaks and other control characters.')
