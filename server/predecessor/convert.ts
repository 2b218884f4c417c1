// What rows of the older implementation become here, by the rules of sign-up, and what of them needs a decision or a note.
import { randomUUID } from 'node:crypto'
import type { NewOrganization } from '../models/organization.js'
import { emptyUser } from '../models/user.js'
import type { Registration } from '../models/user-batch.js'
import { isImportableHash, type Passwords } from '../passwords/hash.js'
import { accountFields, attributesOfForm, type CompleteTexts, checkForm, type FormRules } from '../registration/form.js'
import { readDateOfBirth } from '../rules/dates.js'
import { answerKey, isOneLine, questionKey } from '../rules/names.js'
import { organizationFields } from '../rules/organization.js'
import { requiredFields } from '../rules/profile.js'
import type { Role } from '../rules/roles.js'
import type { SourceOrganization, SourceQuestion, SourceUser } from './source.js'

/** What an operator decides about a user that can't be imported as it is. */
export interface Decision {
  /** Leaves the user out. */
  readonly skip?: true
  readonly username?: string | undefined
  readonly nickname?: string | undefined
  readonly role?: Role | undefined
  /** Null for none. */
  readonly organization?: number | null | undefined
}

/** Why a user can't be imported without a decision. */
export interface Problem {
  readonly field: 'id' | 'username' | 'nickname' | 'role' | 'organization'
  readonly problem: 'administrator’s' | 'taken' | 'look-alike' | 'refused' | 'none' | 'several' | 'missing'
  /** Ids of the users that have the name, or the ids of organizations. */
  readonly by?: readonly number[] | undefined
  readonly message?: string
}

/** What is imported otherwise than it was there, or needs the attention of an administrator. */
export interface Note {
  readonly note:
    | ('administrator, inactive' | 'active without organization' | 'changed')
    | ('no password' | 'organization' | 'provider key')
  readonly field?: string | undefined
  readonly message: string
}

/** What is noted of an organization or a question. */
export type RowNote = Readonly<{ organization: number } | { question: number }> & Pick<Note, 'message'>

/** Roles by their number there. */
const roleNumbers: readonly Role[] = ['ROLE_ADMIN', 'ROLE_INSTITUTION', 'ROLE_CLIENT']

/** Fields of the form that users there have. */
const fields = [...accountFields, 'securityquestion'] as const
type Field = (typeof fields)[number]

/** Whether every user has a field: then a wrong value stays. */
const isKept = (field: string) => field === 'username' || (requiredFields as readonly string[]).includes(field)

/** The policy for passwords isn't asked: passwords come as hashes. */
const policy = { minLength: 0, isCommon: () => false }

/** What users refer to, by their conversion. */
interface Rules extends Omit<FormRules, 'policy'> {
  readonly passwords: Pick<Passwords, 'key'>
  readonly organizationIds: readonly number[]
  readonly questions: readonly MovedQuestion[]
}

/** The conversion of users. */
export type Convert = ReturnType<typeof createConversion>

/** Creates the conversion of users into a registry with these organizations and questions. */
export function createConversion({ passwords, organizationIds, questions, ...rules }: Rules) {
  const questionIds = new Map(questions.map(({ id, questionKey }) => [questionKey, id]))
  return (there: SourceUser, decision: Decision = {}) => {
    const notes: Note[] = []
    const problems: Problem[] = []
    const note = (note: Note['note'], message: string, field?: string) => void notes.push({ note, field, message })

    const given = Object.fromEntries(fields.map(field => [field, textOf(field, there, decision)]))
    const { wrong, texts } = checkForm(given, fields, { ...rules, policy })
    for (const { field, message } of wrong) {
      if (field === 'username' || field === 'nickname') problems.push({ field, problem: 'refused', message })
      else note('changed', `${message} ${isKept(field) ? 'It is kept on one line.' : 'It is left out.'}`, field)
    }
    const kept = fields.filter(isKept).map(field => [field, texts[field] ?? oneLine(given[field]!)])

    const roles = (there.roles ?? []).flatMap(number => roleNumbers[number] ?? [])
    // Of several, the one that permits least.
    const role = (roles.length === 1 ? roles[0] : (decision.role ?? roles.at(-1))) ?? 'ROLE_CLIENT'
    if (roles.length !== 1 && !decision.role)
      problems.push({ field: 'role', problem: roles.length === 0 ? 'none' : 'several' })

    const memberships = there.memberships ?? []
    const all = new Set(memberships.flatMap(({ exists, organization }) => (exists ? [organization!] : [])))
    const owners = new Set(memberships.flatMap(({ keyOf }) => keyOf ?? []))
    const { organization: chosen } = decision
    const isChosen = chosen === null || (chosen !== undefined && organizationIds.includes(chosen))
    let [organization = null] = [...all, ...owners]
    if (memberships.length > 0 && all.size !== 1) {
      if (isChosen) organization = chosen
      else {
        const by = all.size > 0 ? [...all] : owners.size > 0 ? [...owners] : undefined
        problems.push({ field: 'organization', problem: all.size > 0 ? 'several' : 'missing', by })
        note('organization', organization === null ? 'Taken without organization.' : `Organization ${organization}.`)
      }
    }

    if (there.active !== 1 && there.active !== 0) note('changed', `It was ${there.active}, and is 0.`, 'active')
    const active = there.active === 1 && role !== 'ROLE_ADMIN'
    if (role === 'ROLE_ADMIN') note('administrator, inactive', 'Activate this administrator with the command line.')
    else if (active && organization === null)
      note('active without organization', `Institution: ${texts.institution ?? 'none'}.`)
    const hash = there.password?.trim() ?? ''
    if (!isImportableHash(hash)) note('no password', 'The password there is no bcrypt hash: set one.')

    // The newest key is shown; the others go on working beside it.
    const providerKeys = role === 'ROLE_INSTITUTION' ? [...(there.keys ?? [])].reverse() : []
    if (there.keys && role !== 'ROLE_INSTITUTION') note('provider key', `Left out: a ${role} has none.`)
    if (providerKeys.length > 1) note('provider key', `${providerKeys.length} keys: the newest one is shown.`)

    // The last answer to each question counts; one that was saved is newer than that of the sign-up.
    const own = { question: there.securityquestion?.trim() ?? '', answer: there.securityanswer ?? '' }
    const ownKey = answerKey(own.answer) === '' ? '' : questionKey(own.question)
    const ownId = questionIds.get(ownKey)
    const answers = new Map(ownId === undefined ? [] : [[ownId, own.answer]])
    for (const { question, answer } of there.answers ?? []) {
      if (answerKey(answer ?? '') !== '') answers.set(question, answer!)
      else note('changed', `The answer to question ${question} has no letter or digit.`, 'answer')
    }

    const user = {
      ...emptyUser,
      ...attributesOfForm({ ...texts, ...Object.fromEntries(kept) } as CompleteTexts),
      id: there.id,
      passwordHash: isImportableHash(hash) ? hash : '',
      securityQuestion: texts.securityquestion ?? null,
      termsOfUsage: there.termsofusage === true,
      role,
      active,
      // When is not known.
      activatedAt: null,
      activatedBy: active ? (memberships.find(({ provider }) => provider !== null)?.provider ?? null) : null,
      avatar: there.avatar,
      providerKeys,
      organizationId: organization,
    }
    return {
      problems,
      notes,
      user,
      /** Completes the user with the digests of its row and of its answers. */
      complete(predecessorDigest: string): Registration<number> & { readonly id: number } {
        const hashed = (answer: string) => ({ answerHash: passwords.key(answer)! })
        return {
          ...{ ...user, predecessorDigest },
          answers: [...answers].map(([questionId, answer]) => ({ questionId, ...hashed(answer) })),
          ...(ownKey !== '' &&
            ownId === undefined && {
              unmatched: { question: own.question, questionKey: ownKey, ...hashed(own.answer) },
            }),
        }
      },
    }
  }
}

