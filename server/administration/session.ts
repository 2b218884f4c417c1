import { timestampFromMs } from '@bufbuild/protobuf/wkt'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Administrator } from '../access/administrator.js'
import type { Access } from '../access/index.js'
import { provesFrom } from '../access/password-age.js'
import { checkOwnCodes, newTotpSecret, secondsToNextCode, totpStep, totpUri } from '../access/totp.js'
import type { AdministrationRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import type { User } from '../models/user.js'
import { guardedUser } from '../models/user-state.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { wrongField } from '../requests/wrong-fields.js'
import { usernameKey } from '../rules/names.js'
import { advise } from '../rules/remedies.js'
import { scopeOf } from '../rules/scopes.js'
import { tooLong } from '../rules/sizes.js'
import { requireConfirmation } from './confirmation.js'
import type { NotifyAdministrators } from './security-notices.js'
import { toAdministeredUser } from './users/record.js'

/** The RPCs of the session of an administrator, and of its one-time codes. */
export function sessionRpcs(
  { totpSecrets, users, administeredUsers, dataKeys }: Models,
  { signIns, oneTimeCodes, administratorSessions: sessions, tokenIssuer: { issuer }, now }: Access,
  notifyAdministrators: NotifyAdministrators,
) {
  return {
    /**
     * Exchanges username, password and, once enrolled, a one-time code for a token of Administration. For a day after a public
     * session has set the password, it takes the password with a code only.
     */
    async signIn(request, { call }) {
      const { username, password } = required({ username: request.username, password: request.password })
      const key = usernameKey(username)
      if (key === '' || tooLong(password, 'password')) refuse(Reason.INVALID_CREDENTIALS)

      await using attempt = await signIns.begin('session.admin-login', key, call)
      const { correct } = await attempt.comparePassword(password)
      const account = await attempt.pass(correct && attempt.account !== undefined && guardedUser.of(attempt.account))
      // The password is right: a refusal from here on isn't a failure of it.
      const enrolled = await oneTimeCodes.check(attempt, account, request.code, call)
      const provedFrom = enrolled ? undefined : provesFrom(account, now())
      if (provedFrom !== undefined) {
        await attempt.record(Reason.SIGN_IN_AGAIN)
        refuse(Reason.SIGN_IN_AGAIN, { text: passwordTooNew(provedFrom) })
      }
      await attempt.succeed()
      const { token, expiresAt } = await sessions.begin(account, enrolled)
      return { token, expireTime: timestampFromMs(expiresAt * 1000) }
    },

    /** Returns who calls. */
    async getSession(_request, { administrator }) {
      const { user, session, auditContext, service } = administrator
      if (!user || !session) return { actor: auditContext.actor, scopes: service?.scopes.map(scopeOf) ?? [] }
      const row = (await administeredUsers.find({ id: user.id })) ?? refuse(Reason.INVALID_TOKEN)
      return {
        user: toAdministeredUser(row, dataKeys),
        actor: auditContext.actor,
        signInTime: timestampFromMs(session.startedAt * 1000),
        expireTime: timestampFromMs(session.expiresAt * 1000),
        totp: (await totpSecrets.find(user.id)).secret !== undefined,
      }
    },

    /** Makes a secret for one-time codes of the caller. */
    async enrollTotp(_request, { administrator, transact }) {
      const { id, username } = signedIn(administrator)
      const secret = newTotpSecret()
      await transact(({ t }) => totpSecrets.enroll(id, secret, t))
      return { secret, uri: totpUri(secret, username, issuer) }
    },

    /** Completes an enrolment with a code of the new secret, and ends every session of the caller: they began without a code. */
    async confirmTotp(request, { administrator, transact }) {
      const { id } = signedIn(administrator)
      const { pending } = await totpSecrets.find(id)
      if (!pending) refuse(Reason.WRONG_STATE, { text: 'No enrolment has begun. Call EnrollTotp first.' })
      const step = totpStep(pending, request.code ?? '', now())
      if (step === undefined) {
        wrongField('code', 'MISMATCH', 'Not the present code of the new secret. Try the next one.')
      }
      await transact(async ({ t, record }) => {
        if (!(await totpSecrets.confirm(id, pending, step, t))) refuse(Reason.STALE_ETAG)
        await users.revokeTokens(id, t)
        await record({ action: 'user.enroll-totp', subject_id: id })
      })
      return { nextCodeDelay: { seconds: BigInt(secondsToNextCode(step, now())) } }
    },

    /**
     * Removes the one-time codes of an administrator who lost the authenticator, and ends its sessions: without codes, public ones
     * would open more than before.
     */
    async removeTotp(request, { administrator, transact, target: user }) {
      requireConfirmation(user.username, request.confirm)
      administrator.justify()
      await checkOwnCodes(totpSecrets, administrator, user.id)
      const changed = await transact(async ({ t, record }) => {
        const removed = await totpSecrets.remove(user.id, t)
        if (!removed) return false
        await users.revokeTokens(user.id, t)
        await notifyAdministrators(administrator, { action: 'user.remove-totp', subjectId: user.id }, t)
        await record({ action: 'user.remove-totp', subject_id: user.id })
        return true
      })
      return { changed }
    },
  } satisfies Partial<AdministrationRpcs>
}

/** Why a right password without a one-time code doesn't sign in until `time`. */
function passwordTooNew(time: string): string {
  return [
    'A public session changed this password less than a day ago.',
    `It signs in here with a one-time code, or from ${time} on.`,
    advise('set password here'),
  ].join(' ')
}

/** The user of a session; on the database itself there is none. */
function signedIn({ user }: Administrator): User {
  return user ?? refuse(Reason.WRONG_STATE, { text: 'One-time codes need a session: sign in to a server first.' })
}
