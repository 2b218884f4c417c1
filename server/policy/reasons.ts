import type { AdministrationPolicy, Policy, ReasonName } from './row.js'

/** Reasons of any RPC, independent of its row. */
export const sharedReasons = [
  'MALFORMED_REQUEST',
  'OVERLOADED',
  'UNAVAILABLE',
  'DEADLINE_EXCEEDED',
  'INTERNAL',
] as const

/** Why an RPC with a caller may refuse. */
const withCaller = ['ACCESS_DENIED', 'INVALID_TOKEN'] as const

/** Why an RPC of Administration may refuse the record that its request refers to. */
const withTarget = {
  user: ['INVALID_ARGUMENT', 'USER_NOT_FOUND'],
  organization: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'],
  question: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'],
} as const satisfies Record<NonNullable<AdministrationPolicy['target']>, readonly ReasonName[]>

/** Every reason for which an RPC may refuse: those of its row, and those that it shares with others. */
export function reasonsOf(policy: Policy): readonly ReasonName[] {
  const administration = policy.caller === 'administrator' ? policy : undefined
  return [
    ...policy.reasons,
    ...sharedReasons,
    ...(policy.caller === 'anyone' ? [] : withCaller),
    ...(administration?.target ? withTarget[administration.target] : []),
    ...(administration && administration.signIn !== 'session' ? (['SIGN_IN_AGAIN'] as const) : []),
  ]
}
