import type { Policy, ReasonName } from './policy.js'

/** Why any RPC may refuse. */
const always = ['MALFORMED_REQUEST', 'OVERLOADED', 'UNAVAILABLE', 'DEADLINE_EXCEEDED', 'INTERNAL'] as const

/** Why an RPC with a caller may refuse. */
const withCaller = ['ACCESS_DENIED', 'INVALID_TOKEN'] as const

/** Every reason for which an RPC may refuse: those of its row, and those that it shares with others. */
export function reasonsOf(policy: Policy): readonly ReasonName[] {
  const asksSignIn = policy.caller === 'administrator' && policy.signIn !== 'session'
  return [
    ...policy.reasons,
    ...always,
    ...(policy.caller === 'anyone' ? [] : withCaller),
    ...(asksSignIn ? (['SIGN_IN_AGAIN'] as const) : []),
  ]
}
