/**
 * The HTTP interface as one table. Nothing here acts: `translate.ts` turns a request into the RPC's message and its
 * answer back, `paths.ts` finds the row of a request.
 */
import type { DescMethodUnary } from '@bufbuild/protobuf'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'

/** A published revision of the interface. */
export type Revision = '1.0.0' | '1.0.2'

/** Both revisions. Each is served under its own base path, `/1.0.0` and `/1.0.2`. */
export const revisions: readonly Revision[] = ['1.0.0', '1.0.2']

/** One operation of the HTTP interface. */
export interface Route {
  readonly method: 'GET' | 'POST'
  /** Path below the base path. A last segment in braces is a variable and gives the parameter of that name. */
  readonly path: string
  /** The RPC that does the work. */
  readonly rpc: DescMethodUnary
  /** Revisions that have the operation; absent means both. */
  readonly revisions?: readonly Revision[]
  /**
   * Query parameters. Each fills the string field of the request that has this JSON name. The RPC itself refuses when
   * a required one is missing.
   */
  readonly parameters?: Readonly<Record<string, 'required' | 'optional'>>
  /**
   * JSON body: `field` is the JSON name of the request field it fills, `*` the whole request. An operation without it
   * takes its parameters from a form or a JSON object as well.
   */
  readonly body?: { readonly field: string; readonly required: boolean }
  /**
   * JSON name of the response field that is the result: a string goes out as plain text, everything else as JSON.
   * Absent: the answer is empty.
   */
  readonly result?: string
  /** Whether the caller must send `Authorization: Bearer …`. */
  readonly protected?: boolean
  /** Whether a cache may keep the answer: true only where it holds neither token nor user. */
  readonly cacheable?: boolean
}

/** Every operation of both revisions. */
export const routes: readonly Route[] = [
  {
    method: 'GET',
    path: '/forgotpasswords/findallforgotpasswordquestions',
    rpc: ForgotPasswords.method.findAllForgotPasswordQuestions,
    result: 'questions',
    cacheable: true,
  },
  {
    method: 'POST',
    path: '/forgotpasswords/loginbyusernameandanswers',
    rpc: ForgotPasswords.method.loginByUsernameAndAnswers,
    parameters: { username: 'optional' },
    body: { field: 'answers', required: false },
    result: 'token',
  },
  {
    method: 'POST',
    path: '/forgotpasswords/loginbyusernameandkey',
    rpc: ForgotPasswords.method.loginByUsernameAndKey,
    parameters: { key: 'optional', username: 'optional' },
    result: 'token',
  },
  {
    method: 'POST',
    path: '/forgotpasswords/passwordupdatebyusername',
    rpc: ForgotPasswords.method.passwordUpdateByUsername,
    parameters: { newPassword: 'optional', username: 'optional' },
    protected: true,
  },
  {
    method: 'POST',
    path: '/forgotpasswords/saveforgotpasswordquestionsusersanswers',
    rpc: ForgotPasswords.method.saveForgotPasswordQuestionsUsersAnswers,
    body: { field: 'answer', required: false },
    protected: true,
  },
  {
    method: 'POST',
    path: '/forgotpasswords/sendkeybyemail',
    rpc: ForgotPasswords.method.sendKeyByEmail,
    parameters: { email: 'optional', username: 'optional' },
  },
  {
    method: 'POST',
    path: '/users/signup',
    rpc: Users.method.signUp,
    body: { field: '*', required: true },
    result: 'token',
  },
  {
    method: 'POST',
    path: '/users/activate',
    rpc: Users.method.activate,
    parameters: { activationkey: 'required', username: 'required' },
    result: 'username',
    protected: true,
  },
  {
    method: 'POST',
    path: '/users/login',
    rpc: Users.method.login,
    parameters: { username: 'required', password: 'required' },
    result: 'token',
  },
  { method: 'GET', path: '/users/me', rpc: Users.method.getMe, result: 'user', protected: true },
  { method: 'GET', path: '/users/refresh', rpc: Users.method.refresh, result: 'token', protected: true },
  {
    method: 'GET',
    path: '/users/{username}',
    rpc: Users.method.getUser,
    parameters: { username: 'required' },
    result: 'user',
    protected: true,
  },
  {
    method: 'POST',
    path: '/users/sendadminkeybyemailpartner',
    rpc: Users.method.sendAdminKeyByEmailPartner,
    revisions: ['1.0.0'],
    parameters: { emailpartner: 'required', username: 'required' },
    protected: true,
  },
  {
    method: 'POST',
    path: '/users/existsByUsername',
    rpc: Users.method.existsByUsername,
    parameters: { username: 'required' },
    result: 'exists',
  },
  {
    method: 'POST',
    path: '/users/existsByNickname',
    rpc: Users.method.existsByNickname,
    parameters: { nickname: 'required' },
    result: 'exists',
  },
]

/** Fields of an organization that only one revision shows. */
export const organizationFields: Readonly<Record<string, Revision>> = { email: '1.0.0', activationkey: '1.0.2' }
