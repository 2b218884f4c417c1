// What the rows of all files have in common: how they are judged, and what they leave.
import { createHash } from 'node:crypto'
import { setImmediate } from 'node:timers/promises'
import type { ImportProblem } from '../../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import type { Change } from '../../calls/context.js'
import type { NotifiedChange } from '../../models/email.js'
import { type ImportRow, type Imports, seenBytes } from '../../models/import.js'
import type { ReasonName } from '../../policy/row.js'
import { Refusal } from '../../requests/refusal.js'
import { isUuid } from '../../rules/names.js'

/** Why a field of a row is rejected. */
export type Problem = Pick<ImportProblem, 'field' | 'message'>

/** The outcome of a row that changes nothing. */
type Unapplied =
  | { readonly kind: 'unchanged' }
  | { readonly kind: 'rejected'; readonly reason: ReasonName; readonly problems: readonly Problem[] }

/** The outcome of a row. */
type Outcome =
  | Unapplied
  | { readonly kind: 'created'; readonly id: number }
  | { readonly kind: 'updated'; readonly id: number; readonly fields: readonly string[] }

/** What is to be done for a row: an entry to apply, with the fields that it changes of an existing record, and what to say of it. */
export type Decision<Entry> =
  | Unapplied
  | { readonly entry: Entry; readonly fields?: readonly string[]; readonly notes?: readonly Problem[] }

/** A judged row. */
export interface Judged {
  readonly outcome: Outcome
  /** What is to be said of an applied row. */
  readonly notes: readonly Problem[]
  /** Digest of the record as the row found it. */
  readonly seen: Buffer
}

/** The batch of a row. */
export interface Batch extends Change {
  readonly of: ImportRow
  /** Number of its first row. */
  readonly firstRow: number
  readonly touched: Touched
  /** What notices to owners say about changes. */
  readonly by: NotifiedChange
  /** Id of the administrator; absent on the database itself. */
  readonly administratorId: number | undefined
  /** Hashes of the clear passwords, by the index of the row. */
  readonly hashes: ReadonlyMap<number, string>
  /** What a dry run saw for each row, if the import follows one. */
  readonly seen: readonly Buffer[] | undefined
  /** Returns those of the ids that a new record can have, unless a record has them. Without `keep_ids`, none. */
  freeIds(ids: readonly number[]): Promise<ReadonlySet<number>>
}

/** A row of a request. */
interface AnyRow {
  readonly id?: number
  readonly line?: number
  readonly problems: readonly Problem[]
}

/** What is read of a row, by the rules of its fields. */
interface AnyRead<Row> {
  readonly row: Row
  /** Its number in the batch. */
  readonly index: number
}

/** A kind of rows: how they are read, what they mean, and how they are applied. */
export interface Kind<Row extends AnyRow, Read extends AnyRead<Row>, Found extends { readonly id: number }, Entry> {
  readonly what: 'organization' | 'user'
  /** The field that means a record in a row without an id. */
  readonly key: string
  read(row: Row, index: number): Read
  /** What a row has in common with rows that depend on it: those are judged one after the other, others at once. */
  keysOf(read: Read): readonly string[]
  /** Whether fields that the row gives are wrong. */
  isWrong(read: Read): boolean
  /** Hashes the clear passwords that rows will need, by the index of the row. */
  hash(reads: readonly Read[], of: ImportRow): Promise<ReadonlyMap<number, string>>
  /** Locks the records that rows mean. */
  open(reads: readonly Read[], batch: Batch): Promise<Opened<Read, Found, Entry>>
  /** The names of the record that a row means among touched ones. */
  namesOf(read: Read, found: Found | undefined): readonly string[]
  /** Its names once the row is applied. */
  namesAfter(read: Read, found: Found | undefined, id: number): readonly string[]
  /** The unique names that a row gives to its record, each under its field, with its name among touched records. */
  uniqueNamesOf?(read: Read, found: Found | undefined): readonly { readonly field: string; readonly name: string }[]
  /** What a change of a record changes. */
  seenOf(found: Found): readonly unknown[]
  /** Applies entries, in order, and returns their ids, or why one is refused. */
  apply(entries: readonly Entry[], batch: Batch): Promise<(number | Refusal)[]>
}

