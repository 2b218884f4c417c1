// `organizations export` and `users export`: write all records to a file, page by page.
import { Option } from 'commander'
import type { Api } from '../../administration.js'
import type { Command } from '../../command.js'
import { misuse } from '../../exit-codes.js'
import { type Cells, exportColumns, organizationCells, userCells } from '../../files/columns.js'
import { openSink } from '../../files/sink.js'
import { type Format, formatOf } from '../../files/source.js'
import { printJson, say } from '../../terminal/output.js'
import { withProgress } from '../../terminal/progress.js'

/** Options of an export. */
export interface ExportOptions {
  readonly withSecrets?: boolean
  readonly spreadsheet?: boolean
  readonly format?: Format
  readonly json?: boolean
}

/** Records of one call. */
const pageSize = 1_000

type Noun = keyof typeof exportColumns

/** Adds the options of an export of all records. */
export function withExport(command: Command, secrets: string): Command {
  return command
    .option('--with-secrets', `with ${secrets}; adds events to the audit log`)
    .option('--spreadsheet', "prefix what a spreadsheet would read as formulas with ', and quote every cell")
    .addOption(new Option('--format <format>', 'instead of what the name of the file says').choices(['csv', 'jsonl']))
}

/** Writes all records of a noun to a file. */
export async function exportAll(api: Api, noun: Noun, file: string, options: ExportOptions): Promise<void> {
  if (options.json && file === '-') misuse('Standard output is for --json or for the records, not for both.')
  const { withSecrets = false, spreadsheet = false } = options
  const { plain, secret } = exportColumns[noun]
  const format = formatOf(file, options.format)
  const columns = [...plain, ...(withSecrets ? secret : [])]
  const write = async (report: (done: string) => void) => {
    let page = await readers[noun](api, '', withSecrets)
    // A refused export replaces no file.
    const sink = await openSink(file, { format, columns, ...(spreadsheet && { cells: 'spreadsheet' as const }) })
    let count = 0
    for (;;) {
      await sink.write(page.cells)
      count += page.cells.length
      report(`${count} so far`)
      if (page.nextPageToken === '') break
      page = await readers[noun](api, page.nextPageToken, withSecrets)
    }
    await sink.close()
    return count
  }
  const count = await withProgress('Writing', write, { prints: file === '-' })
  if (options.json) printJson({ file, [noun]: count })
  else if (file !== '-') say(`${file} has ${count} ${count === 1 ? noun.slice(0, -1) : noun}.`)
}

type Read = (api: Api, pageToken: string, withSecrets: boolean) => Promise<{ cells: Cells[]; nextPageToken: string }>

const readers: Readonly<Record<Noun, Read>> = {
  async organizations(api, pageToken, withSecrets) {
    const { organizations, nextPageToken } = await api.listOrganizations({ pageSize, pageToken })
    const ids = organizations.map(({ record }) => record!.id!)
    const secrets = withSecrets && ids.length > 0 ? (await api.getOrganizationSecrets({ ids })).secrets : []
    const keys = new Map(secrets.map(({ id, activationkey }) => [id, activationkey]))
    return { cells: organizations.map(each => organizationCells(each, keys.get(each.record!.id!))), nextPageToken }
  },
  async users(api, pageToken, withSecrets) {
    const { users, nextPageToken } = await api.listUsers({ pageSize, pageToken })
    const ids = users.map(({ record }) => record!.id!)
    const secrets = withSecrets && ids.length > 0 ? (await api.getUserSecrets({ ids })).secrets : []
    const byId = new Map(secrets.map(each => [each.id, each]))
    return { cells: users.map(each => userCells(each, byId.get(each.record!.id!))), nextPageToken }
  },
}
