import { Code } from '@connectrpc/connect'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'

/** Each reason's gRPC code, its status over HTTP, and a text that says what to do. */
export const reasons: Record<Reason, readonly [code: Code, status: number, text: string]> = {
  [Reason.UNSPECIFIED]: [Code.Unknown, 400, 'Something went wrong.'],
  [Reason.ACCESS_DENIED]: [Code.PermissionDenied, 403, 'Access denied.'],
  [Reason.INVALID_TOKEN]: [
    Code.Unauthenticated,
    500,
    'The token is expired or invalid. Get a new one with the refresh token, or sign in again.',
  ],
  [Reason.MISSING_PARAMETER]: [Code.InvalidArgument, 400, 'A required parameter is missing.'],
  [Reason.MALFORMED_REQUEST]: [Code.InvalidArgument, 400, 'The request is malformed.'],
  [Reason.INVALID_SIGN_UP]: [Code.InvalidArgument, 422, 'Some fields are missing or invalid.'],
  [Reason.INVALID_CREDENTIALS]: [Code.Unauthenticated, 404, 'Invalid username or password.'],
  [Reason.ACTIVATION_REFUSED]: [Code.FailedPrecondition, 422, 'The user can’t be activated with this key.'],
  [Reason.USER_NOT_FOUND]: [Code.NotFound, 404, 'The user doesn’t exist.'],
  [Reason.QUESTION_NOT_FOUND]: [Code.NotFound, 404, 'The question doesn’t exist or is retired.'],
  [Reason.ANSWER_NOT_FOUND]: [Code.NotFound, 404, 'The user has no answer to one of the questions.'],
  [Reason.INVALID_ANSWERS]: [Code.Unauthenticated, 422, 'At least 2 answers must be correct.'],
  [Reason.INVALID_KEY]: [Code.Unauthenticated, 422, 'Invalid username or key. Request a new key.'],
  [Reason.INVALID_EMAIL]: [Code.InvalidArgument, 422, 'The e-mail address is missing or invalid.'],
  [Reason.INVALID_PASSWORD]: [Code.InvalidArgument, 400, 'The new password doesn’t meet the requirements.'],
  [Reason.ORGANIZATION_EMAIL_NOT_FOUND]: [Code.NotFound, 404, 'No organization has this e-mail address.'],
  [Reason.TOO_MANY_ATTEMPTS]: [Code.ResourceExhausted, 429, 'Too many attempts. Try again later.'],
  [Reason.OVERLOADED]: [Code.ResourceExhausted, 503, 'The service is busy. Try again later.'],
  [Reason.UNAVAILABLE]: [Code.Unavailable, 503, 'The service can’t answer now. Try again later.'],
  [Reason.DEADLINE_EXCEEDED]: [Code.DeadlineExceeded, 503, 'The deadline has passed. Try again.'],
  [Reason.INTERNAL]: [Code.Internal, 503, 'Something went wrong.'],
  [Reason.RECORD_NOT_FOUND]: [Code.NotFound, 404, 'The record doesn’t exist.'],
  [Reason.NAME_TAKEN]: [Code.AlreadyExists, 409, 'This name is already taken. Choose another one.'],
  [Reason.STALE_ETAG]: [Code.Aborted, 409, 'The record has changed since it was read. Read it again.'],
  [Reason.WRONG_STATE]: [Code.FailedPrecondition, 409, 'The state of the record doesn’t allow this.'],
  [Reason.INVALID_ARGUMENT]: [Code.InvalidArgument, 400, 'Some fields are missing or invalid.'],
  [Reason.CODE_NEEDED]: [Code.Unauthenticated, 401, 'Give the one-time code from your authenticator app.'],
  [Reason.SIGN_IN_AGAIN]: [
    Code.Unauthenticated,
    401,
    'This requires a sign-in in the last 15 minutes, with a one-time code if codes are enrolled. Sign in again.',
  ],
  [Reason.CONFIRMATION_NEEDED]: [
    Code.InvalidArgument,
    400,
    'This can’t be undone. To confirm, repeat the name of the target.',
  ],
  [Reason.LAST_ADMINISTRATOR]: [
    Code.FailedPrecondition,
    409,
    'This is the last active administrator. Add another one first.',
  ],
  [Reason.JUSTIFICATION_NEEDED]: [
    Code.InvalidArgument,
    400,
    'On the database itself, changes to administrators and passwords require a reason.',
  ],
  [Reason.INVALID_GRANT]: [
    Code.Unauthenticated,
    400,
    'The code or the refresh token isn’t valid any more. Sign in again.',
  ],
  [Reason.INVALID_CLIENT]: [Code.Unauthenticated, 401, 'There is no such client, or its secret is wrong.'],
  [Reason.SUSPENDED]: [Code.Unauthenticated, 400, 'The user is suspended.'],
  [Reason.SIGNED_OUT]: [Code.Unauthenticated, 400, 'All sessions of the user have ended. Sign in again.'],
}

/** Returns the HTTP status of a reason. */
export const statusOf = (reason: Reason): number => reasons[reason][1]
