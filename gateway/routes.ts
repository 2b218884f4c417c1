/**
 * The HTTP interface as one table. Nothing here acts: `router.ts` finds the row of a request, `translate.ts` turns the
 * request into the RPC's message and its answer back.
 */
import type { DescMethodUnary, Message } from '@bufbuild/protobuf'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import type { Reason } from '../proto/gen/auth/v1/reason_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import {
  Health,
  type HealthCheckResponse,
  HealthCheckResponse_ServingStatus,
} from '../proto/gen/health/v1/health_pb.js'
import type { gatewayStatuses } from './problem.js'

/** A published revision of the interface. */
export type Revision = '1.0.0' | '1.0.2'

/** Both revisions. Each is served under its own base path, `/1.0.0` and `/1.0.2`. */
export const revisions: readonly Revision[] = ['1.0.0', '1.0.2']

/** Name of a reason for which a service refuses. */
export type ReasonName = Exclude<keyof typeof Reason, 'UNSPECIFIED'>

/** One operation of the HTTP interface. */
export interface Route {
  readonly method: 'GET' | 'POST'
  /** Path below the base path. A last segment in braces is a variable and gives the parameter of that name. */
  readonly path: string
  /** The RPC that does the work; absent where the gateway answers by itself. */
  readonly rpc?: DescMethodUnary
  /** Revisions that have the operation; absent means both, an empty list that it is served at `/` alone. */
  readonly revisions?: readonly Revision[]
  /**
   * Query parameters. Each fills the string field of the request that has this JSON name. The RPC itself refuses with
   * MISSING_PARAMETER when a required one is missing, since it must know the caller first.
   */
  readonly parameters?: Readonly<Record<string, 'required' | 'optional'>>
  /**
   * JSON body: `field` is the JSON name of the request field it fills, `*` the whole request. An operation without it
   * takes its parameters from a form or a JSON object as well.
   */
  readonly body?: { readonly field: string; readonly required: boolean }
  /**
   * JSON name of the response field that is the result, `*` for the whole response: a string goes out as plain text,
   * everything else as JSON. Absent: the answer is `text`, or empty.
   */
  readonly result?: string
  /** What is answered instead of a result, as plain text. */
  readonly text?: string
  /** Whether `text` is the answer to what the RPC returned; otherwise the request is refused as UNAVAILABLE. */
  readonly holds?: (response: Message) => boolean
  /** Media type of a JSON result; absent means `application/json`. */
  readonly mediaType?: string
  /** `Cache-Control` of a result that holds neither token nor user; absent means `no-store`. */
  readonly cache?: string
  /** Milliseconds that the RPC may take, where that is less than any call may. */
  readonly timeout?: number
  /** Whether the caller must send `Authorization: Bearer …`. */
  readonly protected?: boolean
  /** Reasons for which the RPC refuses, besides those of `refusalsOf` that many rows share. */
  readonly refusals: readonly ReasonName[]
}