/** The records that rows mean. */
interface Opened<Read, Found, Entry> {
  find(read: Read): Found | undefined
  decide(read: Read, found: Found | undefined): Decision<Entry> | Promise<Decision<Entry>>
}

/** The rows of a batch, read by the rules of their fields. */
export interface ReadRows {
  /** Hashes the clear passwords that rows will need. Takes long, so it precedes the transaction. */
  hash(of: ImportRow): Promise<ReadonlyMap<number, string>>
  /** Judges the rows one after the other, and applies those that aren't rejected. */
  apply(batch: Batch): Promise<Judged[]>
}

/** Reads rows of a kind of file. */
export type Rows<Row> = (rows: readonly Row[]) => Promise<ReadRows>

/** Creates the rows of a kind. */
export function createRows<Row extends AnyRow, Read extends AnyRead<Row>, Found extends { readonly id: number }, Entry>(
  kind: Kind<Row, Read, Found, Entry>,
): Rows<Row> {
  /** Rejects a row for what it has in common with others, or with a dry run. */
  function refusalOf(read: Read, repeated: readonly Problem[], seen: Buffer, batch: Batch): Unapplied | undefined {
    const { row, index } = read
    if (row.problems.length > 0) return rejected('INVALID_ARGUMENT', ...row.problems, ...repeated)
    // Its own errors come first.
    if (kind.isWrong(read)) return undefined
    if (repeated.length > 0) return rejected('WRONG_STATE', ...repeated)
    return batch.seen && !batch.seen[index]!.equals(seen) ? stale : undefined
  }

  /** The problem of a row that means the same record as an earlier one. */
  function repeatsOf(read: Read, found: Found | undefined, { touched }: Batch): Problem[] {
    const { row, index } = read
    const field = row.id === undefined ? kind.key : 'id'
    return touched.problemsOf(row, index, kind.namesOf(read, found), { field, what: kind.what })
  }

  /** Judges rows that don't depend on each other. */
  async function applyGroup(group: readonly Read[], batch: Batch): Promise<Judged[]> {
    const { find, decide } = await kind.open(group, batch)
    // After the locks, behind which a record may have been erased.
    const free = await batch.freeIds(group.flatMap(({ row: { id } }) => id ?? []))
    const found = group.map(find)
    // One row can mean a record by its id, and another one by its name.
    const ids = found.map(record => record?.id)
    const again = ids.findIndex((id, index) => id !== undefined && ids.indexOf(id) < index)
    if (again > 0)
      return [...(await applyGroup(group.slice(0, again), batch)), ...(await applyGroup(group.slice(again), batch))]
    const claims = group.map((read, index) => kind.uniqueNamesOf?.(read, found[index]) ?? [])
    const claimed = claims.map(all => all.map(({ name }) => name))
    await batch.touched.read(group.flatMap((read, index) => [...kind.namesOf(read, found[index]), ...claimed[index]!]))
    const seen = found.map(record => digestOf(record && kind.seenOf(record)))
    const decisions: Decision<Entry>[] = []
    for (const [index, read] of group.entries()) {
      const repeated = repeatsOf(read, found[index], batch)
      const refused = refusalOf(read, repeated, seen[index]!, batch)
      const wrongId = refused ?? checkRowId(read.row.id, found[index], kind.what, { of: batch.of, free })
      const decided = wrongId ?? (await decide(read, found[index]))
      const taken = 'entry' in decided ? batch.touched.takenBy(read.row, claims[index]!) : []
      const decision = taken.length > 0 ? rejected('INVALID_SIGN_UP', ...taken) : decided
      const isWrong = !refused && 'kind' in decision && decision.kind === 'rejected'
      decisions.push(isWrong ? { ...decision, problems: [...decision.problems, ...repeated] } : decision)
    }
    const entries = decisions.flatMap(decision => ('entry' in decision ? [decision.entry] : []))
    const applied = entries.length > 0 ? await kind.apply(entries, batch) : []
    return decisions.map((decision, index) => {
      const outcome = 'entry' in decision ? outcomeOf(decision.fields, applied.shift()!) : decision
      const { row, index: at } = group[index]!
      if (outcome.kind === 'created' || outcome.kind === 'updated') {
        const names = kind.namesAfter(group[index]!, found[index], outcome.id)
        batch.touched.add(row, at, [...kind.namesOf(group[index]!, found[index]), ...names, ...claimed[index]!])
      }
      const notes = 'entry' in decision && outcome.kind !== 'rejected' ? (decision.notes ?? []) : []
      return { outcome, notes, seen: seen[index]! }
    })
  }

  return async rows => {
    const reads = await readInSlices(rows, kind.read)
    return {
      hash: of => kind.hash(reads, of),
      async apply(batch) {
        const judged: Judged[] = []
        for (const group of groupsOf(reads, kind.keysOf)) judged.push(...(await applyGroup(group, batch)))
        return judged
      },
    }
  }
}

