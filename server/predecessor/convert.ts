// What a user of the older implementation becomes here, by the rules of sign-up, and what of it needs a decision or a note.
import type { MovedRow } from '../models/predecessor.js'
import { isImportableHash } from '../passwords/hash.js'
import type { PasswordPolicy } from '../passwords/policy.js'
import { accountFields, checkForm } from '../registration/form.js'
import { nicknameSkeleton, usernameSkeleton } from '../rules/look-alikes.js'
import { answerKey, isOneLine, nicknameKey, questionKey, usernameKey } from '../rules/names.js'
import type { Role } from '../rules/roles.js'
import type { Membership, SourceUser } from './source.js'

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
  readonly problem: ProblemName
  /** Ids of the users that have the name, or the ids of organizations. */
  readonly by?: readonly number[]
  readonly message?: string
}

type ProblemName = 'administrator’s' | 'taken' | 'look-alike' | 'refused' | 'none' | 'several' | 'missing'

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

/** A user as it is imported. */
export interface Converted {
  readonly names: Names
  readonly problems: readonly Problem[]
  readonly notes: readonly Note[]
  /** The row, if no name is refused. */
  readonly row: MovedRow<'users'>
  /** Answers by the id of their question. */
  readonly answers: ReadonlyMap<number, string>
  /** Question and answer of the sign-up. */
  readonly own: { readonly question: string; readonly answer: string } | undefined
  /** Provider keys; the first one is shown. */
  readonly keys: readonly { readonly id: number; readonly key: string }[]
}

/** The names of a user, and the forms in which they are compared. */
export interface Names {
  readonly username: string
  readonly usernameKey: string
  readonly usernameSkeleton: string
  readonly nickname: string
  readonly nicknameKey: string
  readonly nicknameSkeleton: string
}

/** Roles by their number there. */
const roleNumbers: readonly Role[] = ['ROLE_ADMIN', 'ROLE_INSTITUTION', 'ROLE_CLIENT']

/** The policy for passwords isn't asked: passwords come as hashes. */
const noPolicy: PasswordPolicy = { minLength: 0, isCommon: () => false }

/** Creates the conversion of users into a registry with these organizations. */
export function createConversion({
  organizationIds,
  ...clock
}: {
  readonly now: Date
  readonly timeZone: string
  readonly organizationIds: ReadonlySet<number>
}) {
  return (user: SourceUser, decision: Decision = {}): Converted => {
    const notes: Note[] = []
    const problems: Problem[] = []
    const changed = (field: string, message: string) => void notes.push({ note: 'changed', field, message })

    const given = {
      username: decision.username ?? user.username ?? '',
      nickname: decision.nickname ?? user.nickname ?? '',
      state: user.state ?? '',
      city: user.city ?? '',
      ...optional('gender', user.gender),
      ...optional('institutiontype', noneOf(user.institutiontype)),
      ...optional('institution', noneOf(user.institution)),
      ...optional('dateofborn', user.dateofborn),
      ...optional('securityquestion', user.securityquestion),
    }
    const rules = { policy: noPolicy, timeZone: clock.timeZone, now: () => clock.now.getTime() }
    const { wrong: fields, texts } = checkForm(given, [...accountFields, 'securityquestion'], rules)
    for (const { field, message } of fields) {
      if (field === 'username' || field === 'nickname') problems.push({ field, problem: 'refused', message })
      else if (field === 'state' || field === 'city') changed(field, `${message} It is kept on one line.`)
      else if (field in given) changed(field, `${message} It is left out.`)
    }

    const role = roleOf(user, decision, problems)
    const { organization } = decision
    const isChosen = organization === null || (organization !== undefined && organizationIds.has(organization))
    const chosen = isChosen ? organization : undefined
    const organizationId = organizationOf(user.memberships ?? [], chosen, problems, notes)
    const wasActive = user.active === 1
    if (user.active !== 1 && user.active !== 0) changed('active', `It was ${user.active}, and is 0.`)
    const active = wasActive && role !== 'ROLE_ADMIN'
    if (role === 'ROLE_ADMIN')
      notes.push({ note: 'administrator, inactive', message: 'Activate this administrator with the command line.' })
    else if (active && organizationId === null)
      notes.push({ note: 'active without organization', message: `Institution: ${texts.institution ?? 'none'}.` })
    const hash = user.password?.trim() ?? ''
    const passwordHash = isImportableHash(hash) ? hash : ''
    if (passwordHash === '')
      notes.push({ note: 'no password', message: 'The password there is no bcrypt hash: set one.' })

    const { username = oneLine(given.username), nickname = oneLine(given.nickname) } = texts
    const names: Names = {
      username,
      usernameKey: usernameKey(username),
      usernameSkeleton: usernameSkeleton(username),
      nickname,
      nicknameKey: nicknameKey(nickname),
      nicknameSkeleton: nicknameSkeleton(nickname),
    }
    return {
      names,
      problems,
      notes,
      row: {
        id: user.id,
        username: names.username,
        username_key: names.usernameKey,
        username_skeleton: names.usernameSkeleton,
        nickname: names.nickname,
        nickname_key: names.nicknameKey,
        nickname_skeleton: names.nicknameSkeleton,
        password_hash: passwordHash,
        date_of_birth: texts.dateofborn,
        gender: texts.gender,
        state: texts.state ?? oneLine(given.state),
        city: texts.city ?? oneLine(given.city),
        institution_type: texts.institutiontype,
        institution: texts.institution,
        security_question: fields.some(({ field }) => field === 'securityquestion')
          ? null
          : blankToNull(user.securityquestion),
        terms_of_usage: user.termsofusage === true,
        role,
        active,
        organization_id: organizationId,
        activated_by: active ? (user.memberships?.find(({ provider }) => provider !== null)?.provider ?? null) : null,
        avatar: user.avatar,
      },
      answers: answersOf(user, notes),
      own: ownAnswer(user),
      keys: keysOf(user, role, notes),
    }
  }
}

