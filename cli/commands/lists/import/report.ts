// The rejected rows of a file, with where and why they are wrong.
import type { RejectedRow } from '../../../../proto/gen/auth/v1/administration_pb.js'
import { openSink, type Sink } from '../../../files/sink.js'
import { errorColumns, readRows, type Source, type SourceRow } from '../../../files/source.js'
import { inTerminalLanguage } from '../../../terminal/language.js'

/** The report of rejected rows, in the format, encoding and line ends of the source. */
export async function openReport(path: string, source: Source) {
  const { format, delimiter, head } = source
  const columns = [
    ...head.filter(name => !(errorColumns as readonly string[]).includes(name.toLowerCase())),
    ...errorColumns,
  ]
  return reportOf(source, await openSink(path, { format, columns, delimiter, like: source, cells: 'verbatim' }))
}

/** Rejected rows that are shown without a report. */
const mostShown = 10

/** A report that keeps the lines, fields and reasons of the first rejected rows. */
export function reportLines(source: Source, shown: string[]) {
  return reportOf(source, {
    async write(rows) {
      for (const { error_line: line, error_field: field, error_reason: why } of rows.slice(0, mostShown - shown.length))
        shown.push(`Line ${line}${field ? `, ${field}` : ''}: ${why}`)
    },
    async close() {},
  })
}

/** Puts the rejected rows of a source into a sink, with where and why they are wrong. */
function reportOf(source: Source, sink: Sink) {
  const { head } = source
  const toReport = (row: SourceRow, { problems }: RejectedRow) => {
    const { original } = row
    const cells = Array.isArray(original)
      ? Object.fromEntries(original.map((cell, index) => [head[index], cell]))
      : (original as Readonly<Record<string, unknown>>)
    return {
      ...cells,
      error_line: row.line,
      error_field: problems
        .map(({ field }) => field)
        .filter(Boolean)
        .join(', '),
      error_reason: problems.map(({ message }) => inTerminalLanguage(message)).join(' '),
    }
  }
  return {
    /** Writes those of consecutive rows that are rejected. */
    async write(rows: readonly SourceRow[], firstRow: number, rejected: readonly RejectedRow[]) {
      await sink.write(rejected.map(each => toReport(rows[each.row - firstRow]!, each)))
    },
    /** Writes rows that are known by their numbers alone. */
    async writeAll(rejected: readonly RejectedRow[]) {
      const byRow = new Map(rejected.map(each => [each.row, each]))
      let number = 0
      for await (const row of readRows(source)) {
        const found = byRow.get(number++)
        if (found) await sink.write([toReport(row, found)])
      }
    },
    close: () => sink.close(),
  }
}
