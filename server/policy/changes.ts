import type { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import type { Policy } from './policy.js'

/** The policies of `auth.v1.Changes`. */
export const changesPolicies = {
  poll: {
    cost: 0.3,
    repeated: true,
    caller: 'service',
    scope: ['tokens.watch', 'users.watch'],
    reasons: ['INVALID_ARGUMENT', 'TOO_MANY_ATTEMPTS'],
    audit: [],
    limits: ['watchers'],
  },
} as const satisfies Record<keyof typeof Changes.method, Policy>