function outcomeOf(fields: readonly string[] | undefined, applied: number | Refusal): Outcome {
  if (applied instanceof Refusal) {
    const { reason, more, message } = applied
    return rejected(Reason[reason] as ReasonName, ...(more.fields ?? [{ field: '', message }]))
  }
  return fields ? { kind: 'updated', id: applied, fields } : { kind: 'created', id: applied }
}

/** A row that may know its line. */
interface Placed {
  readonly line?: number
}

/** The records that the import has created or changed, by names that rows have for them. */
type Touched = ReturnType<typeof createTouched>

/** Creates the touched records for a batch. */
export function createTouched(
  imports: Pick<Imports, 'touched' | 'touch'>,
  { importId, firstRow }: { importId: number; firstRow: number },
  { t }: Pick<Change, 't'>,
) {
  const places = new Map<string, number>()
  const noted = new Map<string, number>()
  const placeOf = ({ line }: Placed, index: number) => line ?? firstRow + index
  return {
    /** Reads which of these records earlier batches touched. */
    async read(names: readonly string[]): Promise<void> {
      for (const [name, place] of await imports.touched(importId, names, t)) places.set(name, place)
    },
    /** Whether an earlier row touched a record of this name. The name was read. */
    has: (name: string): boolean => places.has(name),
    /** The problem of a row that means one of these records, if an earlier row touched it. The names were read. */
    problemsOf(
      row: Placed,
      index: number,
      names: readonly string[],
      { field, what }: { field: string; what: string },
    ): Problem[] {
      const place = names.map(name => places.get(name)).find(place => place !== undefined)
      if (place === undefined) return []
      const word = row.line === undefined ? 'row' : 'line'
      const message = `This ${word} (${placeOf(row, index)}) means the same ${what} as ${word} ${place}, which was imported: keep one.`
      return [{ field, message }]
    },
    /** The problems of unique names that earlier rows gave to other records; a dry run has only noted those of earlier batches. */
    takenBy(row: Placed, claims: readonly { readonly field: string; readonly name: string }[]): Problem[] {
      return claims.flatMap(({ field, name }) => {
        const place = places.get(name)
        if (place === undefined) return []
        const word = row.line === undefined ? 'row' : 'line'
        return [{ field, message: `Choose another ${field}: ${word} ${place} of this import has this one.` }]
      })
    },
    /** Notes that a row touched a record. */
    add(row: Placed, index: number, names: readonly string[]): void {
      for (const name of names) {
        places.set(name, placeOf(row, index))
        noted.set(name, placeOf(row, index))
      }
    },
    /** Stores what was noted. */
    save: (): Promise<void> => imports.touch(importId, noted, t),
  }
}

/** The problem of a change to a value, null for none, that `change_accounts` doesn't permit. */
export function withheld(field: string, column: string, what: string, value: unknown): Problem {
  return {
    field,
    message: `This would ${value === null ? 'clear' : 'change'} ${column} of an existing ${what}, which opens access: permit it with --change-accounts ${column}.`,
  }
}

