import { timestampDate } from '@bufbuild/protobuf/wkt'
import { type Command, Option } from 'commander'
import { administering, withSignIn } from '../administration.js'
import { misuse } from '../exit-codes.js'
import { confirmAtServer } from '../terminal/ask.js'
import { jsonOption, printJson, printTable, say, warn } from '../terminal/output.js'

/** Adds `auth-admin keys`. */
export function addSigningKeys(program: Command): void {
  const keys = program.command('keys').description('Keys that sign tokens')

  keys
    .command('list')
    .description('List the keys that verify tokens, the newest first. Private keys are never shown.')
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
States: published (known to verifiers, doesn't sign yet), signing, retiring
(verifies the tokens it signed). Times are in UTC.

Example:
  $ auth-admin keys list`,
    )
    .action(
      administering(async (api, options: { json?: boolean }) => {
        const { keys } = await api.listSigningKeys({})
        const signing = keys.findIndex(({ signs }) => signs)
        const rows = keys.map(({ kid, signTime, expireTime }, place) => ({
          kid,
          state: place === signing ? 'signing' : place < signing ? 'published' : 'retiring',
          signs_at: timestampDate(signTime!),
          ...(expireTime && { verifies_until: timestampDate(expireTime) }),
        }))
        if (options.json) return printJson(rows)
        const cells = rows.map(row => [row.kid, `${row.state} ${when(row)}`])
        printTable(['kid', 'state (UTC)'], cells, 'There are no keys: run `auth-admin install`.')
      }),
    )

  withSignIn(keys.command('rotate'), 'rotateSigningKey')
    .description('Publish a new key that takes over signing. Nobody is logged out.')
    .option('--now', 'sign with it at once: verifiers that hold an older key set refuse new tokens for some minutes')
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
The new key signs once every verifier knows it, 600 seconds after it is
published; the old one verifies until its last token has expired. Use --now only
when waiting is worse than refused tokens.

Example:
  $ auth-admin keys rotate`,
    )
    .action(
      administering(async (api, { now = false, json }: { now?: boolean; json?: boolean }) => {
        const { kid, signTime } = (await api.rotateSigningKey({ now })).key!
        const lead = Math.round((timestampDate(signTime!).getTime() - Date.now()) / 60_000) * 60
        if (now) warn('Verifiers that have not fetched the key set since may refuse new tokens for some minutes.')
        if (json) return printJson({ kid, signs_in_seconds: lead })
        const from = now ? 'from now on' : `from ${minute(timestampDate(signTime!))} (UTC) on`
        say(`Key ${kid} is published and signs ${from}.`)
      }),
    )
  addRetire(keys)
}

/** Adds `auth-admin keys retire`. */
function addRetire(keys: Command): void {
  withSignIn(keys.command('retire'), 'retireSigningKey')
    .description('Drop a key at once, with every token that it signed: for a key that others may hold.')
    .argument('<kid>', 'id of the key, as `keys list` shows it')
    .option('--now', 'needed: everyone whose token it signed has to log in again')
    .addOption(new Option('--confirm <kid>', 'its id, once more; asked for at a terminal'))
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
When it is the key that signs, or the one that is to sign next, a new one takes
over at once. Verifiers that hold an older key set refuse the new key's tokens,
and accept the dropped key's, until they fetch it again: within 5 minutes.

Example:
  $ KID=iPEMZ8dz3Yl1pTtBxhYvYbDlN6CmTkUHzLzwP1zEYDU
  $ auth-admin keys retire $KID --now --confirm $KID`,
    )
    .action(
      administering(async (api, kid: string, options: { now?: boolean; confirm?: string; json?: boolean }) => {
        if (!options.now) misuse('Keys end by themselves after `keys rotate`. To drop one at once, add --now.')
        const sentence = 'Everyone whose token the key signed has to log in again.'
        const confirm = await confirmAtServer(sentence, kid, options)
        const { successor } = await api.retireSigningKey({ kid, confirm })
        if (options.json) return printJson({ kid, successor })
        say(`Key ${kid} is dropped${successor ? `; key ${successor} signs from now on` : ''}.`)
      }),
    )
}

/** Until when a key is in its state, or since when it signs. */
function when({ state, signs_at, verifies_until }: { state: string; signs_at: Date; verifies_until?: Date }): string {
  return state === 'signing'
    ? `since ${minute(signs_at)}`
    : `until ${minute(state === 'published' ? signs_at : verifies_until)}`
}

function minute(time?: Date): string | undefined {
  return time?.toISOString().slice(0, 16).replace('T', ' ')
}