/** The conversion of users. */
export type Convert = ReturnType<typeof createConversion>

/** Whether our rules refuse a name. */
export function isRefused(field: 'username' | 'nickname', name: string): boolean {
  return checkForm({ [field]: name }, [field], { policy: noPolicy, now: Date.now, timeZone: 'UTC' }).wrong.length > 0
}

/** Institution and its type: a blank, or what clients send for none, is none. */
function noneOf(text: string | null): string | null {
  return text?.trim() === 'X' ? null : text
}

function optional<K extends string>(name: K, text: string | null): { readonly [N in K]?: string } {
  return (blankToNull(text) === null ? {} : { [name]: text!.trim() }) as { readonly [N in K]?: string }
}

function blankToNull(text: string | null): string | null {
  return text?.trim() || null
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
  else problems.push({ field: 'organization', problem: 'missing', ...(owners.length > 0 && { by: owners }) })
  const taken = first ?? owners[0] ?? null
  notes.push({
    note: 'organization',
    message: taken === null ? 'Taken without organization.' : `Organization ${taken}.`,
  })
  return taken
}

/** The last answer to each question counts. */
function answersOf({ answers }: SourceUser, notes: Note[]): Map<number, string> {
  const all = new Map<number, string>()
  for (const { question, answer } of answers ?? []) {
    if (answerKey(answer ?? '') !== '') all.set(question, answer!)
    else
      notes.push({
        note: 'changed',
        field: 'answer',
        message: `The answer to question ${question} has no letter or digit.`,
      })
  }
  return all
}

function ownAnswer({ securityquestion, securityanswer }: SourceUser): Converted['own'] {
  const [question, answer] = [securityquestion?.trim() ?? '', securityanswer ?? '']
  return questionKey(question) === '' || answerKey(answer) === '' ? undefined : { question, answer }
}

/** The newest key is shown; the others go on working beside it. */
function keysOf({ keys }: SourceUser, role: Role, notes: Note[]): Converted['keys'] {
  const all = [...(keys ?? [])].reverse()
  if (all.length === 0) return []
  if (role !== 'ROLE_INSTITUTION') {
    notes.push({ note: 'provider key', message: `Left out: a ${role} has none.` })
    return []
  }
  if (all.length > 1) notes.push({ note: 'provider key', message: `${all.length} keys: the newest one is shown.` })
  return all
}
