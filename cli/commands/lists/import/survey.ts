// A first look at a file, before anything is sent.
import type { StartImportResponse } from '../../../../proto/gen/auth/v1/administration_pb.js'
import { misuse } from '../../../exit-codes.js'
import { columnsToRead, idOf } from '../../../files/columns.js'
import { type CellValue, readRows, type Source, unknownColumns } from '../../../files/source.js'
import { type Noun, nouns } from './nouns.js'

/** The rows of a file, as reported before the import. */
interface Survey {
  readonly rows: number
  readonly passwords: number
  readonly unknown: readonly string[]
  /** How its dates are written. */
  readonly dateForms: readonly string[]
  /** Whether no new user of the file has accepted the terms. */
  readonly withoutTerms: boolean
}

/** Looks through all rows: the file is valid, and has a column that identifies records. */
export async function look(source: Source, noun: Noun, how: { readonly keepIds: boolean }): Promise<Survey> {
  const { identifying } = nouns[noun]
  const columns = columnsToRead(nouns[noun].columns, how)
  const names = new Set<string>(source.head.map(name => name.toLowerCase()))
  const days = Object.entries(columns).flatMap(([name, { kind }]) => (kind === 'day' ? [name] : []))
  const dateForms = new Set<string>()
  let [rows, passwords] = [0, 0]
  for await (const { cells } of readRows(source)) {
    rows++
    if (source.format === 'jsonl') for (const name of Object.keys(cells)) names.add(name)
    for (const day of days) {
      const form = dateFormOf(cells[day])
      if (form) dateForms.add(form)
    }
    const { password } = cells
    if (noun === 'users' && typeof password === 'string' && password !== '') passwords++
  }
  if (!identifying.some(name => names.has(name)))
    misuse(
      `${source.path}, line ${source.firstLine}: There is no column ${identifying.join(' or ')}. The first line must name columns among ${Object.keys(columns).join(', ')}.`,
    )
  // A row without a role changes users only.
  const withoutTerms = noun === 'users' && names.has('role') && !names.has('termsofusage')
  return {
    rows,
    passwords,
    unknown: unknownColumns(names, columns),
    dateForms: [...dateForms].sort(),
    withoutTerms,
  }
}

/** How the date of a cell is written. */
function dateFormOf(cell: CellValue): string | undefined {
  const match = /^\W*(?:\d{4}-\d\d-\d\d|(\d\d\/\d\d\/\d{4}))/.exec(String(cell ?? ''))
  return match ? (match[1] ? 'dd/MM/yyyy' : 'yyyy-MM-dd') : undefined
}

/** Starts an import with the highest id of a file or, if that is too high, with the highest one that isn't. */
export async function startKeepingIds(source: Source, start: (highestId: number) => Promise<StartImportResponse>) {
  const highest = await findHighestId(source)
  const answer = await start(highest)
  return answer.highestId >= highest ? answer : start(await findHighestId(source, answer.highestId))
}

/** The highest id of the rows of a file that isn't above `most`; without one, 0. */
async function findHighestId(source: Source, most = Number.POSITIVE_INFINITY): Promise<number> {
  let highest = 0
  for await (const { cells } of readRows(source)) {
    const id = idOf(cells, { isCsv: source.format === 'csv' }) ?? 0
    if (id <= most && id > highest) highest = id
  }
  return highest
}
