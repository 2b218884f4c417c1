// Data stored about a user: export and erasure.
import { timestampDate } from '@bufbuild/protobuf/wkt'
import type { Api } from '../../administration.js'
import { readReference } from '../../arguments.js'
import type { Command } from '../../command.js'
import { misuse } from '../../exit-codes.js'
import { confirmName } from '../../terminal/ask.js'
import { camelCased, printFields, printJson, say } from '../../terminal/output.js'
import { withProgress } from '../../terminal/progress.js'
import { type ExportOptions, exportAll, withExport } from '../lists/export.js'
import { referenceTo, withRecord } from '../nouns.js'
import { type Named, readUser } from './named-user.js'

/** Adds `auth-admin users export` and `erase`. */
export function addUserData(users: Command): void {
  const data = users
    .command('export')
    .argument('[file-or-user]', 'file to write, which ends in .csv or .jsonl; or username or id', readReference)
  withExport(data, 'password hashes and provider keys')
    .json()
    .description('Write all users to a file; or print all data stored about one user as JSON (LGPD, article 18).')
    .remarks(`
A file has the columns of \`users import\`, without deleted users. The data of
one user has no secrets. Options other than --json are for files; for a user
whose name ends like a file, pass the id. On a server --with-secrets requires a
sign-in within the last 15 minutes.`)
    .examples('users export users.csv', "users export '(11)98765-4321' > user.json")
    .administers(async (api, name: string | undefined, options: Named & ExportOptions) => {
      if (isFile(name, options)) return exportAll(api, 'users', name, options)
      const user = await referenceTo('user', name, options)
      printJson(await withProgress('Reading', report => readAll(api, user, report)))
    })

  withRecord(users.command('erase').signIn('eraseUser'), 'user')
    .description('Erase all data stored about a user, and print a receipt. This can’t be undone.')
    .option('--confirm <username>', 'the username again; a terminal prompts for it')
    .remarks('The audit log keeps its events under the id of the user, and still verifies.')
    .examples('users erase ana --confirm ana')
    .administers(async (api, name: string | undefined, options: Named & { confirm?: string }) => {
      const { reference, user: found } = await readUser(api, name, options)
      const { username = '' } = found.record!
      const sentence = `This permanently erases all data stored about ${username}.`
      const validate = (confirm: string) => api.eraseUser({ user: reference, confirm, validateOnly: true })
      const confirm = await confirmName(sentence, username, options, validate)
      const erase = () => api.eraseUser({ user: reference, confirm })
      const { user, ...receipt } = await withProgress('Erasing', erase)
      const eraseTime = timestampDate(receipt.eraseTime!)
      const rows = camelCased(receipt.rows)
      if (options.json) return printJson({ user, eraseTime, rows })
      say(`User ${user} (${username}) is erased.`)
      printFields({ erased: eraseTime, ...rows })
    })
}

/** Whether an export is of all users, to a file. */
function isFile(name: string | undefined, { format, spreadsheet, withSecrets }: ExportOptions): name is string {
  const named = name !== undefined && (format !== undefined || /\.(csv|jsonl|ndjson)$/i.test(name))
  if (!named && (format ?? spreadsheet ?? withSecrets) !== undefined)
    misuse('Pass a file that ends in .csv or .jsonl, or --format.')
  return named
}

/** All pages of an export as one document, events the oldest first. */
async function readAll(api: Api, user: string, report: (done: string) => void): Promise<object> {
  const documents: { audit_events: object[]; audit_staged: object[] }[] = []
  let pageToken = ''
  do {
    const { json, nextPageToken } = await api.exportUser({ user, pageSize: 1_000, pageToken })
    documents.push(JSON.parse(json))
    report(`${documents.length} pages so far`)
    pageToken = nextPageToken
  } while (pageToken !== '')
  const all = (of: 'audit_events' | 'audit_staged') => documents.flatMap(document => document[of]).reverse()
  return camelCased({ ...documents[0], audit_events: all('audit_events'), audit_staged: all('audit_staged') })
}
