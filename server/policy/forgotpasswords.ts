import type { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import type { Policy } from './policy.js'

/** The policies of `auth.v1.ForgotPasswords`. */
export const forgotPasswordsPolicies = {
  findAllForgotPasswordQuestions: {
    caller: 'anyone',
    reasons: [],
    audit: [],
    limits: [],
    http: { method: 'GET', path: '/forgotpasswords/findallforgotpasswordquestions' },
  },
  loginByUsernameAndAnswers: {
    cost: 1.6,
    caller: 'anyone',
    strict: 'INVALID_ANSWERS',
    reasons: ['MISSING_PARAMETER', 'USER_NOT_FOUND', 'ANSWER_NOT_FOUND', 'INVALID_ANSWERS', 'TOO_MANY_ATTEMPTS'],
    audit: ['session.login-by-answers'],
    limits: ['account', 'failures', 'hashing'],
    http: { method: 'POST', path: '/forgotpasswords/loginbyusernameandanswers' },
  },
  loginByUsernameAndKey: {
    cost: 2,
    caller: 'anyone',
    reasons: ['INVALID_KEY', 'TOO_MANY_ATTEMPTS'],
    audit: ['session.login-by-key', 'user.revoke-own-tokens'],
    limits: ['failures'],
    http: { method: 'POST', path: '/forgotpasswords/loginbyusernameandkey' },
  },
  passwordUpdateByUsername: {
    cost: 3,
    caller: 'user',
    target: 'username',
    own: 'every role',
    administrator: 'any user but administrators',
    restricted: [],
    reasons: ['MISSING_PARAMETER', 'INVALID_PASSWORD', 'USER_NOT_FOUND', 'INVALID_CREDENTIALS', 'TOO_MANY_ATTEMPTS'],
    audit: ['user.change-password'],
    limits: ['account', 'failures', 'hashing'],
    http: { method: 'POST', path: '/forgotpasswords/passwordupdatebyusername' },
  },
  saveForgotPasswordQuestionsUsersAnswers: {
    cost: 3,
    caller: 'user',
    target: 'usersid',
    own: 'every role',
    administrator: 'any user but administrators',
    restricted: [],
    strict: 'ACCESS_DENIED',
    reasons: ['MISSING_PARAMETER', 'USER_NOT_FOUND', 'QUESTION_NOT_FOUND', 'INVALID_CREDENTIALS', 'TOO_MANY_ATTEMPTS'],
    audit: ['user.save-answer'],
    limits: ['account', 'failures', 'hashing'],
    http: { method: 'POST', path: '/forgotpasswords/saveforgotpasswordquestionsusersanswers' },
  },
  sendKeyByEmail: {
    cost: 1.5,
    caller: 'anyone',
    reasons: ['INVALID_EMAIL', 'TOO_MANY_ATTEMPTS'],
    // The event of the e-mail itself is recorded when it is composed.
    audit: [],
    limits: ['accountRecoveryRequests', 'recoveryRequests'],
    http: { method: 'POST', path: '/forgotpasswords/sendkeybyemail' },
  },
} as const satisfies Record<keyof typeof ForgotPasswords.method, Policy>
