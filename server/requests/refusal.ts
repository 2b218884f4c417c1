import { Code } from '@connectrpc/connect'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'

/** A field of a request that is wrong, and what to do about it. */
export interface FieldViolation {
  readonly field: string
  readonly message: string
}

/** Each reason's gRPC code and the text that tells the caller what to do. */
const catalogue: Record<Reason, { code: Code; text: string }> = {
  [Reason.UNSPECIFIED]: { code: Code.Unknown, text: 'Something went wrong.' },
  [Reason.ACCESS_DENIED]: { code: Code.PermissionDenied, text: 'Access denied.' },
  [Reason.INVALID_TOKEN]: { code: Code.Unauthenticated, text: 'The token is expired or invalid. Log in again.' },
  [Reason.MISSING_PARAMETER]: { code: Code.InvalidArgument, text: 'A required parameter is missing.' },
  [Reason.MALFORMED_REQUEST]: { code: Code.InvalidArgument, text: 'The request can’t be read.' },
  [Reason.INVALID_SIGN_UP]: { code: Code.InvalidArgument, text: 'Some fields are missing or wrong.' },
  [Reason.INVALID_CREDENTIALS]: { code: Code.Unauthenticated, text: 'Invalid username or password.' },
  [Reason.ACTIVATION_REFUSED]: { code: Code.FailedPrecondition, text: 'The user can’t be activated with this key.' },
  [Reason.USER_NOT_FOUND]: { code: Code.NotFound, text: 'There is no such user.' },
  [Reason.QUESTION_NOT_FOUND]: { code: Code.NotFound, text: 'There is no such question, or it is retired.' },
  [Reason.ANSWER_NOT_FOUND]: { code: Code.NotFound, text: 'The user has no answer to a given question.' },
  [Reason.INVALID_ANSWERS]: { code: Code.Unauthenticated, text: 'At least 2 answers must be correct.' },
  [Reason.TOO_MANY_ANSWERS]: { code: Code.InvalidArgument, text: 'Give at most 10 answers.' },
  [Reason.INVALID_KEY]: { code: Code.Unauthenticated, text: 'Invalid username or key. Ask for a new key.' },
  [Reason.INVALID_EMAIL]: { code: Code.InvalidArgument, text: 'The e-mail address is missing or not valid.' },
  [Reason.INVALID_PASSWORD]: { code: Code.InvalidArgument, text: 'The new password is not acceptable.' },
  [Reason.ORGANIZATION_EMAIL_NOT_FOUND]: { code: Code.NotFound, text: 'No organization has this e-mail address.' },
  [Reason.TOO_MANY_ATTEMPTS]: { code: Code.ResourceExhausted, text: 'Too many attempts. Try again later.' },
  [Reason.OVERLOADED]: { code: Code.ResourceExhausted, text: 'The service is busy. Try again later.' },
  [Reason.UNAVAILABLE]: { code: Code.Unavailable, text: 'The service can’t answer now. Try again later.' },
  [Reason.DEADLINE_EXCEEDED]: { code: Code.DeadlineExceeded, text: 'The answer would come too late.' },
  [Reason.INTERNAL]: { code: Code.Internal, text: 'Something went wrong.' },
  [Reason.RECORD_NOT_FOUND]: { code: Code.NotFound, text: 'There is no such record.' },
  [Reason.NAME_TAKEN]: { code: Code.AlreadyExists, text: 'Something else has this name already.' },
  [Reason.STALE_ETAG]: { code: Code.Aborted, text: 'The record was changed meanwhile. Read it again.' },
  [Reason.WRONG_STATE]: { code: Code.FailedPrecondition, text: 'The state of the record stands in the way.' },
  [Reason.INVALID_ARGUMENT]: { code: Code.InvalidArgument, text: 'Some fields are missing or wrong.' },
  [Reason.CODE_NEEDED]: { code: Code.Unauthenticated, text: 'Give the one-time code of your authenticator, too.' },
  [Reason.SIGN_IN_AGAIN]: {
    code: Code.Unauthenticated,
    text: 'This needs a sign-in of the last 15 minutes, with a one-time code where codes are enrolled. Sign in again.',
  },
  [Reason.CONFIRMATION_NEEDED]: {
    code: Code.InvalidArgument,
    text: 'This can’t be undone. Repeat the name of what it is done to.',
  },
  [Reason.LAST_ADMINISTRATOR]: {
    code: Code.FailedPrecondition,
    text: 'This is the last active administrator. Make another one first.',
  },
  [Reason.JUSTIFICATION_NEEDED]: {
    code: Code.InvalidArgument,
    text: 'Changes of administrators and passwords on the database itself need a reason: say why, with --reason.',
  },
}

/**
 * What may run out, for metrics: failed sign-ins of an account; failures, sign-ups, look-ups and requests for recovery
 * keys of an address; attempts of a user to activate; time to hash; e-mails that a user asks for, to an organization,
 * for an account, to a recipient, with a code for a new address; users that a service reads.
 */
export const limits = [
  'account',
  'failures',
  'signUps',
  'lookUps',
  'recoveryRequests',
  'activation',
  'hashing',
  'partner',
  'organization',
  'recovery',
  'recipient',
  'change',
  'serviceReads',
] as const

/** One of them. */
export type Limit = (typeof limits)[number]

/** A call that is refused: everything in it may be shown to the caller. */
export class Refusal extends Error {
  readonly code: Code
  constructor(
    readonly reason: Reason,
    readonly more: {
      /** Instead of the catalogue’s text. */
      readonly text?: string
      /** Every wrong field. */
      readonly fields?: readonly FieldViolation[]
      /** Seconds after which another try can succeed. Answers say a whole number, and 1 at least. */
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
