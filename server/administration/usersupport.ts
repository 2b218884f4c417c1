// What helps a user who can't get in: a password, a key by e-mail, forgotten failures.
import type { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Administrators } from '../access/administrator.js'
import { tooManyAttempts } from '../access/admission.js'
import type { Unary } from '../call.js'
import { canonicalAddress } from '../clientaddress.js'
import type { Attempts, Subjects } from '../models/attempt.js'
import type { Buckets } from '../models/bucket.js'
import type { Emails } from '../models/email.js'
import type { Questions } from '../models/question.js'
import type { Quotas } from '../outbox/quotas.js'
import type { Passwords } from '../passwords/hash.js'
import { checkPassword, type PasswordPolicy } from '../passwords/policy.js'
import { waiterOf } from '../passwords/pool.js'
import { refuse } from '../refusal.js'
import type { Settings } from '../settings.js'
import type { Changes } from './changes.js'
import type { References } from './references.js'
import { changeUser, checkPresent, lockUser, type UserChangeDeps } from './userchanges.js'
import { wrongFields } from './wrongfields.js'

type Service = typeof Administration.method

/** Forgets the failed sign-ins that count against a user. */
export function unlockUser(deps: {
  administrators: Administrators
  changes: Changes
  references: References
  attempts: Attempts
  buckets: Buckets
  subjects: Subjects
}): Unary<Service['unlockUser']> {
  const { administrators, changes, references, attempts, buckets, subjects } = deps
  return async (request, call) => {
    const administrator = await administrators.identify('unlockUser', call)
    const address = checkAddress(request.address)
    const { id, usernameKey } = await references.user(request.user)
    const cleared = await changes.make(administrator, request, async ({ t, record }) => {
      const here = address ? [subjects.known(usernameKey, address)] : []
      const bucket = address ? [subjects.address('failures', address)] : []
      const counts = await attempts.clear([subjects.account(usernameKey), ...here], t)
      const all = counts + (await buckets.clear(bucket, t))
      // The address itself is personal, and an object can’t be erased.
      const object = address && { object: 'address' }
      if (all > 0) await record({ action: 'user.unlock', subject_id: id, ...object })
      return all
    })
    return { cleared }
  }
}

/** Sets a password and revokes the tokens of the user, who is told by e-mail. */
export function setPassword(
  deps: UserChangeDeps & {
    questions: Questions
    emails: Emails
    passwords: Passwords
    policy: PasswordPolicy
    settings: Pick<Settings, 'mailLocale'>
  },
): Unary<Service['setPassword']> {
  const { administrators, references, users, questions, emails, passwords, policy, settings } = deps
  return async (request, call) => {
    const administrator = await administrators.identify('setPassword', call)
    const { password } = request
    if (password === undefined) wrongFields([{ field: 'password', message: 'Give the new password.' }])
    const user = await references.user(request.user)
    administrator.justify()
    const problem = checkPassword(password, user, policy)
    if (problem) refuse(Reason.INVALID_PASSWORD, { text: problem, fields: [{ field: 'password', message: problem }] })
    const secret = { context: 'password', text: password } as const
    // Only checked, it is stored nowhere.
    const [hash = ''] = request.validateOnly ? [] : await passwords.hash([secret], waiterOf(call, user.usernameKey))
    const named = { ...request, user: `#${user.id}`, etag: '' }
    const { user: after } = await changeUser(deps, administrator, named, {}, async (row, t) => {
      checkPresent(row)
      await users.changePassword(row.id, hash, null, t)
      await questions.discardNext(row.id, t)
      const address = administrator.traces.address ?? 'auth-admin'
      const parameters = { userId: row.id, at: new Date().toISOString(), address }
      if (row.email) await emails.add({ kind: 'password-changed', parameters }, settings.mailLocale, t)
      return { action: 'user.set-password' }
    })
    return { user: after }
  }
}

/** Mails a recovery key to the user's registered address. */
export function sendRecoveryKey(
  deps: Pick<UserChangeDeps, 'administrators' | 'changes' | 'references' | 'administeredUsers'> & {
    emails: Emails
    quotas: Quotas
    settings: Pick<Settings, 'mailLocale'>
  },
): Unary<Service['sendRecoveryKey']> {
  const { administrators, changes, references, administeredUsers, emails, quotas, settings } = deps
  return async (request, call) => {
    const administrator = await administrators.identify('sendRecoveryKey', call)
    const { id } = await references.user(request.user)
    const email = await changes.make(administrator, request, async ({ t, record }) => {
      const row = await lockUser(administeredUsers, id, t)
      checkPresent(row)
      if (row.suspended) refuse(Reason.WRONG_STATE, { text: `${row.username} is suspended: resume it first.` })
      if (row.email === null) refuse(Reason.WRONG_STATE, { text: `${row.username} has no e-mail address.` })
      // Counted apart from what anybody may ask for: nobody uses up what administrators send.
      const wait = await quotas.recipient(row.email, true, t)
      if (wait > 0) throw tooManyAttempts(wait, 'recovery')
      const parameters = { userId: id, to: row.email }
      await emails.add({ kind: 'recovery-key', parameters }, settings.mailLocale, t)
      await record({ action: 'user.send-key', subject_id: id })
      return row.email
    })
    return { email }
  }
}

/** A client address in canonical text; undefined when none is given. Refuses what is none. */
export function checkAddress(text: string | undefined): string | undefined {
  if (text === undefined || text.trim() === '') return undefined
  return canonicalAddress(text.trim()) ?? wrongFields([{ field: 'address', message: 'Give an IP address.' }])
}
