// One-time keys for a class: as a table, as CSV, or as a page to print and cut.
import { timestampDate } from '@bufbuild/protobuf/wkt'
import { Option } from 'commander'
import type { IssuedKey, SkippedUser } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { Api, GlobalOptions } from '../../administration.js'
import type { Command } from '../../command.js'
import { end, misuse } from '../../exit-codes.js'
import { openSink } from '../../files/sink.js'
import { openSource, readRows } from '../../files/source.js'
import { readNumber, readText } from '../../terminal/ask.js'
import { inTerminalLanguage } from '../../terminal/language.js'
import { printJson, printTable, say, timeText, warn } from '../../terminal/output.js'

interface Options extends GlobalOptions {
  readonly organization?: string
  readonly hours?: number
  readonly output?: string
  readonly format?: 'csv' | 'html'
}

/** Users of one call. */
const most = 100

/** Adds `auth-admin users issue-keys`. */
export function addIssueKeys(users: Command): void {
  users
    .command('issue-keys')
    .signIn('issueKeys')
    .description('Issue a key to each of several users, with which it signs in once and sets a password of its own.')
    .argument('[file]', 'CSV with a column username or id')
    .option('--organization <organization>', 'the active ROLE_CLIENT users of this organization', readText)
    .option('--hours <number>', 'hours for which a key is valid (default: 24)', readNumber(1))
    .option('--output <file>', 'file to write, which only you can read: .csv, or .html to print and cut')
    .addOption(new Option('--format <format>', 'instead of what the name of the file says').choices(['csv', 'html']))
    .json()
    .remarks(`
Users whose key can’t be issued are listed, and the exit code is 6. Delete the
file once the keys are handed over.`)
    .examples(
      "users issue-keys --organization 'Escola Azul' --output keys.html",
      'users issue-keys class.csv --hours 48',
    )
    .administers(async (api, file: string | undefined, options: Options) => {
      const { organization, output, format = /\.html?$/i.test(output ?? '') ? 'html' : 'csv' } = options
      if ((file === undefined) === (organization === undefined)) misuse('Pass a file or --organization.')
      const { keys, skipped, expireTime } = await issue(
        api,
        options,
        file === undefined ? [] : await readReferences(file),
      )
      if (options.json) {
        const rows = keys.map(({ user, username, nickname, key }) => ({ id: user, username, nickname, key }))
        const without = skipped.map(({ user, reason }) => ({ user, reason }))
        printJson({ keys: rows, skipped: without, expireTime })
      } else {
        if (output !== undefined) await write(output, format, keys, expireTime)
        else {
          const cells = keys.map(({ nickname, username, key }) => [nickname, username, key])
          printTable(
            { titles: ['nickname', 'username', 'key'], whole: ['username', 'key'] },
            cells,
            'No key is issued.',
          )
        }
        if (keys.length > 0)
          say(`Keys that are issued: ${keys.length}. Each is valid once, until ${timeText(expireTime)}.`)
        for (const { user, reason } of skipped) warn(`No key for ${user}: ${reason}`)
      }
      if (skipped.length > 0) end(6)
    })
}

async function issue(api: Api, { organization, hours = 0 }: Options, references: readonly string[]) {
  const all = { keys: [] as IssuedKey[], skipped: [] as SkippedUser[], expireTime: new Date() }
  let pageToken = ''
  do {
    const users = references.slice(all.keys.length + all.skipped.length).slice(0, most)
    const answer = await api.issueKeys({
      ...(organization === undefined ? { users } : { organization, pageToken }),
      hours,
    })
    all.keys.push(...answer.keys)
    all.skipped.push(...answer.skipped)
    all.expireTime = timestampDate(answer.expireTime!)
    pageToken = answer.nextPageToken
  } while (pageToken !== '' || all.keys.length + all.skipped.length < references.length)
  return all
}

async function readReferences(file: string): Promise<string[]> {
  const source = await openSource(file, undefined)
  const references: string[] = []
  for await (const { cells } of readRows(source))
    references.push(
      cells.id ? `#${cells.id}` : String(cells.username ?? misuse(`${file} has no column username or id.`)),
    )
  if (references.length === 0) misuse(`${file} has no users.`)
  return references
}

async function write(
  file: string,
  format: 'csv' | 'html',
  keys: readonly IssuedKey[],
  expireTime: Date,
): Promise<void> {
  if (format === 'csv') {
    const sink = await openSink(file, { format, columns: ['nickname', 'username', 'key'], cells: 'spreadsheet' })
    await sink.write(keys.map(({ nickname, username, key }) => ({ nickname, username, key })))
    return sink.close()
  }
  const { writePrivateFile } = await import('../../../server/process/private-file.js')
  await writePrivateFile(file, pageOf(keys, expireTime))
}

/** A page with a slip for each user. */
function pageOf(keys: readonly IssuedKey[], expireTime: Date): string {
  const plain = (text: string) => text.replace(/[&<>"]/g, sign => `&#${sign.charCodeAt(0)};`)
  const said = (text: string) => plain(inTerminalLanguage(text))
  const slip = ({ nickname, username, key }: IssuedKey) => `<section><h2>${plain(nickname)}</h2>
<p>${said('Username:')} <b>${plain(username)}</b></p><p>${said('Key:')} <code>${plain(key)}</code></p>
<p>${said(`Sign in with username and key until ${timeText(expireTime)}, and set a password of your own.`)}</p></section>`
  return `<!doctype html><meta charset="utf-8"><title>${said('Keys')}</title>
<style>body{font:12pt sans-serif}section{border:1px dashed;padding:.5em 1em;break-inside:avoid}code{font-size:16pt}</style>
${keys.map(slip).join('\n')}
`
}
