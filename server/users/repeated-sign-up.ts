// A sign-up that repeats an earlier one, whose answer was lost, is answered as that one was.

import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { SignUpRequest } from '../../proto/gen/auth/v1/users_pb.js'
import type { Access } from '../access/index.js'
import type { AdministeredUserRow } from '../models/administered-user.js'
import type { Models } from '../models/index.js'
import type { Claim } from '../passwords/hash.js'
import type { Hashing } from '../passwords/index.js'
import type { SignUpForm } from '../registration/form.js'
import { profileChange } from '../registration/registrar.js'
import type { Call } from '../requests/call.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { profileFields } from '../rules/profile.js'

/** Milliseconds after a sign-up in which it can be repeated. */
const repeatable = 15 * 60_000

/** A valid sign-up with its question. */
export interface PreparedSignUp {
  readonly form: SignUpForm
  /** The question that it chooses: one that is offered, or the client's own, by its key. */
  readonly question: { readonly id: number } | { readonly key: string } | undefined
  /** The text of the question that the record shows. */
  readonly questionText: string | null
  /** The answer that is stored; undefined for none. */
  readonly answer: string | undefined
}

/**
 * Answers a sign-up whose names are `taken`, if it repeats one of the last 15 minutes: every field is as it is stored, and the user
 * was never activated and isn't suspended. Refuses with INVALID_SIGN_UP otherwise. The password counts as an attempt. For a
 * user who may be the one, passwords and answers are compared before it refuses for anything else, so that its time says nothing
 * of the other fields.
 */
export function repeatSignUp(
  { administeredUsers, answers, unmatchedAnswers }: Models,
  { passwords }: Hashing,
  { signIns, tokens, now }: Access,
) {
  async function storedAnswer(userId: number, question: PreparedSignUp['question']): Promise<string | undefined> {
    if (question === undefined) return undefined
    if ('key' in question) return unmatchedAnswers.find(userId, question.key)
    const stored = await answers.of(userId)
    return stored.find(({ questionId }) => questionId === question.id)?.answerHash
  }

  return async (
    given: PreparedSignUp,
    taken: readonly FieldViolation[],
    call: Call,
    { stay }: Pick<SignUpRequest, 'stay'>,
  ): Promise<string> => {
    const { form, question, questionText, answer } = given
    const found = await administeredUsers.find({ usernameKey: form.usernameKey })
    if (!found || !isOpen(found, now())) return refuse(Reason.INVALID_SIGN_UP, { fields: taken })
    await using attempt = await signIns.begin('user.sign-up', form.usernameKey, call)
    const { account, waiter } = attempt
    const stored = await storedAnswer(found.id, question)
    const claims: Claim[] = [{ context: 'password', text: form.password, stored: account?.passwordHash }]
    if (answer !== undefined) claims.push({ context: 'answer', text: answer, stored })
    const verdicts = await passwords.verify(claims, waiter)
    const isRepeated =
      account?.id === found.id &&
      verdicts.every(({ correct }) => correct) &&
      (answer === undefined) === (stored === undefined) &&
      questionText === found.securityQuestion &&
      form.username === found.username &&
      form.role === found.role &&
      (form.email ?? null) === found.email &&
      profileChange(found, profileFields, form).changed.length === 0
    return tokens.issue(await attempt.enter(isRepeated, { more: { fields: taken } }), 'pwd', { stay })
  }
}

/** Whether a user signed up so recently that the sign-up can be repeated. A clock that was set back doesn't count. */
function isOpen(user: AdministeredUserRow, now: number): boolean {
  const { unactivatedSeenAt, createdAt } = user
  return unactivatedSeenAt !== null && now - createdAt.getTime() <= repeatable
}