/** Every operation of both revisions, then what is at `/` alone. */
export const routes: readonly Route[] = [
  {
    method: 'GET',
    path: '/forgotpasswords/findallforgotpasswordquestions',
    rpc: ForgotPasswords.method.findAllForgotPasswordQuestions,
    result: 'questions',
    cache: 'no-cache',
    refusals: [],
  },
  {
    method: 'POST',
    path: '/forgotpasswords/loginbyusernameandanswers',
    rpc: ForgotPasswords.method.loginByUsernameAndAnswers,
    parameters: { username: 'optional' },
    body: { field: 'answers', required: false },
    result: 'token',
    refusals: [
      'MISSING_PARAMETER',
      'TOO_MANY_ANSWERS',
      'USER_NOT_FOUND',
      'ANSWER_NOT_FOUND',
      'INVALID_ANSWERS',
      'TOO_MANY_ATTEMPTS',
    ],
  },
  {
    method: 'POST',
    path: '/forgotpasswords/loginbyusernameandkey',
    rpc: ForgotPasswords.method.loginByUsernameAndKey,
    parameters: { key: 'optional', username: 'optional' },
    result: 'token',
    refusals: ['INVALID_KEY', 'TOO_MANY_ATTEMPTS'],
  },
  {
    method: 'POST',
    path: '/forgotpasswords/passwordupdatebyusername',
    rpc: ForgotPasswords.method.passwordUpdateByUsername,
    parameters: { newPassword: 'optional', username: 'optional' },
    protected: true,
    refusals: ['MISSING_PARAMETER', 'INVALID_PASSWORD', 'USER_NOT_FOUND'],
  },
  {
    method: 'POST',
    path: '/forgotpasswords/saveforgotpasswordquestionsusersanswers',
    rpc: ForgotPasswords.method.saveForgotPasswordQuestionsUsersAnswers,
    body: { field: 'answer', required: false },
    protected: true,
    refusals: ['MISSING_PARAMETER', 'USER_NOT_FOUND', 'QUESTION_NOT_FOUND'],
  },
  {
    method: 'POST',
    path: '/forgotpasswords/sendkeybyemail',
    rpc: ForgotPasswords.method.sendKeyByEmail,
    parameters: { email: 'optional', username: 'optional' },
    refusals: ['INVALID_EMAIL', 'TOO_MANY_ATTEMPTS'],
  },
  {
    method: 'POST',
    path: '/users/signup',
    rpc: Users.method.signUp,
    body: { field: '*', required: true },
    result: 'token',
    refusals: ['INVALID_SIGN_UP', 'TOO_MANY_ATTEMPTS'],
  },
  {
    method: 'POST',
    path: '/users/activate',
    rpc: Users.method.activate,
    parameters: { activationkey: 'required', username: 'required' },
    result: 'username',
    protected: true,
    refusals: ['MISSING_PARAMETER', 'ACTIVATION_REFUSED', 'TOO_MANY_ATTEMPTS'],
  },
  {
    method: 'POST',
    path: '/users/login',
    rpc: Users.method.login,
    parameters: { username: 'required', password: 'required' },
    result: 'token',
    refusals: ['MISSING_PARAMETER', 'INVALID_CREDENTIALS', 'TOO_MANY_ATTEMPTS'],
  },
  { method: 'GET', path: '/users/me', rpc: Users.method.getMe, result: 'user', protected: true, refusals: [] },
  { method: 'GET', path: '/users/refresh', rpc: Users.method.refresh, result: 'token', protected: true, refusals: [] },
  {
    method: 'GET',
    path: '/users/{username}',
    rpc: Users.method.getUser,
    parameters: { username: 'required' },
    result: 'user',
    protected: true,
    refusals: ['MISSING_PARAMETER', 'USER_NOT_FOUND', 'TOO_MANY_ATTEMPTS'],
  },
  {
    method: 'POST',
    path: '/users/sendadminkeybyemailpartner',
    rpc: Users.method.sendAdminKeyByEmailPartner,
    revisions: ['1.0.0'],
    parameters: { emailpartner: 'required', username: 'required' },
    protected: true,
    refusals: ['MISSING_PARAMETER', 'USER_NOT_FOUND', 'ORGANIZATION_EMAIL_NOT_FOUND'],
  },
  {
    method: 'POST',
    path: '/users/setemail',
    rpc: Users.method.setEmail,
    body: { field: '*', required: true },
    protected: true,
    refusals: ['MISSING_PARAMETER', 'INVALID_EMAIL', 'INVALID_CREDENTIALS', 'TOO_MANY_ATTEMPTS'],
  },
  {
    method: 'POST',
    path: '/users/confirmemail',
    rpc: Users.method.confirmEmail,
    body: { field: '*', required: true },
    protected: true,
    refusals: ['MISSING_PARAMETER', 'INVALID_KEY', 'TOO_MANY_ATTEMPTS'],
  },
  {
    method: 'POST',
    path: '/users/revokemytokens',
    rpc: Users.method.revokeMyTokens,
    protected: true,
    refusals: [],
  },
  {
    method: 'POST',
    path: '/users/existsByUsername',
    rpc: Users.method.existsByUsername,
    parameters: { username: 'required' },
    result: 'exists',
    refusals: ['MISSING_PARAMETER', 'TOO_MANY_ATTEMPTS'],
  },
  {
    method: 'POST',
    path: '/users/existsByNickname',
    rpc: Users.method.existsByNickname,
    parameters: { nickname: 'required' },
    result: 'exists',
    refusals: ['MISSING_PARAMETER', 'TOO_MANY_ATTEMPTS'],
  },
  { method: 'GET', path: '/healthz', revisions: [], text: 'ok', refusals: [] },
  {
    method: 'GET',
    path: '/readyz',
    rpc: Health.method.check,
    revisions: [],
    text: 'ok',
    holds: response => (response as HealthCheckResponse).status === HealthCheckResponse_ServingStatus.SERVING,
    // The services themselves take 2 s at most to find out.
    timeout: 2_500,
    refusals: [],
  },
  {
    method: 'GET',
    path: '/.well-known/jwks.json',
    rpc: Users.method.getKeys,
    revisions: [],
    result: '*',
    mediaType: 'application/jwk-set+json',
    cache: 'public, max-age=300',
    refusals: [],
  },
]

/** Every reason for which a request of a row may be refused: the row's own, and those it shares with others. */
export function refusalsOf(route: Route): readonly (ReasonName | keyof typeof gatewayStatuses)[] {
  return [
    ...route.refusals,
    'MALFORMED_REQUEST',
    'REQUEST_TIMEOUT',
    'URI_TOO_LONG',
    'HEADERS_TOO_LARGE',
    ...(route.method === 'POST' ? (['PAYLOAD_TOO_LARGE', 'UNSUPPORTED_MEDIA_TYPE'] as const) : []),
    ...(route.protected ? (['ACCESS_DENIED', 'INVALID_TOKEN'] as const) : []),
    ...(route.rpc ? (['OVERLOADED', 'UNAVAILABLE', 'DEADLINE_EXCEEDED', 'INTERNAL'] as const) : []),
  ]
}

/** Fields of an organization that only one revision shows. */
export const organizationFields: Readonly<Record<string, Revision>> = { email: '1.0.0', activationkey: '1.0.2' }
