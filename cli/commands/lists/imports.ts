// `auth-admin imports`: the imports of files, and of the database of the older implementation.
import { timestampDate } from '@bufbuild/protobuf/wkt'
import { type Import, ImportKind, ImportState } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { Command } from '../../command.js'
import { timeText } from '../../terminal/output.js'
import { type List, type ListOptions, printPages } from '../../terminal/pages.js'
import { addUndo } from './undo.js'

/** Adds `auth-admin imports`. */
export function addImports(program: Command): void {
  const imports = program.command('imports').description('Show the progress of imports, abort them, and undo them.')

  imports
    .command('list')
    .pages(importList)
    .description('List imports, newest first. They are deleted 30 days after their last change.')
    .examples('imports list')
    .administers(async (api, options: ListOptions) => {
      await printPages(importList, options, page => api.listImports(page))
    })

  addUndo(imports)
}

/** The state of an import for users: an undo leaves it finished, or aborted. */
function shownState({ state, undoTime }: ReturnType<typeof importOutput>): string {
  return undoTime === undefined ? state : `${state}, undone`
}

/** An import in plain words. */
export function importOutput(of: Import) {
  const { id, sourceDigest, nextRow, created, updated, unchanged, rejected, afterDryRun, undoTime } = of
  const { actor, actorId, actorUsername } = of
  return {
    id,
    kind: ImportKind[of.kind].toLowerCase(),
    state: ImportState[of.state].toLowerCase(),
    sourceDigest,
    nextRow,
    ...{ created, updated, unchanged, rejected },
    dryRun: of.dryRun,
    allOrNothing: of.allOrNothing,
    changeAccounts: of.changeAccounts,
    keepIds: of.keepIds,
    afterDryRun,
    createTime: timeText(timestampDate(of.createTime!)),
    updateTime: timeText(timestampDate(of.updateTime!)),
    actor,
    actorId,
    actorUsername,
    undoTime: undoTime && timeText(timestampDate(undoTime)),
  }
}

const importList: List<Import, 'imports'> = {
  name: 'imports',
  fields: [
    ...['id', 'kind', 'state', 'sourceDigest', 'nextRow', 'created', 'updated', 'unchanged', 'rejected', 'dryRun'],
    ...[
      'allOrNothing',
      'changeAccounts',
      'keepIds',
      'afterDryRun',
      'createTime',
      'updateTime',
      'actor',
      'actorId',
      'actorUsername',
      'undoTime',
    ],
  ],
  toOutput: importOutput,
  head: { titles: ['id', 'kind', 'state', 'rows', 'created', 'updated', 'unchanged', 'rejected', 'by', 'changed'] },
  toCells(of) {
    const output = importOutput(of)
    const { id, kind, nextRow, created, updated, unchanged, rejected, dryRun, updateTime } = output
    const [what, by] = [dryRun ? `${kind}, dry run` : kind, output.actorUsername ?? output.actor]
    return [id, what, shownState(output), nextRow, created, updated, unchanged, rejected, by, updateTime]
  },
  empty: 'There are no imports.',
}