/** The problem of a number that a spreadsheet took for an amount. */
export function damaged(field: string, what: string): Problem {
  return {
    field,
    message: `A spreadsheet has changed this ${what}: enter it again, in a column that is formatted as text.`,
  }
}

/** The problem of a column that only moves from other systems need. */
export const needsKeptIds = (field: string): Problem => ({ field, message: 'This column needs --keep-ids.' })

/** The problems of a key that a row brings, which its record doesn't have: the key is a UUID, and no record has it. */
export function keyProblems(
  field: string,
  key: string,
  { keepIds }: Pick<ImportRow, 'keepIds'>,
  holder: string | undefined,
): Problem[] {
  if (!keepIds) return [needsKeptIds(field)]
  if (!isUuid(key)) return [{ field, message: 'Use a key in the form of a UUID.' }]
  return holder === undefined ? [] : [{ field, message: `Another record has this key: ${holder.replace(':', ' #')}.` }]
}

/** Rejects a row whose id is missing, or that no record has and the import can’t give to a new one. */
function checkRowId(
  id: number | undefined,
  found: object | undefined,
  what: 'organization' | 'user',
  { of, free }: { readonly of: Pick<ImportRow, 'keepIds'>; readonly free: ReadonlySet<number> },
): Unapplied | undefined {
  if (id === undefined && of.keepIds)
    return rejected('INVALID_ARGUMENT', { field: 'id', message: 'With --keep-ids, each row needs an id.' })
  if (found || id === undefined || free.has(id)) return undefined
  const message = of.keepIds
    ? `A new ${what} can’t have this id: it was given before, or is too high.`
    : `There is no ${what} with this id. To create it with this id, pass --keep-ids.`
  return rejected(what === 'user' ? 'USER_NOT_FOUND' : 'RECORD_NOT_FOUND', { field: 'id', message })
}

/** Rejects a row with the id of a record that differs in these fields, which `keep_ids` doesn’t change. */
export function differs(id: number, what: 'organization' | 'user', fields: readonly string[]): Unapplied {
  const message = `There is another ${what} with this id, ${id}. Different: ${fields.join(', ')}. With --keep-ids, an import changes no record.`
  return rejected('WRONG_STATE', { field: 'id', message })
}

/** Rows after which other work of the process has its turn. */
const slice = 25

/** Reads rows without keeping the process from other work for more than some milliseconds. */
async function readInSlices<Row, Read>(rows: readonly Row[], read: (row: Row, index: number) => Read): Promise<Read[]> {
  const all: Read[] = []
  for (const [index, row] of rows.entries()) {
    if (index % slice === slice - 1) await setImmediate()
    all.push(read(row, index))
  }
  return all
}

/** Rejects a row. */
export function rejected(reason: ReasonName, ...problems: readonly Problem[]): Unapplied {
  return { kind: 'rejected', reason, problems }
}

/** A row whose record differs from what the dry run saw. */
const stale = rejected('STALE_ETAG', {
  field: '',
  message: 'STALE: the record has changed since the dry run. Run it again.',
})

/** Digest of a record; without one, zeros. */
function digestOf(record: readonly unknown[] | undefined): Buffer {
  if (!record) return Buffer.alloc(seenBytes)
  return createHash('sha256').update(JSON.stringify(record)).digest().subarray(0, seenBytes)
}

/** Cuts rows into groups without common keys, in order: the rows of a group don't depend on each other. */
function groupsOf<Row>(rows: readonly Row[], keysOf: (row: Row) => readonly string[]): Row[][] {
  const groups: Row[][] = [[]]
  let taken = new Set<string>()
  for (const row of rows) {
    const keys = keysOf(row)
    if (keys.some(key => taken.has(key))) {
      groups.push([])
      taken = new Set()
    }
    for (const key of keys) taken.add(key)
    groups.at(-1)!.push(row)
  }
  return groups
}
