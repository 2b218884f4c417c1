/**
 * The HTTP interface as one table: paths, callers and reasons are those of the access policy. `router.ts` finds the route of a
 * request, `translate.ts` converts the request to the RPC's message and the answer back.
 */

import type { DescMessage, DescMethodUnary, Message } from '@bufbuild/protobuf'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { OpenId } from '../proto/gen/auth/v1/openid_pb.js'
import { Reason } from '../proto/gen/auth/v1/reason_pb.js'
import { Users, VerifyTokenResponseSchema } from '../proto/gen/auth/v1/users_pb.js'
import {
  Health,
  type HealthCheckResponse,
  HealthCheckResponse_ServingStatus,
} from '../proto/gen/grpc/health/v1/health_pb.js'
import {
  type HttpPath,
  needsOf,
  type Policy,
  type ReasonName,
  type Revision,
  reasonsOf,
} from '../server/policy/policy.js'
import { clientServices } from '../server/policy/services.js'
import { statusOf } from '../server/requests/reasons.js'
import type { Credentials } from './oauth.js'
import { gatewayReasons } from './problem.js'

export type { Revision }

/** Both revisions. Each is served under its own base path, `/1.0.0` and `/1.0.2`. */
export const revisions: readonly Revision[] = ['1.0.0', '1.0.2']

/** One operation of the HTTP interface. */
export interface Route extends HttpPath {
  /** The RPC of the operation; absent if the gateway itself answers. */
  readonly rpc?: DescMethodUnary
  /**
   * Query parameters. Each sets the string or int32 field of the request with this JSON name. The RPC itself refuses with
   * MISSING_PARAMETER if a required one is missing, because it must identify the caller first.
   */
  readonly parameters?: Readonly<Record<string, 'required' | 'optional'>>
  /**
   * JSON body: `field` is the JSON name of the request field that it sets, `*` the whole request; `beside` is another field, whose
   * value stands among those of an object. An operation without it also accepts its parameters in a form or a JSON object, and
   * so does one whose body is a list, which then is the field of this name there.
   */
  readonly body?: { readonly field: string; readonly beside?: string; readonly required: boolean }
  /**
   * JSON name of the response field that is the result, `*` for the whole response: a string is sent as plain text, all other
   * types as JSON. Absent: the answer is `text`, or empty.
   */
  readonly result?: string
  /** Message with the fields of a result that is itself JSON. */
  readonly json?: DescMessage
  /** Plain text of the answer, instead of a result. */
  readonly text?: string
  /** Whether `text` is the answer to a response; otherwise the request is refused with UNAVAILABLE. */
  readonly holds?: (response: Message) => boolean
  /** Media type of the result; absent means `text/plain` for a string, `application/json` for all other types. */
  readonly mediaType?: string
  /** `Cache-Control` of a result without token and user; absent means `no-store`. */
  readonly cache?: string
  /**
   * File of the build that is the answer, as `imports` in package.json names it: with `{revision}` that of the default
   * revision, with `{locale}` that in the language of the client.
   */
  readonly file?: string
  /** What the operation does, if no RPC has a comment that says it. */
  readonly about?: string
  /** Time limit of the RPC in ms, if shorter than that of other calls. */
  readonly timeout?: number
  /** Whether the caller must send `Authorization: Bearer …`. */
  readonly protected?: boolean
  /** Whether a page of another site may not cause it: see `isForeign` in cors.ts. */
  readonly ownPagesOnly?: boolean
  /** Whether clients authenticate and are refused as in OAuth 2.0 (client-authentication.ts). */
  readonly challenges?: boolean
  /** Whose credentials of OAuth 2.0 the RPC gets in its message, and whose errors its clients get (oauth.ts). */
  readonly credentials?: Credentials
  /** What answers browsers (sign-in/sign-in.ts). */
  readonly browser?: 'authorize' | 'login' | 'recover' | 'logout'
  /** Whether pages of clients may read the answers (cors.ts). */
  readonly isShared?: boolean
  /** Reasons for which the RPC refuses. */
  readonly refusals: readonly ReasonName[]
}

/** A request whose message is its JSON body. */
const whole = { body: { field: '*', required: true } } as const

/** An answer that is itself JSON. */
const json = { result: 'json', mediaType: 'application/json' } as const

/** What changes seldom, and is the same for every client. */
const published = { cache: 'public, max-age=300' } as const

