// The start of an import that keeps the ids of a file.
import type { StartImportResponse } from '../../../../proto/gen/auth/v1/administration_pb.js'
import { idOf } from '../../../files/columns.js'
import { readRows, type Source } from '../../../files/source.js'

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
