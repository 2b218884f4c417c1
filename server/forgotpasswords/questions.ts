import type { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import type { Unary } from '../call.js'
import type { Questions } from '../models/question.js'

/** Lists all security questions by id, retired ones included. */
export function findAllForgotPasswordQuestions(deps: {
  questions: Questions
}): Unary<typeof ForgotPasswords.method.findAllForgotPasswordQuestions> {
  return async () => {
    const all = await deps.questions.all()
    return { questions: all.map(({ id, question, active }) => ({ id, question, active: active ? 1 : 0 })) }
  }
}
