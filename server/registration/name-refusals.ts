// Names that a user can't have, because others have them, or have look-alikes of them.
import { randomInt } from 'node:crypto'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Transaction } from '../database/database.js'
import { brokenConstraint } from '../database/failures.js'
import { type RateLimits, tooManyAttempts } from '../limits/rate-limits.js'
import type { NameProblems } from '../models/name-conflicts.js'
import type { Users } from '../models/user.js'
import { type FieldViolation, Refusal } from '../requests/refusal.js'

/** Names that a form gives. */
interface Names {
  readonly username?: string | undefined
  readonly nickname?: string | undefined
}

/** Names are taken, as a transaction sees it. When the transaction has ended, `takenNames` returns them with a free one. */
export class Taken extends Refusal {
  constructor(fields: readonly FieldViolation[]) {
    super(Reason.INVALID_SIGN_UP, { fields })
  }
}

/** Whether an error of a transaction says that a name is taken. */
export function isTaken(error: unknown): boolean {
  return error instanceof Taken || brokenConstraint(error)?.startsWith('users_') === true
}

const faults = {
  taken: ['TAKEN', 'is taken'],
  alike: ['LOOKS_LIKE_ANOTHER', 'looks like one that is taken'],
} as const

/** Returns problems of names as wrong fields. */
export function nameViolations(problems: NameProblems): FieldViolation[] {
  return (['username', 'nickname'] as const).flatMap(field => {
    const problem = problems[field]
    if (!problem) return []
    const [reason, why] = faults[problem]
    return [{ field, reason, message: `Choose another ${field}: this one ${why}.` }]
  })
}

/** Returns as wrong fields the names that users other than `userId` have, or that look like such names, with a free nickname. */
export async function takenNames(
  users: Pick<Users, 'nameProblems'>,
  { username, nickname }: Names,
  userId?: number,
): Promise<FieldViolation[]> {
  const [problems] = await users.nameProblems([{ username, nickname, userId }])
  return suggest(users, nameViolations(problems!), nickname ?? '')
}

/** Returns wrong names with a free nickname, if the nickname is wrong. */
export async function suggest(
  users: Pick<Users, 'nameProblems'>,
  fields: readonly FieldViolation[],
  nickname: string,
  t?: Transaction,
): Promise<FieldViolation[]> {
  if (fields.every(({ field }) => field !== 'nickname')) return [...fields]
  const free = await freeNickname(users, nickname.trim(), t)
  return fields.map(each =>
    each.field === 'nickname'
      ? { ...each, message: each.message.replace(/\.$/, `, ${free} is free.`), suggestion: free }
      : each,
  )
}

/**
 * Returns the same to a user who changes its own names. The refusal reveals a name, as ExistsByUsername does, and counts like
 * it: refuses with TOO_MANY_ATTEMPTS beyond the limit of the network. Callers check this limit before the change, because a
 * refusal only of taken names would reveal them, too.
 */
export async function revealTaken(
  { users, rateLimits }: { readonly users: Users; readonly rateLimits: Pick<RateLimits, 'takeLookUp'> },
  address: string,
  names: Names,
  userId: number,
): Promise<FieldViolation[]> {
  if (!rateLimits.takeLookUp(address)) throw tooManyAttempts(1, 'lookUps')
  return takenNames(users, names, userId)
}

/** Returns a nickname that a user can have: the given one with random digits, as many as that takes. */
export async function freeNickname(
  users: Pick<Users, 'nameProblems'>,
  nickname: string,
  t?: Transaction,
): Promise<string> {
  const base = [...nickname].slice(0, 200).join('')
  for (let digits = 1; ; digits++) {
    const candidates = Array.from({ length: 8 }, () => `${base}${randomInt(10 ** digits, 10 ** (digits + 1))}`)
    const problems = await users.nameProblems(
      candidates.map(nickname => ({ nickname })),
      t,
    )
    const free = candidates.find((_, index) => !problems[index]!.nickname)
    if (free) return free
  }
}
