// `auth-admin imports`: the imports of files. `imports abort` is a row of verbs.ts, `import` below each kind of records.
import { timestampDate } from '@bufbuild/protobuf/wkt'
import { type Import, ImportKind, ImportState } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Command } from '../command.js'
import { inTerminalLanguage } from '../terminal/language.js'
import { type List, type ListOptions, printPages } from '../terminal/pages.js'
import { importOutput } from './nouns.js'

/** Adds `auth-admin imports`. */
export function addImports(program: Command): void {
  program
    .command('imports')
    .description('Show and end imports of files.')
    .command('list')
    .pages()
    .description('List the imports of 30 days, newest first.')
    .examples('imports list')
    .administers(async (api, options: ListOptions) => {
      await printPages(importList, options, page => api.listImports(page))
    })
}

const importList: List<Import, 'imports'> = {
  name: 'imports',
  toOutput: importOutput,
  head: { titles: ['id', 'of', 'state', 'created', 'updated', 'unchanged', 'rejected', 'time', 'by'] },
  toCells(made) {
    const { id, kind, state, created, updated, unchanged, rejected, updateTime, actor, actorUsername } = made
    const words = [ImportKind[kind], ImportState[state]].map(word => inTerminalLanguage(word.toLowerCase()))
    const counts = [created, updated, unchanged, rejected]
    return [id, ...words, ...counts, timestampDate(updateTime!), actorUsername ?? actor]
  },
  empty: 'There are no imports.',
}
