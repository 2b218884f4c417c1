/**
 * The pages by which a user who forgot the password sets another one, by a mailed key or by answers, and goes on to the client. The
 * token of the recovery is kept in the cookie of the sign-in: Authorize refuses it, so it opens no client.
 */
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import type { Answer } from '../exchange.js'
import { isAnswer, problemOf } from '../problem.js'
import { type Frame, keyPage, newPasswordPage, questionsPage, recoveryPage } from './page.js'
import { texts } from './texts.js'
import { type CallRpc, explain, type Visit, withCookie } from './visit.js'

/** Creates what answers these pages. `enter` signs in with the new password, and goes on. */
export function createRecovery(
  call: CallRpc,
  enter: (visit: Visit, username: string, password: string) => Promise<Answer>,
): (visit: Visit) => Promise<Answer> {
  const { method } = ForgotPasswords

  /** Each step of the form, and the page that shows why it was refused. */
  const steps: Readonly<
    Record<string, { act(visit: Visit): Promise<Answer>; again(visit: Visit, frame: Frame): Answer | Promise<Answer> }>
  > = {
    mail: {
      async act({ exchange, frame, form }) {
        const { username = '', email } = Object.fromEntries(form)
        await call(exchange, method.sendKeyByEmail, { username, email })
        return keyPage(frame, username)
      },
      again: ({ form }, frame) => recoveryPage(frame, form.get('username') ?? '', form.get('email') ?? ''),
    },
    key: {
      async act(visit) {
        const { username = '', key } = Object.fromEntries(visit.form)
        const { token } = await call(visit.exchange, method.loginByUsernameAndKey, { username, key })
        return withCookie(newPasswordPage(visit.frame, username), token, visit.issuer)
      },
      again: ({ form }, frame) => keyPage(frame, form.get('username') ?? ''),
    },
    questions: { act: visit => showQuestions(visit, visit.frame), again: showQuestions },
    answers: {
      async act(visit) {
        const { username = '', ...given } = Object.fromEntries(visit.form)
        const answers = [1, 2].map(n => ({
          forgotpasswordquestionsid: Number(given[`question${n}`]) | 0,
          answer: given[`answer${n}`],
        }))
        const { token } = await call(visit.exchange, method.loginByUsernameAndAnswers, { username, answers })
        return withCookie(newPasswordPage(visit.frame, username), token, visit.issuer)
      },
      again: showQuestions,
    },
    password: {
      async act(visit) {
        const { username = '', password = '' } = Object.fromEntries(visit.form)
        await call(visit.exchange, method.passwordUpdateByUsername, { newPassword: password }, visit.cookie)
        return enter(visit, username, password)
      },
      again: ({ form }, frame) => newPasswordPage(frame, form.get('username') ?? ''),
    },
  }

  async function showQuestions({ exchange, form }: Visit, frame: Frame): Promise<Answer> {
    const { questions } = await call(exchange, method.findAllForgotPasswordQuestions, {})
    return questionsPage(frame, questions, form.get('username') ?? '')
  }

  return async visit => {
    const { form, frame } = visit
    const step = steps[form.get('step') ?? '']
    if (!step) return recoveryPage(frame)
    try {
      return await step.act(visit)
    } catch (error) {
      if (!isAnswer(error)) throw error
      const problem = problemOf(error)
      const again = { ...frame, ...explain(problem, frame.locale) }
      if (problem.reason === 'INVALID_TOKEN' || (problem.reason === 'ACCESS_DENIED' && !visit.cookie))
        return recoveryPage({ ...again, error: texts[frame.locale].tooLate })
      return step.again(visit, again)
    }
  }
}
