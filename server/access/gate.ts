// The gate: what each state of a user keeps it from. Every attempt to sign in ends here, every token is issued behind it, and
// every user that calls has passed it. A refusal here is the same as for a wrong proof, so that it reveals no state.
//
// What a user may do once it is in is decided by permissions.ts; failures and locks are counted by sign-in.ts.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { User } from '../models/user.js'
import { guardedUser } from '../models/user-state.js'
import { named, type RemedyCode } from '../rules/remedies.js'

/** The ways in that a state can close, each with the reason of its refusal, which is that of a wrong proof. */
export const ways = {
  'sign in': Reason.INVALID_CREDENTIALS,
  'sign in to Administration': Reason.INVALID_CREDENTIALS,
  'recover by answers': Reason.INVALID_ANSWERS,
  'recover by e-mail': Reason.INVALID_KEY,
  // Of a new user, or of one whose answer was lost.
  'sign up': Reason.INVALID_SIGN_UP,
  activate: Reason.ACTIVATION_REFUSED,
  // With each call, in the transaction of each change, and at introspection.
  'use a token': Reason.INVALID_TOKEN,
  // Of a user that calls.
  'give its password again': Reason.INVALID_CREDENTIALS,
  'confirm an e-mail address': Reason.INVALID_KEY,
} as const satisfies Record<string, Reason>

/** A way in. */
export type Way = keyof typeof ways

/** The attributes of a user that its state consists of. */
export type Standing = Pick<User, 'active' | 'suspended'> & {
  /** Absent where the statement reads no deleted users. */
  readonly deletedAt?: Date | null
}

/** A state of a user. */
interface State {
  of(user: Standing): boolean
  /** The ways that stay open: a way that a state doesn't name is closed. */
  readonly opens: readonly Way[]
  /** What `auth-admin users why` says, and what ends the state. */
  readonly why: string
  readonly remedy: RemedyCode
}

/** The states that close a way. */
export const states = {
  // SQL finds no deleted user by name. Code that reads one without `deletedAt` sees a suspended user.
  deleted: {
    of: ({ deletedAt }) => Boolean(deletedAt),
    opens: [],
    why: 'The user is deleted.',
    remedy: 'undelete user',
  },
  suspended: {
    of: ({ suspended, deletedAt }) => suspended && !deletedAt,
    opens: [],
    why: 'The user is suspended.',
    remedy: 'resume user',
  },
  // Its token opens its own record, and no service takes it.
  'not activated': {
    of: ({ active }) => !active,
    opens: [
      'sign in',
      'recover by answers',
      'recover by e-mail',
      'sign up',
      'activate',
      'use a token',
      'give its password again',
      'confirm an e-mail address',
    ],
    why: 'The user isn’t active.',
    remedy: 'activate user',
  },
} as const satisfies Record<string, State>

const all: readonly State[] = Object.values(states)

declare const passed: unique symbol

/** A user that passed the gate. Only `pass` makes one. */
export type Passed<U> = U & { readonly [passed]: true }

/** What to do first about a state that refuses something at Administration. */
export const undo = ({ id, organizationId }: Pick<User, 'id' | 'organizationId'>, { why, remedy }: State) =>
  `${why} Run ${named(remedy, { USER: id, ORGANIZATION: organizationId ?? undefined })} first.`

/** The states of a user that close a way. */
export const closing = (user: Standing, way: Way): readonly State[] =>
  all.filter(({ of, opens }) => !opens.includes(way) && of(user))

/** The user, if there is one and its state opens this way. */
export function pass<U extends Standing>(user: U | undefined, way: Way): Passed<U> | undefined {
  return user && closing(user, way).length === 0 ? (user as Passed<U>) : undefined
}

/** Whether Administration is open to a user: an administrator or, for rows that say so, a holder of desk. */
export const isAdmitted = (user: Standing & Pick<User, 'role' | 'desk'>): boolean =>
  guardedUser.of(user) && closing(user, 'sign in to Administration').length === 0

/** Whether a user may administer the registry. */
export const isAdministrator = (user: Standing & Pick<User, 'role'>): boolean =>
  user.role === 'ROLE_ADMIN' && closing(user, 'sign in to Administration').length === 0