/** HTTP mapping of the RPCs, in the order of their paths; the access policy has the rest. */
const operations: readonly (Omit<Route, keyof HttpPath | 'protected' | 'refusals'> & {
  readonly rpc: DescMethodUnary
})[] = [
  {
    rpc: ForgotPasswords.method.findAllForgotPasswordQuestions,
    result: 'questions',
    cache: 'no-cache',
  },
  {
    rpc: ForgotPasswords.method.loginByUsernameAndAnswers,
    parameters: { username: 'optional' },
    body: { field: 'answers', required: false },
    result: 'token',
  },
  {
    rpc: ForgotPasswords.method.loginByUsernameAndKey,
    parameters: { key: 'optional', username: 'optional' },
    result: 'token',
  },
  {
    rpc: ForgotPasswords.method.passwordUpdateByUsername,
    parameters: { newPassword: 'optional', username: 'optional', password: 'optional' },
  },
  {
    rpc: ForgotPasswords.method.saveForgotPasswordQuestionsUsersAnswers,
    body: { field: 'answer', beside: 'password', required: false },
  },
  {
    rpc: ForgotPasswords.method.sendKeyByEmail,
    parameters: { email: 'optional', username: 'optional' },
  },
  { rpc: Users.method.signUp, ...whole, result: 'token' },
  {
    rpc: Users.method.activate,
    parameters: { activationkey: 'required', username: 'required' },
    result: 'username',
  },
  {
    rpc: Users.method.login,
    parameters: { username: 'required', password: 'required', stay: 'optional' },
    result: 'token',
  },
  { rpc: Users.method.getMe, result: 'user' },
  { rpc: Users.method.updateMe, ...whole, result: 'user' },
  { rpc: Users.method.refresh, parameters: { stay: 'optional' }, result: 'token' },
  { rpc: Users.method.createRefreshToken, result: '*' },
  { rpc: Users.method.getUser, parameters: { username: 'required' }, result: 'user' },
  {
    rpc: Users.method.sendAdminKeyByEmailPartner,
    parameters: { emailpartner: 'required', username: 'required' },
  },
  { rpc: Users.method.setEmail, ...whole },
  { rpc: Users.method.confirmEmail, ...whole },
  { rpc: Users.method.setUsername, ...whole },
  { rpc: Users.method.revokeMyTokens },
  { rpc: Users.method.deleteMe, ...whole },
  { rpc: Users.method.deleteMyAnswers, ...whole },
  { rpc: Users.method.exportMe, ...json },
  {
    rpc: Users.method.listMyEvents,
    parameters: { pageSize: 'optional', pageToken: 'optional' },
    result: '*',
  },
  { rpc: Users.method.rotateProviderKey, result: 'user' },
  {
    rpc: Users.method.listMembers,
    parameters: { pageSize: 'optional', pageToken: 'optional', text: 'optional' },
    result: '*',
  },
  { rpc: Users.method.deactivateMember, parameters: { username: 'required' } },
  { rpc: Users.method.issueMemberKey, ...whole, result: '*' },
  { rpc: Users.method.existsByUsername, parameters: { username: 'required' }, result: 'exists' },
  { rpc: Users.method.existsByNickname, parameters: { nickname: 'required' }, result: 'exists' },
  {
    rpc: Users.method.introspect,
    parameters: { token: 'required' },
    ...json,
    json: VerifyTokenResponseSchema,
    challenges: true,
  },
  { rpc: Users.method.getServerMetadata, ...json, ...published },
  { rpc: Users.method.getKeys, result: '*', mediaType: 'application/jwk-set+json', ...published },
  {
    rpc: OpenId.method.exchangeToken,
    ...whole,
    result: '*',
    credentials: 'client',
    isShared: true,
  },
  { rpc: OpenId.method.revokeToken, ...whole, credentials: 'client', isShared: true },
  { rpc: OpenId.method.getUserInfo, ...json, credentials: 'access token', isShared: true },
  { rpc: OpenId.method.getProviderMetadata, ...json, ...published, isShared: true },
  {
    rpc: OpenId.method.getIdTokenKeys,
    result: 'json',
    mediaType: 'application/jwk-set+json',
    ...published,
    isShared: true,
  },
]

/** Readiness of the services. A separate gateway uses the same check on its metrics port. */
export const readiness = {
  method: 'GET',
  path: '/readyz',
  rpc: Health.method.check,
  revisions: [],
  about: 'Reports whether the service can answer requests.',
  text: 'ok',
  holds: (response: Message) => (response as HealthCheckResponse).status === HealthCheckResponse_ServingStatus.SERVING,
  // The services check for at most 2 s.
  timeout: 2_500,
  refusals: ['OVERLOADED', 'UNAVAILABLE', 'DEADLINE_EXCEEDED', 'INTERNAL'],
} as const satisfies Route

/** Liveness of the gateway, and readiness of the services. */
const probes: readonly Route[] = [
  { method: 'GET', path: '/healthz', revisions: [], about: 'Reports that the gateway runs.', text: 'ok', refusals: [] },
  readiness,
]

const file = { method: 'GET', revisions: [], ...published, refusals: [] } as const
// Asks each time: a page, its scripts and its style belong to one version.
const page = { ...file, mediaType: 'text/html; charset=utf-8', cache: 'no-cache' } as const

/** Paths of the definitions of the RPCs that this port has. */
export const definitions: readonly string[] = [
  'users',
  'forgotpasswords',
  'openid',
  'changes',
  'records',
  'reason',
  'scopes',
].map(name => `/proto/auth/v1/${name}.proto`)

