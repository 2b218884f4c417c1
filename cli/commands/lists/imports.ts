// `auth-admin imports`: the imports of files.
import { timestampDate } from '@bufbuild/protobuf/wkt'
import { type Import, ImportKind, ImportState } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { Command } from '../../command.js'
import { timeText } from '../../terminal/output.js'
import { type List, type ListOptions, printPages } from '../../terminal/pages.js'

/** Adds `auth-admin imports`. */
export function addImports(program: Command): void {
  const imports = program.command('imports').description('Show the progress of imports, and abort them.')

  imports
    .command('list')
    .pages(importList)
    .description('List imports, newest first. They are deleted 30 days after their last change.')
    .examples('imports list')
    .administers(async (api, options: ListOptions) => {
      await printPages(importList, options, page => api.listImports(page))
    })
}

/** An import in plain words. */
export function importOutput(of: Import) {
  const { id, sourceDigest, nextRow, created, updated, unchanged, rejected, afterDryRun } = of
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
    ],
  ],
  toOutput: importOutput,
  head: { titles: ['id', 'kind', 'state', 'rows', 'created', 'updated', 'unchanged', 'rejected', 'by', 'changed'] },
  toCells(of) {
    const output = importOutput(of)
    const { id, kind, state, nextRow, created, updated, unchanged, rejected, dryRun, updateTime } = output
    const [what, by] = [dryRun ? `${kind}, dry run` : kind, output.actorUsername ?? output.actor]
    return [id, what, state, nextRow, created, updated, unchanged, rejected, by, updateTime]
  },
  empty: 'There are no imports.',
}
