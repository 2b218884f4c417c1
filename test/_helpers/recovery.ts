/** Calls of ForgotPasswords, each at a unique address unless one is given. */
import { anyAddress, from } from './crowd.js'
import { password, type RequestOptions, type TestService } from './service.js'

type On = Pick<TestService, 'request'>

function post(on: On, path: string, options: RequestOptions, address = anyAddress()) {
  return on.request('POST', `/forgotpasswords/${path}`, { headers: from(address), ...options })
}

/** Saves an answer to a question, with the password or for another user where those are given. */
export const saveAnswer = (
  on: On,
  token: string,
  forgotpasswordquestionsid: number,
  answer: string,
  more: { password?: string; usersid?: number } = {},
) =>
  post(on, 'saveforgotpasswordquestionsusersanswers', { token, body: { forgotpasswordquestionsid, answer, ...more } })

/** Signs in with the same answer to each of two questions. */
export const enterByAnswers = (
  on: On,
  username: string,
  answer: string,
  { address, questions = [1, 2], ...more }: RequestOptions & { address?: string; questions?: readonly number[] } = {},
) => {
  const body = questions.map(forgotpasswordquestionsid => ({ forgotpasswordquestionsid, answer }))
  return post(on, 'loginbyusernameandanswers', { query: { username }, body, ...more }, address)
}

/** Signs in with a mailed key. */
export const enterByKey = (on: On, username: string, key: string, address?: string) =>
  post(on, 'loginbyusernameandkey', { query: { username, key } }, address)

/** Asks for a mailed key. */
export const sendKey = (on: On, username: string, email: string, address?: string) =>
  post(on, 'sendkeybyemail', { query: { username, email } }, address)

/** Updates the password of the token's user, or of another one. */
export const updatePassword = (on: On, token: string, newPassword = `${password}!`, username?: string) =>
  post(on, 'passwordupdatebyusername', { token, query: { newPassword, ...(username && { username }) } })
