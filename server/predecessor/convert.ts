// What rows of the older implementation become here, by the rules of sign-up, and what of them needs a decision or a note.
import { randomUUID } from 'node:crypto'
import type { NewOrganization } from '../models/organization.js'
import { emptyUser } from '../models/user.js'
import type { Registration } from '../models/user-batch.js'
import { isImportableHash } from '../passwords/hash.js'
import type { PasswordPolicy } from '../passwords/policy.js'
import { accountFields, attributesOfForm, checkForm } from '../registration/form.js'
import { readDateOfBirth } from '../rules/dates.js'
import { answerKey, isOneLine, questionKey } from '../rules/names.js'
import { organizationFields } from '../rules/organization.js'
import type { Role } from '../rules/roles.js'
import type { Membership, SourceOrganization, SourceQuestion, SourceUser } from './source.js'

/** What an operator decides about a user that can't be imported as it is. */
export interface Decision {
  /** Leaves the user out. */
  readonly skip?: true
  /** Other names. */
  readonly username?: string
  readonly nickname?: string
  /** The role of a user that has none, or several. */
  readonly role?: Role
  /** Id of the organization of a member of a missing one, or of several; null for none. */
  readonly organization?: number | null
}

/** Why a user can't be imported without a decision. */
export interface Problem {
  readonly field: 'id' | 'username' | 'nickname' | 'role' | 'organization'
  readonly problem: 'administrator’s' | 'taken' | 'look-alike' | 'refused' | 'none' | 'several' | 'missing'
  /** Ids of the users that have the name, or the ids of organizations. */
  readonly by?: readonly number[]
  readonly message?: string
}

/** What is imported otherwise than it was there, or needs the attention of an administrator. */
export interface Note {
  readonly note:
    | 'administrator, inactive'
    | 'active without organization'
    | 'changed'
    | 'no password'
    | 'organization'
    | 'provider key'
  readonly field?: string
  readonly message: string
}

/** What is noted of an organization or a question. */
export interface RowNote {
  readonly organization?: number
  readonly question?: number
  readonly message: string
}

/** A user as it is imported. */
export interface Converted {
  readonly problems: readonly Problem[]
  readonly notes: readonly Note[]
  readonly user: Omit<Registration, 'organizationId' | 'answers' | 'unmatched'> & { readonly id: number }
  readonly organization: number | null
  /** Answers by the id of their question. */
  readonly answers: ReadonlyMap<number, string>
  /** Question and answer of the sign-up. */
  readonly own: { readonly question: string; readonly answer: string } | undefined
}

/** Roles by their number there. */
const roleNumbers: readonly Role[] = ['ROLE_ADMIN', 'ROLE_INSTITUTION', 'ROLE_CLIENT']

/** The policy for passwords isn't asked: passwords come as hashes. */
const noPolicy: PasswordPolicy = { minLength: 0, isCommon: () => false }

/** The conversion of users. */
export type Convert = ReturnType<typeof createConversion>

/** Creates the conversion of users into a registry with these organizations. */
export function createConversion(rules: {
  readonly now: () => number
  readonly timeZone: string
  readonly organizationIds: ReadonlySet<number>
}) {
  return (user: SourceUser, decision: Decision = {}): Converted => {
    const notes: Note[] = []
    const problems: Problem[] = []
    const changed = (field: string, message: string) => void notes.push({ note: 'changed', field, message })

    const given: Parameters<typeof checkForm>[0] = {
      username: decision.username ?? user.username ?? '',
      nickname: decision.nickname ?? user.nickname ?? '',
      state: user.state ?? '',
      city: user.city ?? '',
      gender: trimmed(user.gender),
      institutiontype: noneOf(user.institutiontype),
      institution: noneOf(user.institution),
      dateofborn: trimmed(user.dateofborn),
      securityquestion: trimmed(user.securityquestion),
    }
    const { wrong, texts } = checkForm(given, [...accountFields, 'securityquestion'], { ...rules, policy: noPolicy })
    for (const { field, message } of wrong) {
      if (field === 'username' || field === 'nickname') problems.push({ field, problem: 'refused', message })
      else
        changed(
          field,
          `${message} ${field === 'state' || field === 'city' ? 'It is kept on one line.' : 'It is left out.'}`,
        )
    }
    const kept = (field: 'username' | 'nickname' | 'state' | 'city') => texts[field] ?? oneLine(given[field] ?? '')
    const names = { username: kept('username'), nickname: kept('nickname') }

    const role = roleOf(user, decision, problems)
    const isChosen = decision.organization == null || rules.organizationIds.has(decision.organization)
    const chosen = isChosen ? decision.organization : undefined
    const organization = organizationOf(user.memberships ?? [], chosen, problems, notes)
    if (user.active !== 1 && user.active !== 0) changed('active', `It was ${user.active}, and is 0.`)
    const active = user.active === 1 && role !== 'ROLE_ADMIN'
    if (role === 'ROLE_ADMIN')
      notes.push({ note: 'administrator, inactive', message: 'Activate this administrator with the command line.' })
    else if (active && organization === null)
      notes.push({ note: 'active without organization', message: `Institution: ${texts.institution ?? 'none'}.` })
    const hash = user.password?.trim() ?? ''
    if (!isImportableHash(hash))
      notes.push({ note: 'no password', message: 'The password there is no bcrypt hash: set one.' })

    return {
      problems,
      notes,
      user: {
        ...emptyUser,
        ...attributesOfForm({ ...texts, ...names, state: kept('state'), city: kept('city') }),
        id: user.id,
        passwordHash: isImportableHash(hash) ? hash : '',
        securityQuestion: texts.securityquestion ?? null,
        termsOfUsage: user.termsofusage === true,
        role,
        active,
        // When is not known.
        activatedAt: null,
        activatedBy: active ? (user.memberships?.find(({ provider }) => provider !== null)?.provider ?? null) : null,
        avatar: user.avatar,
        providerKeys: keysOf(user, role, notes),
      },
      organization,
      answers: answersOf(user, notes),
      own: ownAnswer(user),
    }
  }
}

