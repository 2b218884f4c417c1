// What an import has done.
import { timestampDate } from '@bufbuild/protobuf/wkt'
import { type Import, ImportKind, ImportState } from '../../../../proto/gen/auth/v1/administration_pb.js'
import { printJson, say } from '../../../terminal/output.js'

/** Prints the outcome of an import, with its changes by field, and with the number of rows that have a note. */
export function print(
  made: Import,
  { changes, notes }: { readonly changes: Readonly<Record<string, number>>; readonly notes: number },
  readAs: string,
  { json, report, dryRun }: { readonly json?: boolean; readonly report?: string; readonly dryRun?: boolean },
): void {
  if (json) {
    printJson({ ...importOutput(made), readAs, changes })
    return
  }
  const { id, created, updated, unchanged, rejected, state } = made
  const counts = `${created} created, ${updated} updated, ${unchanged} unchanged, ${rejected} rejected`
  if (state === ImportState.ABORTED) say(`Import ${id} is aborted, and nothing is changed: ${counts}.`)
  else say(`${dryRun ? `Dry run ${id}, nothing is changed` : `Import ${id} is finished`}: ${counts}.`)
  const fields = Object.entries(changes).map(([field, count]) => `${field} ${count}`)
  if (fields.length > 0) say(`Changes by field: ${fields.join(', ')}.`)
  if (rejected > 0)
    say(
      report === undefined
        ? 'To write the rejected rows to a file, run the command again with --report FILE.'
        : `${report} has the rejected rows.`,
    )
  if (notes > 0) {
    const where = report === undefined ? '' : ` ${report} says which.`
    say(`New users with another nickname than their username, which isn’t free as one: ${notes}.${where}`)
  }
  if (dryRun) say(`To import only what is as it was judged, pass --after-dry-run ${id}.`)
}

/** An import in plain words. */
function importOutput({ $typeName: _, $unknown: __, kind, state, createTime, updateTime, ...rest }: Import) {
  const times = { createTime: timestampDate(createTime!), updateTime: timestampDate(updateTime!) }
  return { kind: ImportKind[kind].toLowerCase(), state: ImportState[state].toLowerCase(), ...rest, ...times }
}
