import { Code } from '@connectrpc/connect'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'

// The catalogue of refusals: every reason with its gRPC code and text.

/** An invalid field of a request, by its JSON name, and a sentence that says how to correct it. */
export interface FieldViolation {
  readonly field: string
  readonly message: string
}

/** Each reason's gRPC code, and a text that says what to do. */
const catalogue: Record<Reason, { code: Code; text: string }> = {
  [Reason.UNSPECIFIED]: { code: Code.Unknown, text: 'Something went wrong.' },
  [Reason.ACCESS_DENIED]: { code: Code.PermissionDenied, text: 'Access denied.' },
  [Reason.INVALID_TOKEN]: { code: Code.Unauthenticated, text: 'The token is expired or invalid. Log in again.' },
  [Reason.MISSING_PARAMETER]: { code: Code.InvalidArgument, text: 'A required parameter is missing.' },
  [Reason.MALFORMED_REQUEST]: { code: Code.InvalidArgument, text: 'The request is malformed.' },
  [Reason.INVALID_SIGN_UP]: { code: Code.InvalidArgument, text: 'Some fields are missing or invalid.' },
  [Reason.INVALID_CREDENTIALS]: { code: Code.Unauthenticated, text: 'Invalid username or password.' },
  [Reason.ACTIVATION_REFUSED]: { code: Code.FailedPrecondition, text: 'The user can’t be activated with this key.' },
  [Reason.USER_NOT_FOUND]: { code: Code.NotFound, text: 'The user doesn’t exist.' },
  [Reason.QUESTION_NOT_FOUND]: { code: Code.NotFound, text: 'The question doesn’t exist or is retired.' },
  [Reason.ANSWER_NOT_FOUND]: { code: Code.NotFound, text: 'The user has no answer to one of the questions.' },
  [Reason.INVALID_ANSWERS]: { code: Code.Unauthenticated, text: 'At least 2 answers must be correct.' },
  [Reason.TOO_MANY_ANSWERS]: { code: Code.InvalidArgument, text: 'Give at most 10 answers.' },
  [Reason.INVALID_KEY]: { code: Code.Unauthenticated, text: 'Invalid username or key. Request a new key.' },
  [Reason.INVALID_EMAIL]: { code: Code.InvalidArgument, text: 'The e-mail address is missing or invalid.' },
  [Reason.INVALID_PASSWORD]: { code: Code.InvalidArgument, text: 'The new password doesn’t meet the requirements.' },
  [Reason.ORGANIZATION_EMAIL_NOT_FOUND]: { code: Code.NotFound, text: 'No organization has this e-mail address.' },
  [Reason.TOO_MANY_ATTEMPTS]: { code: Code.ResourceExhausted, text: 'Too many attempts. Try again later.' },
  [Reason.OVERLOADED]: { code: Code.ResourceExhausted, text: 'The service is busy. Try again later.' },
  [Reason.UNAVAILABLE]: { code: Code.Unavailable, text: 'The service can’t answer now. Try again later.' },
  [Reason.DEADLINE_EXCEEDED]: { code: Code.DeadlineExceeded, text: 'The deadline has passed. Try again.' },
  [Reason.INTERNAL]: { code: Code.Internal, text: 'Something went wrong.' },
  [Reason.RECORD_NOT_FOUND]: { code: Code.NotFound, text: 'The record doesn’t exist.' },
  [Reason.NAME_TAKEN]: { code: Code.AlreadyExists, text: 'This name is already taken. Choose another one.' },
  [Reason.STALE_ETAG]: { code: Code.Aborted, text: 'The record has changed since it was read. Read it again.' },
  [Reason.WRONG_STATE]: { code: Code.FailedPrecondition, text: 'The state of the record doesn’t allow this.' },
  [Reason.INVALID_ARGUMENT]: { code: Code.InvalidArgument, text: 'Some fields are missing or invalid.' },
  [Reason.CODE_NEEDED]: { code: Code.Unauthenticated, text: 'Give the one-time code from your authenticator app.' },
  [Reason.SIGN_IN_AGAIN]: {
    code: Code.Unauthenticated,
    text: 'This requires a sign-in in the last 15 minutes, with a one-time code if codes are enrolled. Sign in again.',
  },
  [Reason.CONFIRMATION_NEEDED]: {
    code: Code.InvalidArgument,
    text: 'This can’t be undone. To confirm, repeat the name of the target.',
  },
  [Reason.LAST_ADMINISTRATOR]: {
    code: Code.FailedPrecondition,
    text: 'This is the last active administrator. Add another one first.',
  },
  [Reason.JUSTIFICATION_NEEDED]: {
    code: Code.InvalidArgument,
    text: 'On the database itself, changes to administrators and passwords require a reason.',
  },
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
    super(more.text ?? catalogue[reason].text)
    this.code = catalogue[reason].code
  }
}

/** Throws the refusal for a reason. */
export function refuse(reason: Reason, more?: Refusal['more']): never {
  throw new Refusal(reason, more)
}