/** Whether our rules refuse a name. */
export function isRefused(field: 'username' | 'nickname', name: string): boolean {
  return checkForm({ [field]: name }, [field], { policy: noPolicy, now: Date.now, timeZone: 'UTC' }).wrong.length > 0
}

function trimmed(text: string | null): string | undefined {
  return text?.trim() || undefined
}

/** Institution and its type: a blank, or what clients send for none, is none. */
function noneOf(text: string | null): string | undefined {
  return text?.trim() === 'X' ? undefined : trimmed(text)
}

/** A text without control characters, trimmed. */
export function oneLine(text: string): string {
  return (isOneLine(text) ? text : text.replace(/[\p{Cc}\p{Cs}\p{Zl}\p{Zp}]+/gu, ' ')).trim()
}

function roleOf({ roles }: SourceUser, { role }: Decision, problems: Problem[]): Role {
  const all = (roles ?? []).flatMap(number => roleNumbers[number] ?? [])
  if (all.length === 1) return all[0]!
  if (role) return role
  problems.push({ field: 'role', problem: all.length === 0 ? 'none' : 'several' })
  // The one that permits least.
  return all.at(-1) ?? 'ROLE_CLIENT'
}

function organizationOf(
  memberships: readonly Membership[],
  chosen: number | null | undefined,
  problems: Problem[],
  notes: Note[],
): number | null {
  const [first, ...others] = new Set(memberships.flatMap(({ exists, organization }) => (exists ? [organization!] : [])))
  if (memberships.length === 0 || (first !== undefined && others.length === 0)) return first ?? null
  if (chosen !== undefined) return chosen
  const owners = [...new Set(memberships.flatMap(({ keyOf }) => keyOf ?? []))]
  if (first !== undefined) problems.push({ field: 'organization', problem: 'several', by: [first, ...others] })
  else problems.push({ field: 'organization', problem: 'missing', by: owners.length > 0 ? owners : undefined })
  const taken = first ?? owners[0] ?? null
  const message = taken === null ? 'Taken without organization.' : `Organization ${taken}.`
  notes.push({ note: 'organization', message })
  return taken
}

/** The last answer to each question counts. */
function answersOf({ answers }: SourceUser, notes: Note[]): Map<number, string> {
  const all = new Map<number, string>()
  for (const { question, answer } of answers ?? []) {
    const message = `The answer to question ${question} has no letter or digit.`
    if (answerKey(answer ?? '') === '') notes.push({ note: 'changed', field: 'answer', message })
    else all.set(question, answer!)
  }
  return all
}

function ownAnswer({ securityquestion, securityanswer }: SourceUser): Converted['own'] {
  const [question, answer] = [securityquestion?.trim() ?? '', securityanswer ?? '']
  return questionKey(question) === '' || answerKey(answer) === '' ? undefined : { question, answer }
}

/** The newest key is shown; the others go on working beside it. */
function keysOf({ keys }: SourceUser, role: Role, notes: Note[]): NonNullable<Registration['providerKeys']> {
  const all = [...(keys ?? [])].reverse()
  if (all.length > 0 && role !== 'ROLE_INSTITUTION') {
    notes.push({ note: 'provider key', message: `Left out: a ${role} has none.` })
    return []
  }
  if (all.length > 1) notes.push({ note: 'provider key', message: `${all.length} keys: the newest one is shown.` })
  return all
}

/** Converts an organization. `today` is the creation date of one without. */
export function toOrganization(
  given: SourceOrganization,
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
    id,
    name: name ?? `Organization ${id}`,
    active,
    creationDate: creationDate ?? today,
    activationKey: given.activationkey ?? randomUUID(),
  }
}

/** A question with its id. */
export interface MovedQuestion {
  readonly id: number
  readonly question: string
  readonly questionKey: string
  readonly active: boolean
}

/** Converts questions: their keys differ, because of equal ones the later ones get their id. */
export function toQuestions(questions: readonly SourceQuestion[], notes: RowNote[]): MovedQuestion[] {
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
