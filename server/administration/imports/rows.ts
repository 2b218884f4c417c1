// What the rows of all files have in common: how they are judged, and what they leave.
import { createHash } from 'node:crypto'
import { setImmediate } from 'node:timers/promises'
import type { ImportProblem } from '../../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import type { Change } from '../../calls/context.js'
import type { NotifiedChange } from '../../models/email.js'
import { type Imports, type StoredImport, seenBytes } from '../../models/import.js'
import type { ReasonName } from '../../policy/policy.js'
import { Refusal } from '../../requests/refusal.js'
import { isUuid } from '../../rules/names.js'

/** Why a field of a row is rejected. */
export type RowProblem = Pick<ImportProblem, 'field' | 'message'>

/** The outcome of a row that changes nothing. */
type Unapplied =
  | { readonly kind: 'unchanged'; readonly notes?: readonly RowProblem[] }
  | { readonly kind: 'rejected'; readonly reason: ReasonName; readonly problems: readonly RowProblem[] }

/** The outcome of a row. */
type Outcome =
  | Unapplied
  | { readonly kind: 'created'; readonly id: number }
  | { readonly kind: 'updated'; readonly id: number; readonly fields: readonly string[] }

/** What is to be done for a row: an entry to apply, with the fields that it changes of an existing record, and what to say of it. */
export type Decision<Entry> =
  | Unapplied
  | { readonly entry: Entry; readonly fields?: readonly string[]; readonly notes?: readonly RowProblem[] }

/** A judged row. */
export interface Judged {
  readonly outcome: Outcome
  /** What is to be said of a row that isn't rejected. */
  readonly notes: readonly RowProblem[]
  /** Digest of the record as the row found it. */
  readonly seen: Buffer
}

/** The batch of a row. */
export interface Batch extends Change {
  readonly of: StoredImport
  /** Number of its first row. */
  readonly firstRow: number
  readonly touched: Touched
  /** What notices to owners say about changes. */
  readonly by: NotifiedChange
  /** Id of the administrator; absent on the database itself. */
  readonly administratorId: number | undefined
  /** Whether a holder of desk imports, who gives no role but ROLE_CLIENT. */
  readonly desk: boolean
  /** Hashes of the clear passwords, by the index of the row. */
  readonly hashes: ReadonlyMap<number, string>
  /** What a dry run saw for each row, if the import follows one. */
  readonly seen: readonly Buffer[] | undefined
  /** Returns those of the ids that a new record can have, unless a record has them. Without `keep_ids`, none. */
  freeIds(ids: readonly number[]): Promise<ReadonlySet<number>>
}

/** A row, and the record that it means. */
interface Meaning {
  readonly what: 'organization' | 'user'
  readonly row: { readonly id?: number; readonly line?: number; readonly problems: readonly RowProblem[] }
  /** Its number in the batch. */
  readonly index: number
  /** Whether fields that it gives are wrong. */
  readonly isWrong: boolean
  readonly found: object | undefined
  /** The problem of a row that means the same record as an earlier one. */
  readonly repeated: readonly RowProblem[]
  /** Digest of the record. */
  readonly seen: Buffer
  /** The ids that new records can have. */
  readonly free: ReadonlySet<number>
}

/** The rows of a batch, read by the rules of their fields. */
export interface ReadRows {
  /** Hashes the clear passwords that rows will need. Takes long, so it precedes the transaction. */
  hash(of: StoredImport): Promise<ReadonlyMap<number, string>>
  /** Judges the rows one after the other, and applies those that aren't rejected. */
  apply(batch: Batch): Promise<Judged[]>
}

/** Reads rows of a kind of file. */
export type Rows<Row> = (rows: readonly Row[]) => Promise<ReadRows>

/** Why a row is rejected whatever its fields say of the record: for what it has in common with others, or with a dry run. */
export function rejectionOf(
  { what, row, index, isWrong, found, repeated, seen, free }: Meaning,
  { of, seen: before }: Batch,
): Unapplied | undefined {
  if (row.problems.length > 0) return rejected('INVALID_ARGUMENT', ...row.problems)
  // Its own errors come first.
  if (!isWrong && repeated.length > 0) return rejected('WRONG_STATE')
  if (!isWrong && before && !before[index]!.equals(seen)) return stale
  return checkRowId(row.id, found, what, { of, free })
}

