// One-time keys for a class: as a table, as CSV, or as a page to print and cut.
import { timestampDate } from '@bufbuild/protobuf/wkt'
import { Option } from 'commander'
import type { IssuedKey, SkippedUser } from '../../../proto/gen/auth/v1/administration_pb.js'
import { mostUsersAtOnce } from '../../../server/rules/sizes.js'
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

/** Adds `auth-admin users issue-keys`. */
export function addIssueKeys(users: Command): void {
  users
    .command('issue-keys')
    .signIn('issueKeys')
    .description('Issue a key to each of several users, with which it signs in once and sets a password of its own.')
    .argument('[file]', 'CSV with a column username or id')
    .option('--organization <organization>', 'the active ROLE_CLIENT users of this organization', readText)
    .option('--hours <number>', 'hours for which a key is valid (default: 24)', readNumber(1))
    .addOption(
      new Option(
        '--output <file>',
        'file to write, which only you can read: .csv, or .html to print and cut',
      ).conflicts('json'),
    )
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
      const references = file === undefined ? [] : await readReferences(file)
      const write = output === undefined ? undefined : await openOutput(output, format)
      const { keys, skipped, expireTime, failure } = await issue(api, options, references)
      if (options.json) {
        const rows = keys.map(({ user, username, nickname, key }) => ({ id: user, username, nickname, key }))
        const without = skipped.map(({ user, reason }) => ({ user, reason }))
        printJson({ keys: rows, skipped: without, expireTime })
      } else {
        if (write) await write(keys, expireTime)
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
      if (failure) throw failure
      if (skipped.length > 0) end(6)
    })
}

/** Issues the keys, call by call. Keys of earlier calls are returned with the failure of a later one: nothing else has them. */
async function issue(api: Api, { organization, hours = 0 }: Options, references: readonly string[]) {
  const all = { keys: [] as IssuedKey[], skipped: [] as SkippedUser[], expireTime: new Date() }
  let pageToken = ''
  do {
    const users = references.slice(all.keys.length + all.skipped.length).slice(0, mostUsersAtOnce)
    const request = { ...(organization === undefined ? { users } : { organization, pageToken }), hours }
    const answer = await api.issueKeys(request).catch((failure: unknown) => {
      if (all.keys.length === 0) throw failure
      return { failure }
    })
    if ('failure' in answer) return { ...all, ...answer }
    all.keys.push(...answer.keys)
    all.skipped.push(...answer.skipped)
    all.expireTime = timestampDate(answer.expireTime!)
    pageToken = answer.nextPageToken
  } while (pageToken !== '' || all.keys.length + all.skipped.length < references.length)
  return { ...all, failure: undefined }
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

/** Opens the file, before a key is issued that it couldn't keep. */
async function openOutput(path: string, format: 'csv' | 'html') {
  if (format === 'csv') {
    const sink = await openSink(path, { format, columns: ['nickname', 'username', 'key'], cells: 'spreadsheet' })
    return async (keys: readonly IssuedKey[]) => {
      await sink.write(keys.map(({ nickname, username, key }) => ({ nickname, username, key })))
      await sink.close()
    }
  }
  const { openPrivateFile } = await import('../../../server/process/private-file.js')
  const page = await openPrivateFile(path)
  return async (keys: readonly IssuedKey[], expireTime: Date) => {
    page.stream.write(pageOf(keys, expireTime))
    await page.commit()
  }
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
