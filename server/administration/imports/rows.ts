// What the rows of all files have in common: how they are judged, and what they leave.
import { createHash } from 'node:crypto'
import { setImmediate } from 'node:timers/promises'
import type { ImportProblem } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { Change } from '../../calls/context.js'
import type { NotifiedChange } from '../../models/email.js'
import { type ImportRow, type Imports, seenBytes } from '../../models/import.js'
import type { ReasonName } from '../../policy/policy.js'

/** Why a field of a row is rejected. */
export type Problem = Pick<ImportProblem, 'field' | 'message'>

/** The outcome of a row. */
export type Outcome =
  | { readonly kind: 'created'; readonly id: number }
  | { readonly kind: 'updated'; readonly id: number; readonly fields: readonly string[] }
  | { readonly kind: 'unchanged' }
  | { readonly kind: 'rejected'; readonly reason: ReasonName; readonly problems: readonly Problem[] }

/** A judged row. */
export interface Judged {
  readonly outcome: Outcome
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

/** The rows of a batch, read by the rules of their fields. */
export interface ReadRows {
  /** Hashes the clear passwords that rows will need. Takes long, so it precedes the transaction. */
  hash(of: ImportRow): Promise<ReadonlyMap<number, string>>
  /** Judges the rows one after the other, and applies those that aren't rejected. */
  apply(batch: Batch): Promise<Judged[]>
}

/** Reads rows of a kind of file. */
export type Rows<Row> = (rows: readonly Row[]) => Promise<ReadRows>

/** The records that the import has created or changed, by names that rows have for them. */
export interface Touched {
  /** Reads which of these records earlier batches touched. */
  read(names: readonly string[]): Promise<void>
  /** Rejects a row that means one of these records, if an earlier row touched it. The names were read. */
  reject(
    row: Placed,
    index: number,
    names: readonly string[],
    problem: { field: string; what: string },
  ): Outcome | undefined
  /** Notes that a row touched a record. */
  add(row: Placed, index: number, names: readonly string[]): void
  /** Stores what was noted. */
  save(): Promise<void>
}

/** A row that may know its line. */
interface Placed {
  readonly line?: number
}

/** Creates the touched records for a batch. */
export function createTouched(
  imports: Pick<Imports, 'touched' | 'touch'>,
  { importId, firstRow }: { importId: number; firstRow: number },
  { t }: Pick<Change, 't'>,
): Touched {
  const places = new Map<string, number>()
  const noted = new Map<string, number>()
  const placeOf = ({ line }: Placed, index: number) => line ?? firstRow + index
  return {
    async read(names) {
      for (const [name, place] of await imports.touched(importId, names, t)) places.set(name, place)
    },
    reject(row, index, names, { field, what }) {
      const place = names.map(name => places.get(name)).find(place => place !== undefined)
      if (place === undefined) return undefined
      const word = row.line === undefined ? 'row' : 'line'
      const message = `This ${word} (${placeOf(row, index)}) means the same ${what} as ${word} ${place}, which was imported: keep one.`
      return rejected('WRONG_STATE', { field, message })
    },
    add(row, index, names) {
      for (const name of names) {
        places.set(name, placeOf(row, index))
        noted.set(name, placeOf(row, index))
      }
    },
    save: () => imports.touch(importId, noted, t),
  }
}

/** The problem of a change that `change_accounts` doesn't permit. */
export function withheld(field: string, column: string, what: string): Problem {
  return {
    field,
    message: `This would change ${column} of an existing ${what}, which opens access: permit it with --change-accounts ${column}.`,
  }
}

/** Rejects a row whose id is missing, or that no record has and the import can’t give to a new one. */
export function checkRowId(
  id: number | undefined,
  found: object | undefined,
  what: 'organization' | 'user',
  { of, free }: { readonly of: Pick<ImportRow, 'keepIds'>; readonly free: ReadonlySet<number> },
): Outcome | undefined {
  if (id === undefined && of.keepIds)
    return rejected('INVALID_ARGUMENT', { field: 'id', message: 'With --keep-ids, each row needs an id.' })
  if (found || id === undefined || free.has(id)) return undefined
  const message = of.keepIds
    ? `A new ${what} can’t have this id: it was given before, or is too high.`
    : `There is no ${what} with this id. To create it with this id, pass --keep-ids.`
  return rejected(what === 'user' ? 'USER_NOT_FOUND' : 'RECORD_NOT_FOUND', { field: 'id', message })
}

/** Rejects a row with the id of a record that differs in these fields, which `keep_ids` doesn’t change. */
export function differs(id: number, what: 'organization' | 'user', fields: readonly string[]): Outcome {
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
export function rejected(reason: ReasonName, ...problems: readonly Problem[]): Outcome {
  return { kind: 'rejected', reason, problems }
}

/** A row whose record differs from what the dry run saw. */
export const stale = rejected('STALE_ETAG', {
  field: '',
  message: 'STALE: the record has changed since the dry run. Run it again.',
})

/** Digest of a record; without one, zeros. */
export function digestOf(record: readonly unknown[] | undefined): Buffer {
  if (!record) return Buffer.alloc(seenBytes)
  return createHash('sha256').update(JSON.stringify(record)).digest().subarray(0, seenBytes)
}

/** Cuts rows into groups without common keys, in order: the rows of a group don't depend on each other. */
export function groupsOf<Row>(rows: readonly Row[], keysOf: (row: Row) => readonly string[]): Row[][] {
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
