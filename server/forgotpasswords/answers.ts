import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Answer } from '../../proto/gen/auth/v1/records_pb.js'
import type { Caller } from '../access/caller.js'
import type { Access } from '../access/index.js'
import { checkPasswordAge } from '../access/password-age.js'
import type { ForgotPasswordsRpcs } from '../calls/context.js'
import type { StoredAnswer } from '../models/answer.js'
import type { Models } from '../models/index.js'
import type { Outbox } from '../outbox/index.js'
import type { Claim } from '../passwords/hash.js'
import type { Hashing } from '../passwords/index.js'
import { waiterOf } from '../passwords/pool.js'
import type { Call } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { longerThan } from '../rules/fault.js'
import { answerKey, usernameKey } from '../rules/names.js'
import { maxLengths, tooLong } from '../rules/sizes.js'

/** Minimum correct answers of a sign-in. */
export const answersNeeded = 2

/** The RPCs of questions and their answers. */
export function answerRpcs(
  { questions, answers }: Models,
  { passwords }: Hashing,
  { signIns, tokens, now }: Access,
  { notifyOwner }: Outbox,
) {
  /** Compares the password of the caller, as an attempt. Refuses while it proves too little. */
  async function prove(password: string, { user }: Caller, call: Call): Promise<void> {
    checkPasswordAge(user, now(), 'An answer can replace the former one at once', Reason.ACCESS_DENIED)
    await signIns.prove('user.save-answer', password, user, call)
  }

  return {
    /** Lists all security questions in their order, retired ones included. */
    async findAllForgotPasswordQuestions() {
      const all = await questions.all()
      return { questions: all.map(({ id, question, active }) => ({ id, question, active: active ? 1 : 0 })) }
    },

    /**
     * Signs in with correct answers to at least 2 different security questions; returns a token of a session of `kba`. Each
     * request counts as one attempt, regardless of the number of its answers.
     */
    async loginByUsernameAndAnswers(request, { call }) {
      const given = distinct(request.answers)
      if (given.size === 0) refuse(Reason.INVALID_ANSWERS, { text: 'Give answers to at least 2 questions.' })
      const { username } = required({ username: request.username })
      const key = usernameKey(username)
      if (key === '') refuse(Reason.USER_NOT_FOUND)

      await using attempt = await signIns.begin('session.login-by-answers', key, call)
      const { account, waiter } = attempt
      if (!account) return attempt.fail(Reason.USER_NOT_FOUND)
      const claims = toClaims(given, await answers.of(account.id))
      if (!claims) return attempt.fail(Reason.ANSWER_NOT_FOUND)
      const verdicts = await passwords.verify(claims, waiter)
      const correct = verdicts.filter(verdict => verdict.correct).length
      const entered = await attempt.enter(correct >= answersNeeded, {
        async work(user, t) {
          await notifyOwner('recovery-login', user, call, t)
          return undefined
        },
      })
      return { token: await tokens.issue(entered, 'kba') }
    },

    /**
     * Saves the answer to a question; it replaces an earlier one: at once with the password once more or on the first day, otherwise
     * a day later.
     */
    saveForgotPasswordQuestionsUsersAnswers: {
      check({ answer: given }) {
        const text = given?.answer ?? ''
        const long = tooLong(text, 'text')
        const questionId = given?.forgotpasswordquestionsid?.toString()
        // An answer whose key is empty counts as missing: it would compare equal to any other such answer.
        required({ answer: long ? 'given' : answerKey(text), forgotpasswordquestionsid: questionId })
        if (!long) return
        const fields = [{ field: 'answer', ...longerThan(maxLengths.text) }]
        refuse(Reason.MALFORMED_REQUEST, { fields })
      },
      async handle({ answer: given, password }, { call, caller, target, transact }) {
        const id = given!.forgotpasswordquestionsid!
        const question = (await questions.offered({ id })) ?? refuse(Reason.QUESTION_NOT_FOUND)
        if (password !== undefined) await prove(password, caller, call)
        const secret = { context: 'answer', text: given!.answer! } as const
        const [answerHash = ''] = await passwords.hash([secret], waiterOf(call, target.usernameKey))
        const by = { userId: caller.user.id, session: caller.session.id }
        await transact(async ({ t, record, target }) => {
          const saved = { userId: target.id, questionId: question.id, answerHash }
          const counts = await answers.save({ ...saved, by: password === undefined ? by : undefined }, t)
          await notifyOwner(counts ? 'answer-saved' : 'answer-waits', target, call, t)
          await record({ action: 'user.save-answer', subject_id: target.id, object: `question:${question.id}` })
        })
        return {}
      },
    },
  } satisfies Partial<ForgotPasswordsRpcs>
}

/** The answers by question id; of several to one question the first. */
function distinct(answers: readonly Answer[]): Map<number, string> {
  const given = new Map<number, string>()
  for (const { forgotpasswordquestionsid: id = 0, answer = '' } of answers) {
    if (!given.has(id)) given.set(id, answer)
  }
  return given
}

/** Pairs given answers with stored hashes; undefined when the user has no answer to one of the questions. */
function toClaims(given: Map<number, string>, stored: readonly StoredAnswer[]): Claim[] | undefined {
  const hashes = new Map(stored.map(({ questionId, answerHash }) => [questionId, answerHash]))
  const claims = [...given].map(([id, text]) => ({ context: 'answer' as const, text, stored: hashes.get(id) }))
  return claims.every(claim => claim.stored !== undefined) ? claims : undefined
}
