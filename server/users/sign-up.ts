import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { SignUpRequest } from '../../proto/gen/auth/v1/users_pb.js'
import { auditContext } from '../access/caller.js'
import type { Tokens } from '../access/tokens.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Database } from '../database/database.js'
import type { RateLimits } from '../limits/rate-limits.js'
import type { Audit } from '../models/audit.js'
import type { Questions } from '../models/question.js'
import type { Users } from '../models/user.js'
import { now as atOnce } from '../models/user-batch.js'
import type { Passwords, Secret } from '../passwords/hash.js'
import { type Pool, waiterOf } from '../passwords/pool.js'
import { attributesOfForm, checkSignUp, type FormRules, type SignUpForm } from '../registration/form.js'
import { isTaken, takenNames } from '../registration/names.js'
import type { Registrar } from '../registration/registrar.js'
import type { Call } from '../requests/call.js'
import { Refusal, refuse } from '../requests/refusal.js'
import { questionKey } from '../rules/names.js'

/** Dependencies of `signUp`. */
export interface SignUpDeps extends FormRules {
  readonly database: Database
  readonly users: Users
  readonly registrar: Registrar
  readonly questions: Questions
  readonly audit: Audit
  readonly rateLimits: RateLimits
  readonly pool: Pick<Pool, 'check'>
  readonly passwords: Passwords
  readonly tokens: Tokens
}

/**
 * Registers an inactive user and returns a token for it. Refuses with INVALID_SIGN_UP and all invalid fields, with
 * TOO_MANY_ATTEMPTS for the client address, and with OVERLOADED when the hash queue is full.
 */
export function signUp(deps: SignUpDeps): UsersRpcs['signUp'] {
  const { database, users, registrar, audit, rateLimits, passwords, tokens } = deps
  return async (request, { call }) => {
    const { form, question } = await prepare(deps, request, call)
    // A client may send its own question. An administrator can link it to an offered question later.
    const unmatched = question ? undefined : unmatchedText(form)
    const secrets: Secret[] = [{ context: 'password', text: form.password }]
    if ((question || unmatched) && form.securityanswer) secrets.push({ context: 'answer', text: form.securityanswer })
    const hashes = passwords.hash(secrets, waiterOf(call, form.usernameKey))
    const [passwordHash, answerHash] = await hashes.catch(async error => {
      // The response asks for a retry, so this sign-up must not count against the client.
      if (error instanceof Refusal && error.reason === Reason.OVERLOADED)
        await rateLimits.refund('signUps', call.address)
      throw error
    })
    rateLimits.countSignUp(call.address)
    const user = {
      ...attributesOfForm(form),
      passwordHash: passwordHash!,
      securityQuestion: question?.question ?? form.securityquestion ?? null,
      termsOfUsage: true,
      role: form.role,
      unactivatedSeenAt: atOnce,
      answers: question && answerHash ? [{ questionId: question.id, answerHash }] : [],
      unmatched: unmatched && answerHash ? { ...unmatched, answerHash } : undefined,
    }
    const id = await database
      .transact(async t => {
        const userId = await registrar.add(user, t)
        await audit.append({ ...auditContext(call), action: 'user.sign-up', outcome: 'ok', subject_id: userId }, t)
        return userId
      })
      .catch(error => {
        if (!isTaken(error)) throw error
        return undefined
      })
    // A parallel sign-up took one of the names.
    if (id === undefined) refuse(Reason.INVALID_SIGN_UP, { fields: await takenNames(users, request) })
    const holder = { id, username: form.username, role: form.role, active: false }
    return { token: await tokens.issue({ ...holder, organizationId: null, tokenGeneration: 0 }, 'pwd') }
  }
}

/** Returns the valid form and the offered question that it chooses. Makes all checks that don't need a hash. */
async function prepare(deps: SignUpDeps, request: SignUpRequest, call: Call) {
  const { users, questions, rateLimits, pool } = deps
  // These checks come first, because it takes time to validate the form.
  rateLimits.check('signUps', call.address)
  pool.check(waiterOf(call, ''))
  const form = await readForm(deps, request, call)
  await rateLimits.take('signUps', call.address)
  const taken = await takenNames(users, request)
  if (taken.length > 0) refuse(Reason.INVALID_SIGN_UP, { fields: taken })
  return { form, question: await chosenQuestion(questions, form) }
}

/**
 * Returns the valid form, or refuses with all invalid fields. The fields include taken names, unless the limit of look-ups
 * is reached.
 */
async function readForm(deps: SignUpDeps, request: SignUpRequest, call: Call) {
  const { users, rateLimits } = deps
  const { fields, form } = checkSignUp(request, deps)
  if (form && call.malformedFields.length === 0) return form
  const malformed = new Set(call.malformedFields.map(({ field }) => field))
  const invalid = [...fields.filter(({ field }) => !malformed.has(field)), ...call.malformedFields]
  const known = new Set(invalid.map(({ field }) => field))
  const taken = rateLimits.takeLookUp(call.address) ? await takenNames(users, request) : []
  return refuse(Reason.INVALID_SIGN_UP, { fields: [...invalid, ...taken.filter(({ field }) => !known.has(field))] })
}

/** Returns the offered question that the form chooses by id or text; undefined when there is none. */
async function chosenQuestion(questions: Questions, { securityquestion: text }: SignUpForm) {
  if (text === undefined) return undefined
  const id = /^\d{1,9}$/.test(text) ? Number(text) : undefined
  return questions.offered(id === undefined ? { key: questionKey(text) } : { id })
}

/** Returns the client's own question and its key; undefined when the key is empty. */
function unmatchedText({ securityquestion: question = '' }: SignUpForm) {
  const key = questionKey(question)
  return key === '' ? undefined : { question, questionKey: key }
}
