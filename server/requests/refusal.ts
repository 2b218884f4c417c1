import { Code } from '@connectrpc/connect'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'

// The catalogue of refusals: every reason with its gRPC code and text.

/** An invalid field of a request, by its JSON name, and a sentence that says how to correct it. */
export interface FieldViolation {
  readonly field: string
  readonly message: string
}

/** Each reason's gRPC code, and a text that says what to do. */
const catalogue: Record<Reason, readonly [code: Code, text: string]> = {
  [Reason.UNSPECIFIED]: [Code.Unknown, 'Something went wrong.'],
  [Reason.ACCESS_DENIED]: [Code.PermissionDenied, 'Access denied.'],
  [Reason.INVALID_TOKEN]: [Code.Unauthenticated, 'The token is expired or invalid. Log in again.'],
  [Reason.MISSING_PARAMETER]: [Code.InvalidArgument, 'A required parameter is missing.'],
  [Reason.MALFORMED_REQUEST]: [Code.InvalidArgument, 'The request is malformed.'],
  [Reason.INVALID_SIGN_UP]: [Code.InvalidArgument, 'Some fields are missing or invalid.'],
  [Reason.INVALID_CREDENTIALS]: [Code.Unauthenticated, 'Invalid username or password.'],
  [Reason.ACTIVATION_REFUSED]: [Code.FailedPrecondition, 'The user can’t be activated with this key.'],
  [Reason.USER_NOT_FOUND]: [Code.NotFound, 'The user doesn’t exist.'],
  [Reason.QUESTION_NOT_FOUND]: [Code.NotFound, 'The question doesn’t exist or is retired.'],
  [Reason.ANSWER_NOT_FOUND]: [Code.NotFound, 'The user has no answer to one of the questions.'],
  [Reason.INVALID_ANSWERS]: [Code.Unauthenticated, 'At least 2 answers must be correct.'],
  [Reason.TOO_MANY_ANSWERS]: [Code.InvalidArgument, 'Give at most 10 answers.'],
  [Reason.INVALID_KEY]: [Code.Unauthenticated, 'Invalid username or key. Request a new key.'],
  [Reason.INVALID_EMAIL]: [Code.InvalidArgument, 'The e-mail address is missing or invalid.'],
  [Reason.INVALID_PASSWORD]: [Code.InvalidArgument, 'The new password doesn’t meet the requirements.'],
  [Reason.ORGANIZATION_EMAIL_NOT_FOUND]: [Code.NotFound, 'No organization has this e-mail address.'],
  [Reason.TOO_MANY_ATTEMPTS]: [Code.ResourceExhausted, 'Too many attempts. Try again later.'],
  [Reason.OVERLOADED]: [Code.ResourceExhausted, 'The service is busy. Try again later.'],
  [Reason.UNAVAILABLE]: [Code.Unavailable, 'The service can’t answer now. Try again later.'],
  [Reason.DEADLINE_EXCEEDED]: [Code.DeadlineExceeded, 'The deadline has passed. Try again.'],
  [Reason.INTERNAL]: [Code.Internal, 'Something went wrong.'],
  [Reason.RECORD_NOT_FOUND]: [Code.NotFound, 'The record doesn’t exist.'],
  [Reason.NAME_TAKEN]: [Code.AlreadyExists, 'This name is already taken. Choose another one.'],
  [Reason.STALE_ETAG]: [Code.Aborted, 'The record has changed since it was read. Read it again.'],
  [Reason.WRONG_STATE]: [Code.FailedPrecondition, 'The state of the record doesn’t allow this.'],
  [Reason.INVALID_ARGUMENT]: [Code.InvalidArgument, 'Some fields are missing or invalid.'],
  [Reason.CODE_NEEDED]: [Code.Unauthenticated, 'Give the one-time code from your authenticator app.'],
  [Reason.SIGN_IN_AGAIN]: [
    Code.Unauthenticated,
    'This requires a sign-in in the last 15 minutes, with a one-time code if codes are enrolled. Sign in again.',
  ],
  [Reason.CONFIRMATION_NEEDED]: [
    Code.InvalidArgument,
    'This can’t be undone. To confirm, repeat the name of the target.',
  ],
  [Reason.LAST_ADMINISTRATOR]: [
    Code.FailedPrecondition,
    'This is the last active administrator. Add another one first.',
  ],
  [Reason.JUSTIFICATION_NEEDED]: [
    Code.InvalidArgument,
    'On the database itself, changes to administrators and passwords require a reason.',
  ],
}

/** The limits, as metrics name them, and what each of them counts. */
export const limits = {
  account: 'failed sign-ins of an account',
  failures: 'failed sign-ins, answers and keys of a client address',
  signUps: 'sign-ups of a client address',
  lookUps: 'look-ups of names by a client address',
  recoveryRequests: 'requests for recovery keys by a client address',
  activation: 'failed activation keys of a user',
  hashing: 'capacity of the threads that hash passwords',
  partner: 'e-mails with activation keys of an account',
  organization: 'e-mails with activation keys to an organization',
  partnerAddresses: 'wrong e-mail addresses of organizations of an account',
  recovery: 'e-mails with recovery keys of an account',
  recipient: 'e-mails with recovery keys to a recipient',
  notices: 'security notices of an activated account to a recipient',
  change: 'e-mails with codes for a new address',
  serviceReads: 'users that a service reads',
  exports: 'exports of an account',
  watchers: 'calls of a service that wait for changes',
} as const

/** The name of a limit. */
export type Limit = keyof typeof limits

/** The refusal of a call. The caller may see everything in it. */
export class Refusal extends Error {
  readonly code: Code
  constructor(
    readonly reason: Reason,
    readonly more: {
      /** Replaces the text of the catalogue. */
      readonly text?: string
      /** All invalid fields. */
      readonly fields?: readonly FieldViolation[]
      /** Seconds until a retry can succeed. Responses have it as a whole number, at least 1. */
      readonly retryAfter?: number
      /** The limit that was reached. */
      readonly limit?: Limit
    } = {},
  ) {
    const [code, text] = catalogue[reason]
    super(more.text ?? text)
    this.code = code
  }
}

/** Throws the refusal for a reason. */
export function refuse(reason: Reason, more?: Refusal['more']): never {
  throw new Refusal(reason, more)
}
