// Organizations and security questions of the older implementation: few rows, imported in one transaction before all users.
import { randomUUID } from 'node:crypto'
import type { Transaction } from '../database/connection.js'
import type { AuditEvent } from '../models/audit.js'
import type { Registry } from '../models/define-models.js'
import { activationKeyUse } from '../models/organization.js'
import type { MovedQuestion, MovedRow } from '../models/predecessor.js'
import { readDateOfBirth } from '../rules/dates.js'
import { formatIds } from '../rules/id-ranges.js'
import { nicknameKey, questionKey } from '../rules/names.js'
import { oneLine } from './convert.js'
import type { Source, SourceOrganization } from './source.js'

/** Number of rows by outcome. */
export interface Counts {
  readonly created: number
  readonly updated: number
  readonly unchanged: number
}

/** What all events of an import have. */
export type EventBasis = Pick<AuditEvent, 'outcome' | 'actor' | 'reason'>

/** What is noted of an organization or a question. */
export interface RowNote {
  readonly organization?: number
  readonly question?: number
  readonly message: string
}

/** Organizations and questions as they are imported, with notes. */
export interface Prepared {
  readonly organizations: readonly MovedRow<'organizations'>[]
  readonly digests: ReadonlyMap<number, Buffer>
  readonly questions: readonly MovedQuestion[]
  readonly notes: readonly RowNote[]
}

/** Converts the organizations and questions of a snapshot. `today` is the creation date of those without one. */
export function prepare(source: Source, { masterKey }: Pick<Registry, 'masterKey'>, today: string): Prepared {
  const notes: RowNote[] = []
  const organizations = source.organizations.map(given => {
    const note = (message: string) => void notes.push({ organization: given.id, message })
    const key = given.activationkey ?? randomUUID()
    if (given.activationkey === null) note('It had no activation key, and gets one.')
    const text = (value: string | null) => {
      const trimmed = oneLine(value ?? '')
      return trimmed === '' || trimmed.toUpperCase() === 'NULL' ? null : trimmed
    }
    const active = readFlag(text(given.active))
    if (active === undefined) note(`active was ${JSON.stringify(given.active)}: it is active.`)
    const created = readDay(text(given.creation_date))
    if (created === undefined) note(`creation_date was ${JSON.stringify(given.creation_date)}: it is ${today}.`)
    const name = text(given.name)
    if (name === null) note(`It had no name: it is Organization ${given.id}.`)
    return {
      id: given.id,
      active: active ?? true,
      name: name ?? `Organization ${given.id}`,
      name_key: nicknameKey(oneLine(name ?? `Organization ${given.id}`)),
      address: text(given.address),
      creation_date: created ?? today,
      inep_code: text(given.inep_code),
      login: text(given.login),
      phone: text(given.phone),
      responsible: text(given.responsible),
      type: text(given.type),
      website: text(given.website),
      activation_key_digest: masterKey.digest(activationKeyUse, key),
      activation_key_sealed: masterKey.seal(activationKeyUse, key),
    }
  })
  const digestOf = (row: SourceOrganization) => masterKey.digest('predecessor', JSON.stringify(row))
  return {
    organizations,
    digests: new Map(source.organizations.map(row => [row.id, digestOf(row)])),
    questions: questionsOf(source, notes),
    notes,
  }
}

/** `True`, `t` or `1`; undefined for any other text. */
function readFlag(text: string | null): boolean | undefined {
  if (/^(?:true|t|1)$/i.test(text ?? '')) return true
  return /^(?:false|f|0)$/i.test(text ?? '') ? false : undefined
}

/** Reads a day with or without a time, as yyyy-mm-dd; undefined for any other text. */
function readDay(text: string | null): string | undefined {
  return readDateOfBirth(text?.split(/[ T]/)[0] ?? '', 'UTC')
}

/** Questions with different keys: of equal ones, the later ones get their id. */
function questionsOf({ questions }: Source, notes: RowNote[]): MovedQuestion[] {
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

/** Writes them, and returns their outcomes. `first` is the import into a registry that only was installed. */
export async function write(
  { predecessor, questions, audit }: Pick<Registry, 'predecessor' | 'questions' | 'audit'>,
  prepared: Prepared,
  { first, object, event }: { first: boolean; object: string; event: EventBasis },
  t: Transaction,
): Promise<{ organizations: Counts; questions: Counts }> {
  const before = await predecessor.organizationDigests(t)
  const isNew = ({ id }: MovedRow<'organizations'>) => !before.has(id as number)
  const isChanged = ({ id }: MovedRow<'organizations'>) =>
    before.get(id as number)?.equals(prepared.digests.get(id as number)!) === false
  const created = prepared.organizations.filter(isNew)
  const updated = prepared.organizations.filter(isChanged)
  await predecessor.add('organizations', created, t)
  const digests = (rows: typeof created) =>
    rows.map(({ id }) => ({ organization_id: id, digest: prepared.digests.get(id as number) }))
  await predecessor.add('predecessor_organizations', digests(created), t)
  for (const row of updated) await predecessor.replace('organizations', row, t)
  for (const row of digests(updated)) await predecessor.replace('predecessor_organizations', row, t)
  const named = [idsOf('created', created), idsOf('updated', updated)].join('')
  if (named !== '') await audit.append({ ...event, action: 'organization.import', object: `${object}${named}` }, t)

  const there = new Map((await questions.all(t)).map(row => [row.id, row]))
  const changed = prepared.questions.filter(({ id, question, active }) => {
    const row = there.get(id)
    return !row || row.question !== question || row.active !== active
  })
  const newIds = first ? prepared.questions : changed.filter(({ id }) => !there.has(id))
  if (prepared.questions.length > 0 && changed.length > 0) {
    if (!first) for (const row of changed) await predecessor.putQuestion(row, t)
    else if (!(await predecessor.replaceQuestions(prepared.questions, t)))
      throw new Error('Answers refer to security questions of this registry: import into a newly installed one.')
    await audit.append({ ...event, action: 'question.add', object: `questions:${newIds.length}` }, t)
  }
  const total = prepared.organizations.length
  return {
    organizations: {
      created: created.length,
      updated: updated.length,
      unchanged: total - created.length - updated.length,
    },
    questions: {
      created: newIds.length,
      updated: changed.length - changed.filter(row => newIds.includes(row)).length,
      unchanged: prepared.questions.length - new Set([...newIds, ...changed]).size,
    },
  }
}

function idsOf(outcome: string, rows: readonly MovedRow<'organizations'>[]): string {
  return rows.length === 0 ? '' : ` ${outcome}:${formatIds(rows.map(({ id }) => id as number))}`
}
