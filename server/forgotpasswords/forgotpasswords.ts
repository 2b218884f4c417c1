import { timingSafeEqual } from 'node:crypto'
import type { ForgotPasswords as ForgotPasswordsService } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Answer } from '../../proto/gen/auth/v1/records_pb.js'
import { traces } from '../access/caller.js'
import { attemptSignIn, withPlace } from '../access/signin.js'
import type { Call, Implementation } from '../call.js'
import type { Transaction } from '../database/connection.js'
import type { StoredAnswer } from '../models/question.js'
import type { Owner } from '../models/user.js'
import { answerKey, isEmailAddress, usernameKey } from '../names.js'
import { checkPassword } from '../passwords/hash.js'
import { refuse } from '../refusal.js'
import { required } from '../required.js'
import { startSession, type UsersDeps } from '../users/users.js'

/** Correct answers that a sign-in needs. */
const answersNeeded = 2

/** Answers that a sign-in may give. */
const answersAllowed = 10

/** Longest answer, in UTF-16 code units. */
const longestAnswer = 255

/** The ForgotPasswords service; what each RPC means and refuses stands in forgotpasswords.proto. */
export function createForgotPasswordsService(deps: UsersDeps): Implementation<typeof ForgotPasswordsService> {
  const { database, users, questions, mailedKeys, emails, signIns, audit } = deps
  const { callers, tokens, hashing, passwords, policy, chooseLocale } = deps

  /** Queues an e-mail that tells users with an address what was done to their account, and from where. */
  async function tellOwner(
    kind: 'password-changed' | 'recovery-login',
    { id: userId, email }: Pick<Owner, 'id' | 'email'>,
    { address, acceptLanguage }: Call,
    t: Transaction,
  ): Promise<void> {
    const parameters = { userId, at: new Date().toISOString(), address }
    if (email) await emails.add({ kind, parameters }, chooseLocale(acceptLanguage), t)
  }

  return {
    async findAllForgotPasswordQuestions() {
      const all = await questions.all()
      return { questions: all.map(({ id, question, active }) => ({ id, question, active: active ? 1 : 0 })) }
    },

    async loginByUsernameAndAnswers(request, call) {
      const given = distinct(request.answers)
      if (request.answers.length > answersAllowed) refuse(Reason.TOO_MANY_ANSWERS)
      if (given.size === 0) refuse(Reason.INVALID_ANSWERS, { text: 'Give answers to at least 2 questions.' })
      const { username } = required({ username: request.username })
      const key = usernameKey(username)
      const turn = { account: key, deadline: call.deadline, signal: call.signal, jobs: given.size }
      return withPlace(hashing.reserve(turn), place =>
        attemptSignIn({ signIns, audit }, 'session.login-by-answers', key, call, async attempt => {
          const { account } = attempt
          if (!account) return attempt.fail(Reason.USER_NOT_FOUND)
          const stored = matching(given, await questions.answers(account.id))
          if (!stored) return attempt.fail(Reason.ANSWER_NOT_FOUND)
          let correct = 0
          for (const { answer, answerHash } of stored) {
            if ((await passwords.verify(answer, answerHash, 'answer', place)).correct) correct++
          }
          if (correct < answersNeeded || account.suspended) return attempt.fail(Reason.INVALID_ANSWERS)
          const event = attempt.success(account)
          await database.transact(async transaction => {
            await tellOwner('recovery-login', account, call, transaction)
            await signIns.succeed({ ...attempt, account }, call.address, event, { transaction })
          })
          return { token: await tokens.issue(account, startSession('kba')) }
        }),
      )
    },

    async loginByUsernameAndKey(request, call) {
      const username = request.username?.trim() ?? ''
      const typed = request.key?.trim().toUpperCase() ?? ''
      if (username === '' || typed === '' || typed.length > 64) refuse(Reason.INVALID_KEY)
      const key = usernameKey(username)
      return attemptSignIn({ signIns, audit }, 'session.login-by-key', key, call, async attempt => {
        const { account } = attempt
        // Nobody has the id 0: an unknown user costs the same steps.
        const id = account?.id ?? 0
        const digest = await mailedKeys.attempt(id, 'recovery')
        const equal = timingSafeEqual(digest ?? Buffer.alloc(32), mailedKeys.digest(id, 'recovery', typed))
        if (!account || !digest || !equal || account.suspended) return attempt.fail(Reason.INVALID_KEY)
        const event = attempt.success(account)
        const spent = await database.transact(async transaction => {
          if (!(await mailedKeys.spend(id, 'recovery', typed, transaction))) return false
          await tellOwner('recovery-login', account, call, transaction)
          await signIns.succeed({ ...attempt, account }, call.address, event, { transaction })
          return true
        })
        if (!spent) return attempt.fail(Reason.INVALID_KEY)
        return { token: await tokens.issue(account, startSession('otp')) }
      })
    },

    async passwordUpdateByUsername(request, call) {
      const given = request.username?.trim() ? usernameKey(request.username) : undefined
      const { caller, target: named } = await callers.identifyWith(call, given ?? '')
      const target = given === undefined ? caller.user : named
      const own = target?.id === caller.user.id
      if (!own && !caller.admin) refuse(Reason.ACCESS_DENIED)
      const { newPassword } = required({ newPassword: request.newPassword })
      const words = target && {
        ...target,
        institution: target.institution ?? undefined,
        email: target.email ?? undefined,
      }
      const problem = checkPassword(newPassword, words ?? {}, policy)
      if (problem) {
        refuse(Reason.INVALID_PASSWORD, { text: problem, fields: [{ field: 'newPassword', message: problem }] })
      }
      if (!target) refuse(Reason.USER_NOT_FOUND)
      const turn = { account: target.usernameKey, deadline: call.deadline, signal: call.signal }
      const hash = await passwords.hash(newPassword, 'password', turn)
      await database.transact(async t => {
        // Of two updates with one token, the first revokes it.
        const generation = own ? caller.user.tokenGeneration : null
        const changed = await users.changePassword(target.id, hash, generation, t)
        if (!changed) refuse(Reason.INVALID_TOKEN)
        await tellOwner('password-changed', changed, call, t)
        const event = { action: 'user.change-password', outcome: 'ok', subject_id: target.id } as const
        await audit.append({ ...traces(call, caller.user), ...event }, t)
      })
      return {}
    },

    async saveForgotPasswordQuestionsUsersAnswers({ answer: given }, call) {
      const caller = await callers.identify(call)
      const userId = given?.usersid ?? caller.user.id
      const own = userId === caller.user.id
      const target = own ? caller.user : await users.byId(userId)
      if (!own && !caller.admin && target) refuse(Reason.ACCESS_DENIED)
      const text = given?.answer ?? ''
      const questionId = given?.forgotpasswordquestionsid
      required({
        answer: answerKey(text.slice(0, 2 * longestAnswer)),
        forgotpasswordquestionsid: questionId?.toString(),
      })
      if (text.length > longestAnswer) {
        const fields = [{ field: 'answer', message: `Use at most ${longestAnswer} characters.` }]
        refuse(Reason.MALFORMED_REQUEST, { fields })
      }
      if (!target) refuse(Reason.USER_NOT_FOUND)
      const question = (await questions.offered({ id: questionId! })) ?? refuse(Reason.QUESTION_NOT_FOUND)
      const turn = { account: target.usernameKey, deadline: call.deadline, signal: call.signal }
      const hash = await passwords.hash(text, 'answer', turn)
      await database.transact(async t => {
        await questions.saveAnswer(userId, question.id, hash, t)
        const object = `question:${question.id}`
        const event = { action: 'user.save-answer', outcome: 'ok', subject_id: userId, object } as const
        await audit.append({ ...traces(call, caller.user), ...event }, t)
      })
      return {}
    },

    async sendKeyByEmail(request, call) {
      const email = request.email?.trim() ?? ''
      if (!isEmailAddress(email)) refuse(Reason.INVALID_EMAIL)
      // The same for everybody: whether an e-mail goes out is found out later, when nobody can measure it.
      const key = usernameKey((request.username ?? '').slice(0, 1024))
      const { address, requestId } = call
      const wish = { usernameKey: key, email, address, requestId }
      const { wait } = await emails.request(wish, chooseLocale(call.acceptLanguage))
      if (wait !== undefined) refuse(Reason.TOO_MANY_ATTEMPTS, { retryAfter: wait })
      return {}
    },
  }
}

/** The first answer given to each question. */
function distinct(answers: readonly Answer[]): Map<number, string> {
  const given = new Map<number, string>()
  for (const { forgotpasswordquestionsid: id = 0, answer = '' } of answers) {
    if (!given.has(id)) given.set(id, answer.slice(0, 2 * longestAnswer))
  }
  return given
}

/** Each answer given with the one stored; undefined when one of the questions was never answered. */
function matching(given: Map<number, string>, stored: readonly StoredAnswer[]) {
  const hashes = new Map(stored.map(({ questionId, answerHash }) => [questionId, answerHash]))
  const pairs = [...given].map(([id, answer]) => ({ answer, answerHash: hashes.get(id) }))
  return pairs.every(({ answerHash }) => answerHash !== undefined) ? pairs : undefined
}
