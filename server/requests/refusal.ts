import { protoCamelCase } from '@bufbuild/protobuf/reflect'
import { Code } from '@connectrpc/connect'
import type { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Fault } from '../rules/fault.js'
import { reasons } from './reasons.js'

/** An invalid field of a request, by its JSON name, and what is wrong with it. */
export interface FieldViolation extends Fault {
  readonly field: string
}

/** The key of a suggestion for a field in `metadata` of `google.rpc.ErrorInfo`: `suggestedNickname` for `record.nickname`. */
export const suggestionKey = (field: string) => protoCamelCase(`suggested_${field.replace(/^.*\./, '')}`)

/** The limits, as metrics name them, and what each of them counts. */
export const limitMeanings = {
  account: 'failed sign-ins of an account',
  failures: 'failed sign-ins, answers and keys of a client address',
  signUps: 'sign-ups of a client address',
  lookUps: 'look-ups of names by a client address',
  recoveryRequests: 'requests for recovery keys by a client address',
  accountRecoveryRequests: 'requests for recovery keys of one account by a client address',
  activation: 'failed activation keys of a user',
  hashing: 'capacity of the threads that hash passwords',
  partner: 'e-mails with activation keys of an account',
  organization: 'e-mails with activation keys to an organization',
  partnerAddresses: 'wrong e-mail addresses of organizations of an account',
  recovery: 'e-mails with recovery keys of an account',
  recipient: 'e-mails with recovery keys to a recipient',
  notices: 'security notices of an activated account to a recipient',
  change: 'e-mails with codes for a new address',
  serviceKeys: 'unknown keys of services from a client address',
  serviceReads: 'users that a service reads',
  exports: 'exports of an account',
  issuedKeys: 'keys that a user issues to members of its organization',
  watchers: 'calls of a service that wait for changes',
} as const

/** The name of a limit. */
export type Limit = keyof typeof limitMeanings

/** The refusal of a call. The caller may see everything in it. */
export class Refusal extends Error {
  readonly code: Code
  constructor(
    readonly reason: Reason,
    readonly more: {
      /** Replaces the text of the reason. */
      readonly text?: string
      /** All invalid fields. */
      readonly fields?: readonly FieldViolation[]
      /** Seconds until a retry can succeed. Responses have it as a whole number, at least 1. */
      readonly retryAfter?: number
      /** The limit that was reached. */
      readonly limit?: Limit
    } = {},
  ) {
    const [code, , text] = reasons[reason]
    super(more.text ?? text)
    this.code = code
  }

  /** The name of its gRPC status code, as the specification writes it, such as `NOT_FOUND`. */
  get codeName(): string {
    return Code[this.code].replace(/(?<=[a-z])(?=[A-Z])/g, '_').toUpperCase()
  }
}

/** Returns an outcome, or throws it if it is a refusal. */
export function accepted<T>(outcome: T | Refusal): T {
  if (outcome instanceof Refusal) throw outcome
  return outcome
}

/** Throws the refusal for a reason. */
export function refuse(reason: Reason, more?: Refusal['more']): never {
  throw new Refusal(reason, more)
}
