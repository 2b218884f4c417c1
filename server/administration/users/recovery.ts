// Help for a user who can't sign in, or whom others could sign in as: a new password, a recovery key by e-mail, an unlock,
// answers deleted.

import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import { checkOwnCodes } from '../../access/totp.js'
import type { AdministrationRpcs, Checked } from '../../calls/context.js'
import { tooManyAttempts } from '../../limits/rate-limits.js'
import { proofs } from '../../models/attempt.js'
import type { Models } from '../../models/index.js'
import { guardedUser } from '../../models/user-state.js'
import type { Outbox } from '../../outbox/index.js'
import type { Hashing } from '../../passwords/index.js'
import { checkPassword } from '../../passwords/policy.js'
import { waiterOf } from '../../passwords/pool.js'
import type { Settings } from '../../process/settings.js'
import type { Registration } from '../../registration/index.js'
import { canonicalAddress } from '../../requests/client-address.js'
import { refuse } from '../../requests/refusal.js'
import { wrongField } from '../../requests/wrong-fields.js'
import { emailKey } from '../../rules/names.js'
import { changeBy } from '../security-notices.js'
import { type ChangeUser, checkOpen } from './state.js'

/** The RPCs that help a user. */
export function userSupportRpcs(
  { attempts, buckets, counterKeys, totpSecrets, answers, emails, emailQuotas, mailedKeys }: Models,
  { passwords }: Hashing,
  { quotas }: Outbox,
  { registrar, rules }: Registration,
  change: ChangeUser,
  settings: Pick<Settings, 'mailLocale'>,
) {
  return {
    /** Clears the failures that count against a user, but for the caller's own one-time codes, and ends limits that hold it. */
    unlockUser: {
      check: request => checkAddress(request.address),
      async handle(_request, { administrator, transact, target: row }, address) {
        const { id, usernameKey } = row
        const own = await checkOwnCodes(totpSecrets, administrator, id)
        const cleared = await transact(async ({ t, record }) => {
          const keys = (await mailedKeys.current(id, t)).map(({ keyDigest }) => counterKeys.mailedKey(keyDigest))
          const accounts = proofs.map(proof => counterKeys.account(proof, usernameKey))
          const counts = await attempts.clear([...accounts, counterKeys.activation(id), ...keys], t)
          const codes = !own && (await totpSecrets.unlock(id, t))
          const ofAddress = address
            ? [
                ...['failures', 'recoveryRequests'].map(kind => counterKeys.address(kind, address)),
                ...[usernameKey, emailKey(row.email ?? '')].map(account =>
                  counterKeys.address('accountRecoveryRequests', address, account),
                ),
              ]
            : []
          const held = await quotas.held(row, await attempts.networksOf(id, t), t)
          for (const { subjects } of held) await emailQuotas.clear(subjects, t)
          const all = counts + Number(codes) + (await buckets.clear(ofAddress, t)) + held.length
          // The address itself is personal, and an object can’t be erased.
          const object = address && { object: 'address' }
          if (all > 0) await record({ action: 'user.unlock', subject_id: id, ...object })
          return all
        })
        return { cleared }
      },
    } satisfies Checked<'unlockUser', string | undefined>,

    /** Deletes the answers of a user, so that no one signs in by them, and notifies the user by e-mail. */
    async clearAnswers(request, context) {
      let cleared = 0
      const { user } = await change(request, context, {}, async (row, t) => {
        cleared = await answers.clear(row.id, t)
        if (cleared === 0) return undefined
        const by = changeBy(context.administrator, settings)
        // security-notices.ts notifies a guarded user, without a quota.
        if (!guardedUser.of(row)) await emails.notify('answers-cleared', row, by, t)
        return { action: 'user.clear-answers' }
      })
      return { user, cleared }
    },

    /** Sets a password, revokes the tokens of the user, and notifies the user by e-mail. */
    setPassword: {
      check({ password }) {
        if (password === undefined) wrongField('password', 'MISSING', 'Specify the new password.')
      },
      async handle(request, context) {
        const { call, administrator, target: user } = context
        const { password = '' } = request
        administrator.justify()
        const problem = checkPassword(password, user, rules.policy)
        if (problem)
          refuse(Reason.INVALID_PASSWORD, { text: problem.message, fields: [{ field: 'password', ...problem }] })
        const secret = { context: 'password', text: password } as const
        // With `validateOnly` nothing is stored.
        const [hash = ''] = request.validateOnly
          ? []
          : await passwords.hash([secret], waiterOf(call, user.usernameKey, 'administration'))
        return change(request, context, {}, async (row, t) => {
          await registrar.change({ user: row, passwordHash: hash }, { notice: changeBy(administrator, settings) }, t)
          return { action: 'user.set-password' }
        })
      },
    } satisfies Checked<'setPassword'>,

    /** Mails a recovery key to the user's registered address. */
    async sendRecoveryKey(_request, { transact }) {
      const email = await transact(async ({ t, record, target: row }) => {
        checkOpen(row, 'recover by e-mail')
        if (row.email === null) refuse(Reason.WRONG_STATE, { text: `${row.username} has no e-mail address.` })
        const wait = await quotas.recipient(row.email, 'administration', t)
        if (wait > 0) throw tooManyAttempts(wait, 'recovery')
        const parameters = { userId: row.id, to: row.email }
        await emails.add({ kind: 'recovery-key', stage: 'ready', parameters }, settings.mailLocale, t)
        await record({ action: 'user.send-key', subject_id: row.id })
        return row.email
      })
      return { email }
    },
  } satisfies Partial<AdministrationRpcs>
}

/** A client address in canonical form; undefined when none is given. Refuses anything else with INVALID_ARGUMENT. */
export function checkAddress(text: string | undefined): string | undefined {
  if (text === undefined || text.trim() === '') return undefined
  return canonicalAddress(text.trim()) ?? wrongField('address', 'MALFORMED', 'Use an IP address.')
}