/** What the build makes: the OpenAPI documents (`openapi/document.ts`), and the pages (`reference/page.ts`). */
const files: readonly Route[] = [
  ...revisions.map(revision => ({
    ...file,
    path: `/openapi/${revision}.json`,
    file: `#openapi/${revision}.json`,
    mediaType: 'application/json',
  })),
  { ...page, path: '/', file: '#pages/start.{locale}.html' },
  { ...page, path: '/docs', file: '#pages/docs.{revision}.{locale}.html' },
  ...revisions.flatMap(revision =>
    ['en', 'pt-BR'].map(locale => ({
      ...page,
      path: `/docs/${revision}/${locale}`,
      file: `#pages/${revision}.${locale}.html`,
    })),
  ),
  { ...page, path: '/docs/reference.css', file: '#pages/reference.css', mediaType: 'text/css' },
  ...['reference', 'call'].map(script => ({
    ...page,
    path: `/docs/${script}.js`,
    file: `#pages/${script}.js`,
    mediaType: 'text/javascript',
  })),
  ...definitions.map(path => ({ ...file, path, file: `#pages${path}`, mediaType: 'text/plain; charset=utf-8' })),
]

const policies = new Map(clientServices)

const browser = (browser: Route['browser'], ...methods: ('GET' | 'POST')[]): readonly Route[] =>
  methods.map(method => ({ method, path: `/oauth/${browser}`, browser, revisions: [], refusals: [] }))

/** What the documents leave out: where clients send browsers, and a second method for a token in a form (RFC 6750, 2.2). */
export const undocumented: readonly Route[] = [
  {
    method: 'POST',
    path: '/oauth/userinfo',
    rpc: OpenId.method.getUserInfo,
    body: { field: '*', required: false },
    ...json,
    credentials: 'access token',
    isShared: true,
    revisions: [],
    refusals: [],
  },
  ...browser('authorize', 'GET', 'POST'),
  ...browser('login', 'POST'),
  ...browser('recover', 'GET', 'POST'),
  ...browser('logout', 'GET', 'POST'),
]

/** Every operation of both revisions, then those that exist only at `/`. */
export const routes: readonly Route[] = [
  ...operations.map(operation => {
    const policy = policyOf(operation.rpc)
    const { caller, http } = policy
    if (!http) throw new Error(`The policy of ${operation.rpc.name} has no path.`)
    // A client of OAuth 2.0 is itself a page of another site, and what it sends has its credentials.
    const ownPagesOnly = http.method !== 'GET' && !operation.credentials
    return { ...http, protected: caller !== 'anyone', ownPagesOnly, refusals: reasonsOf(policy), ...operation }
  }),
  ...probes,
  ...files,
]

/** The policy of an RPC for clients. */
export function policyOf({ parent, localName }: DescMethodUnary): Policy {
  return policies.get(parent)![localName]!
}

/** What an RPC needs of the scheduler; the health check has no policy. */
export function needsOfRpc(rpc: DescMethodUnary): ReturnType<typeof needsOf> {
  return needsOf(rpc === Health.method.check ? { limits: [] } : policyOf(rpc))
}

/** Whether an RPC reveals to everyone which names are taken. */
export function revealsNames(rpc: DescMethodUnary): boolean {
  if (rpc === Health.method.check) return false
  const { caller, limits } = policyOf(rpc)
  return caller === 'anyone' && (limits as readonly string[]).includes('lookUps')
}

/** Every reason of refusals of an operation, by HTTP status: those of its RPC, and those of the gateway. */
export function refusalsOf({
  method,
  refusals,
  challenges,
  ownPagesOnly,
  rpc,
}: Route): ReadonlyMap<number, readonly string[]> {
  const reasons = new Map<number, Set<string>>()
  const add = (status: number, reason: string) => {
    const others = reasons.get(status)
    if (others) others.add(reason)
    else reasons.set(status, new Set([reason]))
  }
  for (const reason of refusals) {
    if (challenges && reason === 'INVALID_TOKEN') add(401, reason)
    else add(statusOf(Reason[reason]), reason)
    if (challenges && reason === 'ACCESS_DENIED') add(401, reason)
  }
  if (ownPagesOnly) add(statusOf(Reason.ACCESS_DENIED), 'ACCESS_DENIED')
  const ofGateway = [
    'MALFORMED_REQUEST',
    'REQUEST_TIMEOUT',
    'URI_TOO_LONG',
    'EXPECTATION_FAILED',
    'HEADERS_TOO_LARGE',
  ] as const
  const ofBody = ['PAYLOAD_TOO_LARGE', 'UNSUPPORTED_MEDIA_TYPE'] as const
  const ofHost = rpc && revealsNames(rpc) ? (['MISDIRECTED_REQUEST'] as const) : []
  for (const reason of [...ofGateway, ...ofHost, ...(method === 'GET' ? [] : ofBody)])
    add(gatewayReasons[reason].status, reason)
  return new Map([...reasons].sort(([a], [b]) => a - b).map(([status, names]) => [status, [...names]]))
}

/** Fields of an organization that only one revision has. */
export const organizationFields: Readonly<Record<string, Revision>> = { email: '1.0.0', activationkey: '1.0.2' }