/** Whether our rules refuse a name. */
export function isRefused(field: 'username' | 'nickname', name: string): boolean {
  return checkForm({ [field]: name }, [field], { policy, now: Date.now, timeZone: 'UTC' }).wrong.length > 0
}

/** The text of a field. Clients send X for no institution. */
function textOf(
  field: Field,
  there: { readonly [F in Field]?: string | null },
  decision: { readonly [F in Field]?: string },
) {
  const text = decision[field] ?? there[field] ?? ''
  return field.startsWith('institution') && text.trim() === 'X' ? '' : text
}

/** A text without control characters, trimmed. */
export function oneLine(text: string): string {
  return (isOneLine(text) ? text : text.replace(/[\p{Cc}\p{Cs}\p{Zl}\p{Zp}]+/gu, ' ')).trim()
}

/** Converts an organization. `today` is the creation date of one without. */
export function toOrganization(
  given: SourceOrganization,
  predecessorDigest: string,
  today: string,
  notes: RowNote[],
): NewOrganization & { id: number } {
  const { id } = given
  const note = (message: string) => void notes.push({ organization: id, message })
  const text = (value: string | null) => {
    const line = oneLine(value ?? '')
    return line === '' || line.toUpperCase() === 'NULL' ? null : line
  }
  const details = organizationFields.flatMap(({ field, attribute }) =>
    field in given ? [[attribute, text(given[field as keyof SourceOrganization] as string | null)]] : [],
  )
  const [name, flag] = [text(given.name), text(given.active) ?? '']
  const active = !/^(?:false|f|0)$/i.test(flag)
  const creationDate = readDateOfBirth(text(given.creation_date)?.split(/[ T]/)[0] ?? '', 'UTC')
  if (given.activationkey === null) note('It had no activation key, and gets one.')
  if (active && !/^(?:true|t|1)$/i.test(flag)) note(`active was ${JSON.stringify(given.active)}: it is active.`)
  if (!creationDate) note(`creation_date was ${JSON.stringify(given.creation_date)}: it is ${today}.`)
  if (name === null) note(`It had no name: it is Organization ${id}.`)
  return {
    ...Object.fromEntries(details),
    ...{ id, predecessorDigest },
    name: name ?? `Organization ${id}`,
    active,
    creationDate: creationDate ?? today,
    activationKey: given.activationkey ?? randomUUID(),
  }
}

/** A question with its id. */
export type MovedQuestion = ReturnType<typeof toQuestions>[number]

/** Converts questions: their keys differ, because of equal ones the later ones get their id. */
export function toQuestions(questions: readonly SourceQuestion[], notes: RowNote[]) {
  const keys = new Set<string>()
  return questions.map(({ id, question, active }) => {
    const given = oneLine(question ?? '')
    const isNew = questionKey(given) !== '' && !keys.has(questionKey(given))
    const text = isNew ? given : `${given || 'Question'} (${id})`
    if (!isNew) notes.push({ question: id, message: `Its text is empty or that of another question: it is ${text}` })
    keys.add(questionKey(text))
    return { id, question: text, questionKey: questionKey(text), active: active === 1 }
  })
}
