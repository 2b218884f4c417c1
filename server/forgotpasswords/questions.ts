import type { ForgotPasswordsRpc } from '../access/context.js'
import type { Questions } from '../models/question.js'

/** Lists all security questions in their order, retired ones included. */
export function findAllForgotPasswordQuestions(deps: {
  questions: Questions
}): ForgotPasswordsRpc<'findAllForgotPasswordQuestions'> {
  return async () => {
    const all = await deps.questions.all()
    return { questions: all.map(({ id, question, active }) => ({ id, question, active: active ? 1 : 0 })) }
  }
}
