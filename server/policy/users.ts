import type { Users } from '../../proto/gen/auth/v1/users_pb.js'
import type { Policy } from './policy.js'

/** What users do with their own record alone. */
const ownRecord = { caller: 'user', target: 'caller', own: 'every role', restricted: [] } as const

/** The rows of `auth.v1.Users`. */
export const usersPolicies = {
  signUp: {
    caller: 'anyone',
    reasons: ['INVALID_SIGN_UP', 'TOO_MANY_ATTEMPTS'],
    audit: ['user.sign-up'],
    limits: ['signUps', 'lookUps', 'hashing'],
    http: { method: 'POST', path: '/users/signup' },
  },
  activate: {
    ...ownRecord,
    target: 'username',
    missing: 'ACTIVATION_REFUSED',
    // A ROLE_ADMIN is never activated here: the state refuses it.
    administrator: 'any user',
    reasons: ['MISSING_PARAMETER', 'ACTIVATION_REFUSED', 'TOO_MANY_ATTEMPTS'],
    audit: ['user.activate'],
    limits: ['activation', 'failures'],
    http: { method: 'POST', path: '/users/activate' },
  },
  login: {
    caller: 'anyone',
    device: true,
    reasons: ['MISSING_PARAMETER', 'INVALID_CREDENTIALS', 'TOO_MANY_ATTEMPTS'],
    audit: ['session.login'],
    limits: ['account', 'failures', 'hashing'],
    http: { method: 'POST', path: '/users/login' },
  },
  getMe: {
    ...ownRecord,
    restricted: ['answers', 'one-time codes'],
    reasons: [],
    audit: [],
    limits: [],
    http: { method: 'GET', path: '/users/me' },
  },
  refresh: {
    ...ownRecord,
    restricted: ['one-time codes'],
    reasons: [],
    audit: [],
    limits: [],
    http: { method: 'GET', path: '/users/refresh' },
  },
  getUser: {
    ...ownRecord,
    target: 'username',
    institution: 'members of its organization',
    administrator: 'any user',
    restricted: ['answers', 'one-time codes'],
    scope: 'users.read',
    reasons: ['MISSING_PARAMETER', 'USER_NOT_FOUND', 'TOO_MANY_ATTEMPTS'],
    audit: [],
    limits: ['serviceReads'],
    http: { method: 'GET', path: '/users/{username}' },
  },
  batchGetUsers: {
    caller: 'service',
    scope: 'users.read',
    reasons: ['TOO_MANY_ATTEMPTS'],
    audit: [],
    limits: ['serviceReads'],
  },
  setEmail: {
    ...ownRecord,
    reasons: ['MISSING_PARAMETER', 'INVALID_EMAIL', 'WRONG_STATE', 'INVALID_CREDENTIALS', 'TOO_MANY_ATTEMPTS'],
    audit: ['user.ask-email'],
    limits: ['account', 'failures', 'hashing', 'change'],
    http: { method: 'POST', path: '/users/setemail' },
  },
  confirmEmail: {
    ...ownRecord,
    reasons: ['MISSING_PARAMETER', 'INVALID_KEY', 'TOO_MANY_ATTEMPTS'],
    audit: ['user.change-email'],
    limits: ['failures'],
    http: { method: 'POST', path: '/users/confirmemail' },
  },
  revokeMyTokens: {
    ...ownRecord,
    restricted: ['one-time codes'],
    reasons: [],
    audit: ['user.revoke-own-tokens'],
    limits: [],
    http: { method: 'POST', path: '/users/revokemytokens' },
  },
  sendAdminKeyByEmailPartner: {
    ...ownRecord,
    target: 'username',
    own: 'ROLE_INSTITUTION',
    administrator: 'any user',
    reasons: ['MISSING_PARAMETER', 'USER_NOT_FOUND', 'ORGANIZATION_EMAIL_NOT_FOUND', 'TOO_MANY_ATTEMPTS'],
    audit: ['user.send-activation-key'],
    limits: ['partner', 'organization'],
    http: { method: 'POST', path: '/users/sendadminkeybyemailpartner', revisions: ['1.0.0'] },
  },
  existsByUsername: {
    caller: 'anyone',
    reasons: ['MISSING_PARAMETER', 'TOO_MANY_ATTEMPTS'],
    audit: [],
    limits: ['lookUps'],
    http: { method: 'POST', path: '/users/existsByUsername' },
  },
  existsByNickname: {
    caller: 'anyone',
    reasons: ['MISSING_PARAMETER', 'TOO_MANY_ATTEMPTS'],
    audit: [],
    limits: ['lookUps'],
    http: { method: 'POST', path: '/users/existsByNickname' },
  },
  verifyToken: { caller: 'anyone', reasons: [], audit: [], limits: [] },
  getKeys: {
    caller: 'anyone',
    reasons: [],
    audit: [],
    limits: [],
    http: { method: 'GET', path: '/.well-known/jwks.json', revisions: [] },
  },
} as const satisfies Record<keyof typeof Users.method, Policy>
