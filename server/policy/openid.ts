import type { OpenId } from '../../proto/gen/auth/v1/openid_pb.js'
import type { Policy } from './policy.js'

const open = { caller: 'anyone', reasons: [], audit: [], limits: [] } as const
const ownSession = { caller: 'user', target: 'caller', own: 'every role' } as const
const client = { ...open, audit: ['session.authorize', 'session.end'], limits: ['serviceKeys'] } as const

/** The policies of `auth.v1.OpenId`. */
export const openIdPolicies = {
  checkAuthorization: { ...open, reasons: ['RECORD_NOT_FOUND', 'WRONG_STATE'] },
  authorize: {
    ...ownSession,
    cost: 2,
    // The handler asks them for a code.
    restricted: ['one-time codes'],
    reasons: [
      'RECORD_NOT_FOUND',
      'WRONG_STATE',
      'SIGN_IN_AGAIN',
      'CODE_NEEDED',
      'INVALID_CREDENTIALS',
      'TOO_MANY_ATTEMPTS',
    ],
    audit: ['session.authorize'],
    limits: ['account', 'failures'],
  },
  exchangeToken: {
    ...client,
    cost: 2.5,
    reasons: [
      'INVALID_GRANT',
      'SUSPENDED',
      'SIGNED_OUT',
      'INVALID_CLIENT',
      'INVALID_ARGUMENT',
      'MISSING_PARAMETER',
      'TOO_MANY_ATTEMPTS',
    ],
    http: { method: 'POST', path: '/oauth/token', revisions: [] },
  },
  revokeToken: {
    ...client,
    cost: 1,
    reasons: ['INVALID_CLIENT', 'MISSING_PARAMETER', 'TOO_MANY_ATTEMPTS'],
    http: { method: 'POST', path: '/oauth/revoke', revisions: [] },
  },
  getUserInfo: {
    ...open,
    cost: 0.4,
    reasons: ['INVALID_TOKEN', 'MISSING_PARAMETER'],
    http: { method: 'GET', path: '/oauth/userinfo', revisions: [] },
  },
  checkSignOut: { ...open, reasons: ['RECORD_NOT_FOUND', 'WRONG_STATE'] },
  signOut: { ...ownSession, cost: 0.5, restricted: ['answers', 'one-time codes'], reasons: [], audit: [], limits: [] },
  getProviderMetadata: {
    ...open,
    reasons: ['WRONG_STATE'],
    http: { method: 'GET', path: '/.well-known/openid-configuration', revisions: [] },
  },
  checkOrigin: { ...open, repeated: true },
  getIdTokenKeys: { ...open, http: { method: 'GET', path: '/oauth/keys', revisions: [] } },
} as const satisfies Record<keyof typeof OpenId.method, Policy>
