// `auth-admin imports undo`: removes what an import created, page by page, each of which takes effect once.
import { type Import, ImportKind, type UndoneRecord } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { Api } from '../../administration.js'
import type { Command } from '../../command.js'
import { end } from '../../exit-codes.js'
import { confirmName, readId } from '../../terminal/ask.js'
import { jsonText, say, warn, write } from '../../terminal/output.js'
import { withProgress } from '../../terminal/progress.js'
import { untilAnswered } from './until-answered.js'

interface Options {
  readonly confirm?: string
  readonly json?: boolean
}

/** Adds `auth-admin imports undo`. */
export function addUndo(imports: Command): void {
  imports
    .command('undo')
    .signIn('undoImport')
    .argument('<id>', 'id of the import', readId)
    .description('Remove what an import created, unless something else has touched it since. This can’t be undone.')
    .option('--confirm <id>', 'the id again; a terminal prompts for it')
    .json()
    .remarks(`
Users are erased, and their names are free at once. Organizations are removed if
they have no members. A record stays if its user has signed in, or if anything
has changed it since; the command says why. What the import changed stays
changed. If records stay, the exit code is 6. Without --confirm, the command
counts them first. If it is stopped, run it again.`)
    .examples('imports undo 7 --confirm 7')
    .administers((api, id: number, options: Options) => undo(api, id, options))
}

async function undo(api: Api, id: number, options: Options): Promise<void> {
  const { json } = options
  const found = options.confirm === undefined ? await count(api, id) : undefined
  if (found?.removed === 0 && !json) {
    say(`Import ${id} left nothing to remove.${found.kept > 0 ? ` ${found.kept} ${found.noun} stay.` : ''}`)
    if (found.kept > 0) end(6)
    return
  }
  const stay = found && found.kept > 0 ? ` ${found.kept} stay, because something has touched them since.` : ''
  const what = found
    ? `${found.removed} ${found.noun} that import ${id} created.${stay}`
    : `what import ${id} created, unless something has touched it since.`
  const confirm = await confirmName(`This permanently removes ${what}`, String(id), options)

  let [removed, gone, kept, total] = [0, 0, 0, 0]
  let noun: string | undefined
  const remove = async (report: (done: string) => void) => {
    for await (const { import: of, records } of undoPages(api, { id, confirm })) {
      const before = noun
      noun = nounOf(of)
      total = of.created
      if (json && before === undefined) await write(`{\n  "id": ${id},\n  "kind": "${noun}",\n  "kept": [`)
      for (const record of records) {
        if (record.name === undefined) gone++
        else if (record.kept === undefined) removed++
        else {
          const { id, name, kept: why } = record
          if (json) await write(`${kept > 0 ? ',' : ''}\n    ${jsonText({ id, name, why })}`)
          else say(`${id} (${name}) stays: ${why}`)
          kept++
        }
      }
      report(`${removed + gone + kept} of ${total}`)
    }
  }
  try {
    await withProgress('Undoing', remove, { prints: true })
  } catch (error) {
    if (removed > 0) warn(`${removed} of ${total} ${noun} are removed. Run the command again to go on.`)
    throw error
  } finally {
    if (json && noun !== undefined)
      await write(`${kept > 0 ? '\n  ' : ''}],\n  "removed": ${removed},\n  "gone": ${gone}\n}\n`)
  }
  if (!json) {
    const before = gone > 0 ? `, ${gone} were gone before` : ''
    say(`Import ${id} is undone${kept > 0 ? ' in part' : ''}: ${removed} ${noun} removed, ${kept} kept${before}.`)
  }
  if (kept > 0) end(6)
}

/** The pages of an undo, or of its validation. A repeated page removes nothing twice. */
export async function* undoPages(
  api: Api,
  request: { readonly id: number; readonly confirm?: string; readonly validateOnly?: boolean },
): AsyncGenerator<{ readonly import: Import; readonly records: readonly UndoneRecord[] }> {
  let pageToken = ''
  do {
    const page = await untilAnswered(() => api.undoImport({ ...request, pageToken }))
    yield { import: page.import!, records: page.records }
    pageToken = page.nextPageToken
  } while (pageToken !== '')
}

/** Counts what would be removed, and what would stay. */
function count(api: Api, id: number) {
  return withProgress('Counting', async report => {
    let [removed, kept, noun] = [0, 0, '']
    for await (const { import: of, records } of undoPages(api, { id, validateOnly: true })) {
      noun = nounOf(of)
      const present = records.filter(({ name }) => name !== undefined)
      kept += present.filter(record => record.kept !== undefined).length
      removed += present.filter(record => record.kept === undefined).length
      report(`${removed + kept} so far`)
    }
    return { removed, kept, noun }
  })
}

/** What an import is of. */
function nounOf({ kind }: Pick<Import, 'kind'>): string {
  return ImportKind[kind].toLowerCase()
}
