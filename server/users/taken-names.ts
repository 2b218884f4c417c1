// Names that a user can't have, because they are taken, reserved or look-alikes: for sign-up, users and administrators.
import { randomInt } from 'node:crypto'
import { type Admission, tooManyAttempts } from '../access/admission.js'
import type { Transaction } from '../database/connection.js'
import { brokenConstraint } from '../database/failures.js'
import type { Users } from '../models/user.js'
import type { NameProblem } from '../models/user-names.js'
import type { FieldViolation } from '../requests/refusal.js'
import { nicknameKey, usernameKey } from '../rules/names.js'

/** Names that a form gives. */
interface Names {
  readonly username?: string | undefined
  readonly nickname?: string | undefined
}

/** A name is taken, as a transaction sees it. When the transaction has ended, `takenNames` returns which. */
class Taken extends Error {}

/** Throws `Taken` unless a user, which may be new, can have the names; it can until the transaction ends. */
export async function checkFree(
  users: Pick<Users, 'lookalikes'>,
  names: Names,
  t: Transaction,
  userId?: number,
): Promise<void> {
  const { username, nickname } = await users.lookalikes(names, { t, userId })
  if (username || nickname) throw new Taken()
}

/** Whether an error of a transaction says that a name is taken. */
export function isTaken(error: unknown): boolean {
  return error instanceof Taken || brokenConstraint(error)?.startsWith('users_') === true
}

/** Says why a user can't have a name. */
export function nameMessage(field: 'username' | 'nickname', problem: NameProblem): string {
  const why = { taken: 'is taken', alike: 'looks like one that is taken' }[problem]
  return `Choose another ${field}: this one ${why}.`
}

/** Returns as invalid fields the names that users other than `userId` have, or that look like such names. */
export async function takenNames(
  users: Pick<Users, 'taken' | 'lookalikes' | 'takenNicknames'>,
  { username = '', nickname = '' }: Names,
  userId?: number,
): Promise<FieldViolation[]> {
  const [taken, alike] = await Promise.all([
    users.taken(usernameKey(username), nicknameKey(nickname), userId),
    users.lookalikes({ username, nickname }, { userId }),
  ])
  const problemOf = (field: 'username' | 'nickname'): NameProblem | undefined =>
    taken[field] ? 'taken' : alike[field] ? 'alike' : undefined
  const fields: FieldViolation[] = []
  const [usernameProblem, nicknameProblem] = [problemOf('username'), problemOf('nickname')]
  if (usernameProblem) fields.push({ field: 'username', message: nameMessage('username', usernameProblem) })
  if (nicknameProblem) {
    const free = await freeNickname(users, nickname.trim())
    const message = nameMessage('nickname', nicknameProblem).replace(/\.$/, `, ${free} is free.`)
    fields.push({ field: 'nickname', message })
  }
  return fields
}

/**
 * Returns the same to a user who changes its own names. The refusal reveals a name, as ExistsByUsername does, and counts like
 * it: refuses with TOO_MANY_ATTEMPTS beyond the limit of the network. Callers check this limit before the change, because a
 * refusal only of taken names would reveal them, too.
 */
export async function revealTaken(
  { users, admission }: { readonly users: Users; readonly admission: Pick<Admission, 'takeLookUp'> },
  address: string,
  names: Names,
  userId: number,
): Promise<FieldViolation[]> {
  if (!admission.takeLookUp(address)) throw tooManyAttempts(1, 'lookUps')
  return takenNames(users, names, userId)
}

/** Returns a free nickname: the given one with random digits. Adds digits until a candidate is free. */
async function freeNickname(users: Pick<Users, 'takenNicknames'>, nickname: string): Promise<string> {
  const base = [...nickname].slice(0, 200).join('')
  for (let digits = 1; ; digits++) {
    const candidates = Array.from({ length: 8 }, () => `${base}${randomInt(10 ** digits, 10 ** (digits + 1))}`)
    const taken = await users.takenNicknames(candidates.map(nicknameKey))
    const free = candidates.find(candidate => !taken.has(nicknameKey(candidate)))
    if (free) return free
  }
}
