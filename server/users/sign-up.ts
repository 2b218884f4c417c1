import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { SignUpRequest } from '../../proto/gen/auth/v1/users_pb.js'
import { auditContext } from '../access/caller.js'
import { pass } from '../access/gate.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Parts } from '../calls/parts.js'
import type { Questions } from '../models/question.js'
import { now as atOnce } from '../models/user-batch.js'
import type { Secret } from '../passwords/hash.js'
import { waiterOf } from '../passwords/pool.js'
import { attributesOfForm, checkSignUp, type SignUpForm } from '../registration/form.js'
import { isTaken, takenNames } from '../registration/name-refusals.js'
import type { Call } from '../requests/call.js'
import { Refusal, refuse } from '../requests/refusal.js'
import { questionKey } from '../rules/names.js'
import { type PreparedSignUp, repeatSignUp } from './repeated-sign-up.js'

/**
 * Registers an inactive user and returns a token for it; a sign-up that repeats one of the last 15 minutes gets a token for the
 * same user. Refuses with INVALID_SIGN_UP and all invalid fields, with TOO_MANY_ATTEMPTS for the client address and the user, and
 * with OVERLOADED when the hash queue is full.
 */
export function signUp(parts: Parts): UsersRpcs['signUp'] {
  const { registry, limits, hashing, access } = parts
  const [{ users }, { rateLimits }, { tokens }] = [registry, limits, access]
  const repeat = repeatSignUp(registry, hashing, access)

  async function tokenOf(request: SignUpRequest, given: PreparedSignUp, call: Call): Promise<string> {
    const { form } = given
    const taken = await takenNames(users, request)
    if (taken.length > 0) return repeat(given, taken, call, request)
    const id = await register(parts, given, call)
    // A parallel sign-up took one of the names.
    if (id === undefined) return repeat(given, await takenNames(users, request), call, request)
    const state = { active: false, suspended: false, organizationId: null, tokenGeneration: 0 }
    const newcomer = pass({ id, username: form.username, role: form.role, ...state }, 'sign up')
    return tokens.issue(newcomer ?? refuse(Reason.INVALID_SIGN_UP), 'pwd', { stay: request.stay })
  }

  return async (request, { call }) => {
    const given = await prepare(parts, request, call)
    try {
      return { token: await tokenOf(request, given, call) }
    } catch (error) {
      // The response asks for a retry, so this sign-up must not count against the client.
      if (isOverload(error)) await rateLimits.refund('signUps', call.address)
      throw error
    }
  }
}

/** Registers a user, and returns its id; undefined when others have one of its names. */
async function register(
  { registry, limits, hashing, registration }: Parts,
  given: PreparedSignUp,
  call: Call,
): Promise<number | undefined> {
  const { form, question, questionText, answer } = given
  const secrets: Secret[] = [{ context: 'password', text: form.password }]
  if (answer !== undefined) secrets.push({ context: 'answer', text: answer })
  const [passwordHash, answerHash] = await hashing.passwords.hash(secrets, waiterOf(call, form.usernameKey))
  limits.rateLimits.countSignUp(call.address)
  const user = {
    ...attributesOfForm(form),
    passwordHash: passwordHash!,
    securityQuestion: questionText,
    termsOfUsage: true,
    role: form.role,
    unactivatedSeenAt: atOnce,
    ...(answerHash && question && answersOf(question, questionText!, answerHash)),
  }
  try {
    return await registry.database.transact(async t => {
      const userId = await registration.registrar.add(user, t)
      await registry.audit.append(
        { ...auditContext(call), action: 'user.sign-up', outcome: 'ok', subject_id: userId },
        t,
      )
      return userId
    })
  } catch (error) {
    if (!isTaken(error)) throw error
    return undefined
  }
}

/** An answer as a new user has it. An administrator can link a client's own question to an offered one later. */
function answersOf(question: NonNullable<PreparedSignUp['question']>, text: string, answerHash: string) {
  if ('id' in question) return { answers: [{ questionId: question.id, answerHash }] }
  return { unmatched: { question: text, questionKey: question.key, answerHash } }
}

function isOverload(error: unknown): boolean {
  return error instanceof Refusal && error.reason === Reason.OVERLOADED
}

/** Returns the valid form with its question. Makes all checks that need neither a hash nor the names. */
async function prepare(parts: Parts, request: SignUpRequest, call: Call): Promise<PreparedSignUp> {
  const { registry, hashing, limits, settings } = parts
  const { rateLimits } = limits
  // These checks come first, because it takes time to validate the form.
  rateLimits.check('signUps', call.address)
  hashing.pool.check(waiterOf(call, ''))
  const form = await readForm(parts, request, call)
  await rateLimits.take('signUps', call.address)
  const offered = await chosenQuestion(registry.questions, form)
  const key = questionKey(form.securityquestion ?? '')
  const question = offered ? { id: offered.id } : key === '' ? undefined : { key }
  const isKept = question !== undefined && settings.strict !== 'on'
  return {
    form,
    question,
    questionText: offered?.question ?? form.securityquestion ?? null,
    answer: isKept ? form.securityanswer : undefined,
  }
}

/**
 * Returns the valid form, or refuses with all invalid fields. The fields include taken names, unless the limit of look-ups
 * is reached.
 */
async function readForm({ registry, limits, registration }: Parts, request: SignUpRequest, call: Call) {
  const { fields, form } = checkSignUp(request, registration.rules)
  if (form && call.malformedFields.length === 0) return form
  const malformed = new Set(call.malformedFields.map(({ field }) => field))
  const invalid = [...fields.filter(({ field }) => !malformed.has(field)), ...call.malformedFields]
  const known = new Set(invalid.map(({ field }) => field))
  const taken = limits.rateLimits.takeLookUp(call.address) ? await takenNames(registry.users, request) : []
  return refuse(Reason.INVALID_SIGN_UP, { fields: [...invalid, ...taken.filter(({ field }) => !known.has(field))] })
}

/** Returns the offered question that the form chooses by id or text; undefined when there is none. */
async function chosenQuestion(questions: Questions, { securityquestion: text }: SignUpForm) {
  if (text === undefined) return undefined
  const id = /^\d{1,9}$/.test(text) ? Number(text) : undefined
  return questions.offered(id === undefined ? { key: questionKey(text) } : { id })
}
