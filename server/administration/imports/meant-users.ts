// Rows of a file of users, as they are read: which users they mean, and which rows can be judged at once.
import type { ImportedUser, UserForm } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { BatchedUser } from '../../models/user-batch.js'
import { accountFields, type FormTexts, nameOf } from '../../registration/form.js'
import { nicknameSkeleton, usernameSkeleton } from '../../rules/look-alikes.js'
import { nicknameKey, usernameKey } from '../../rules/names.js'
import type { RowProblem } from './rows.js'

/** A row, read by the rules of sign-up. */
export interface Read {
  readonly index: number
  readonly row: ImportedUser
  readonly form: Partial<UserForm>
  /** The nickname of a new user without one becomes a free one when the row is judged. */
  texts: FormTexts
  /** Wrong fields, including those that only a new user needs. */
  readonly wrong: readonly RowProblem[]
  /** Key of the username; undefined without a valid one. */
  readonly key: string | undefined
  /** The provider key that it brings; empty for none. */
  readonly providerKey: string
}

/** Cuts rows into groups, in order: those of a group have nothing in common, so that they can be judged at once. */
export function groupsOf(reads: readonly Read[]): Read[][] {
  const groups: Read[][] = [[]]
  let taken = new Set<string>()
  for (const read of reads) {
    const { row, texts, providerKey } = read
    const { username, nickname } = texts
    const keys = [
      ...(providerKey ? [`k ${providerKey}`] : []),
      ...(row.id === undefined ? [] : [`#${row.id}`]),
      ...(username ? [`u ${usernameKey(username)}`, `u ${usernameSkeleton(username)}`] : []),
      ...(nickname ? [`n ${nicknameKey(nickname)}`, `n ${nicknameSkeleton(nickname)}`] : []),
    ]
    if (keys.some(key => taken.has(key))) {
      groups.push([])
      taken = new Set()
    }
    for (const key of keys) taken.add(key)
    groups.at(-1)!.push(read)
  }
  return groups
}

/** A unique name that a row gives to its user, under its field, with its name among touched records. */
interface Claim {
  readonly field: string
  readonly name: string
}

/** A row with the user that it means, if that exists. */
export interface Meant {
  readonly read: Read
  readonly user: BatchedUser | undefined
  /** The names of the user among touched records. A row with an id means no other user by its username. */
  readonly names: readonly string[]
  readonly claims: readonly Claim[]
}

export function meantBy(read: Read, user: BatchedUser | undefined): Meant {
  const { key, form, texts } = read
  const { id } = read.row
  const name = user?.usernameKey ?? (id === undefined ? key : undefined)
  const before = user && nicknameKey(user.nickname)
  const ofNickname = user && form.nickname === undefined ? '' : nicknameKey(texts.nickname ?? '')
  const claims = [
    ...(id !== undefined && key !== undefined && key !== user?.usernameKey ? [{ field: 'username', name: key }] : []),
    ...(ofNickname !== '' && ofNickname !== before ? [{ field: 'nickname', name: claimOf(texts.nickname!) }] : []),
  ]
  return { read, user, names: name === undefined ? [] : [name], claims }
}

/** The name of a nickname among touched records: no key of a username has such a character. */
export const claimOf = (nickname: string) => `\0${nicknameKey(nickname)}`

/** Returns what finds the user of a row among these. */
export function finder(users: readonly BatchedUser[]) {
  const byId = new Map(users.map(user => [user.id, user]))
  const byKey = new Map(users.map(user => [user.usernameKey, user]))
  return ({ row: { id }, key }: Read) => (id === undefined ? byKey.get(key ?? '') : byId.get(id))
}

/** The ids and the keys of usernames by which rows mean users. */
export function namesIn(reads: readonly Read[]): [ids: number[], keys: string[]] {
  return [
    reads.flatMap(({ row: { id } }) => id ?? []),
    reads.flatMap(({ row: { id }, key }) => (id === undefined && key !== undefined ? [key] : [])),
  ]
}

/** Whether a row gives a field, other than the present address of an existing user. */
export function isChosen(read: Read, field: string, user: BatchedUser | undefined): boolean {
  if (field === 'email' && user && keepsEmail(read, user)) return false
  return accountFields.some(each => nameOf(each) === field && read.form[each] !== undefined)
}

/** Whether an address stays, which is right then, whatever a new one must be. */
export function keepsEmail({ form: { email } }: Read, user: BatchedUser): boolean {
  return email === undefined || (email.trim() || null) === user.email
}