/**
 * Judges a row by its decision and, with an entry, what applying that has returned. `names`: what the record has among touched ones.
 */
export function judgedOf<Entry>(
  { row, index, seen, repeated }: Meaning,
  { touched }: Batch,
  decision: Decision<Entry>,
  applied: number | Refusal | undefined,
  names: readonly string[],
): Judged {
  if ('kind' in decision && decision.kind === 'rejected')
    return { outcome: { ...decision, problems: [...decision.problems, ...repeated] }, seen, notes: [] }
  const outcome = 'entry' in decision ? outcomeOf(decision.fields, applied!) : decision
  if (outcome.kind === 'rejected') return { outcome, seen, notes: [] }
  if (outcome.kind !== 'unchanged') touched.add(row, index, names)
  return { outcome, seen, notes: decision.notes ?? [] }
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
    /**
     * The problem of a row that means one of these records, if an earlier row touched it. The names were read; `key` is the field
     * that means the record in a row without an id.
     */
    problemsOf(
      row: Placed & { readonly id?: number },
      index: number,
      names: readonly string[],
      { key, what }: { key: string; what: string },
    ): RowProblem[] {
      const place = names.map(name => places.get(name)).find(place => place !== undefined)
      if (place === undefined) return []
      const word = row.line === undefined ? 'row' : 'line'
      const message = `This ${word} (${placeOf(row, index)}) means the same ${what} as ${word} ${place}, which was imported: keep one.`
      return [{ field: row.id === undefined ? key : 'id', message }]
    },
    /** The problems of unique names that earlier rows gave to other records; a dry run has only noted those of earlier batches. */
    takenBy(row: Placed, claims: readonly { readonly field: string; readonly name: string }[]): RowProblem[] {
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
export function withheld(field: string, column: string, what: string, value: unknown): RowProblem {
  return {
    field,
    message: `This would ${value === null ? 'clear' : 'change'} ${column} of an existing ${what}, which opens access: permit it with --change-accounts ${column}.`,
  }
}

/** The problem of a number that a spreadsheet took for an amount. */
export function damaged(field: string, what: string): RowProblem {
  return {
    field,
    message: `A spreadsheet has changed this ${what}: enter it again, in a column that is formatted as text.`,
  }
}

/** The problem of a column that only moves from other systems need. */
export const needsKeptIds = (field: string): RowProblem => ({ field, message: 'This column needs --keep-ids.' })

/** The problems of a key that a row brings, which its record doesn't have: the key is a UUID, and no record has it. */
export function keyProblems(
  field: string,
  key: string,
  { keepIds }: Pick<StoredImport, 'keepIds'>,
  holder: string | undefined,
): RowProblem[] {
  if (!keepIds) return [needsKeptIds(field)]
  if (!isUuid(key)) return [{ field, message: 'Use a key in the form of a UUID.' }]
  return holder === undefined ? [] : [{ field, message: `Another record has this key: ${holder.replace(':', ' #')}.` }]
}

/** Rejects a row whose id is missing, or that no record has and the import can’t give to a new one. */
function checkRowId(
  id: number | undefined,
  found: object | undefined,
  what: 'organization' | 'user',
  { of, free }: { readonly of: Pick<StoredImport, 'keepIds'>; readonly free: ReadonlySet<number> },
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
export async function readInSlices<Row, Read>(
  rows: readonly Row[],
  read: (row: Row, index: number) => Read,
): Promise<Read[]> {
  const all: Read[] = []
  for (const [index, row] of rows.entries()) {
    if (index % slice === slice - 1) await setImmediate()
    all.push(read(row, index))
  }
  return all
}

/** Rejects a row. */
export function rejected(reason: ReasonName, ...problems: readonly RowProblem[]): Unapplied {
  return { kind: 'rejected', reason, problems }
}

/** A row whose record differs from what the dry run saw. */
const stale = rejected('STALE_ETAG', {
  field: '',
  message: 'STALE: the record has changed since the dry run. Run it again.',
})

/** Digest of a record; without one, zeros. */
export function digestOf(record: readonly unknown[] | undefined): Buffer {
  if (!record) return Buffer.alloc(seenBytes)
  return createHash('sha256').update(JSON.stringify(record)).digest().subarray(0, seenBytes)
}
