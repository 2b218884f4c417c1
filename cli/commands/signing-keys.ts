import { timestampDate } from '@bufbuild/protobuf/wkt'
import { type Command, Option } from 'commander'
import { type Api, administering, withSignIn } from '../administration.js'
import { fail, misuse } from '../exit-codes.js'
import { confirm, confirmAtServer, yesOption } from '../terminal/ask.js'
import { jsonOption, printFields, printJson, printTable, say, warn } from '../terminal/output.js'

/** Adds `auth-admin keys`. */
export function addSigningKeys(program: Command): void {
  const keys = program.command('keys').description('Keys that sign tokens')

  keys
    .command('list')
    .description('List the keys that verify tokens, newest first. Private keys are never shown.')
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
        const rows = await readKeys(api)
        if (options.json) return printJson(rows)
        const cells = rows.map(row => [row.kid, `${row.state} ${when(row)}`])
        printTable(['kid', 'state (UTC)'], cells, 'There are no keys: run `auth-admin install`.')
      }),
    )

  keys
    .command('show')
    .description('Show a key that verifies tokens, without its private key.')
    .argument('<kid>', 'id of the key, as `keys list` shows it')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin keys show iPEMZ8dz3Yl1pTtBxhYvYbDlN6CmTkUHzLzwP1zEYDU')
    .action(
      administering(async (api, kid: string, options: { json?: boolean }) => {
        const key = (await readKeys(api)).find(each => each.kid === kid) ?? fail(`There is no key ${kid}.`, 3)
        if (options.json) printJson(key)
        else printFields(key)
      }),
    )

  withSignIn(keys.command('rotate'), 'rotateSigningKey')
    .description('Publish a new signing key. All users stay signed in.')
    .option('--now', 'sign with the key at once; verifiers with an older key set refuse new tokens for some minutes')
    .addOption(yesOption())
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
The new key starts to sign 600 seconds after it is published, when all verifiers
know it. The old key verifies until its last token expires. Use --now only if
you can't wait: verifiers may then refuse new tokens.

Example:
  $ auth-admin keys rotate`,
    )
    .action(
      administering(async (api, { now = false, ...options }: { now?: boolean; yes?: boolean; json?: boolean }) => {
        const { json } = options
        if (now) await confirm('Verifiers may refuse new tokens for some minutes. Rotate at once?', options)
        const { kid, signTime } = (await api.rotateSigningKey({ now })).key!
        const lead = Math.round((timestampDate(signTime!).getTime() - Date.now()) / 60_000) * 60
        if (now) warn('Verifiers with an older key set may refuse new tokens for some minutes.')
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
    .description('Drop a leaked key at once, with all tokens that it signed.')
    .argument('<kid>', 'id of the key, as `keys list` shows it')
    .option('--now', 'required; users whose tokens the key signed have to sign in again')
    .addOption(new Option('--confirm <kid>', 'the id of the key again; a terminal prompts for it'))
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
If it is the key that signs now or next, a new one replaces it at once. Until
verifiers fetch the key set again, within 5 minutes, they refuse tokens of the
new key, and accept those of the dropped key.

Example:
  $ KID=iPEMZ8dz3Yl1pTtBxhYvYbDlN6CmTkUHzLzwP1zEYDU
  $ auth-admin keys retire $KID --now --confirm $KID`,
    )
    .action(
      administering(async (api, kid: string, options: { now?: boolean; confirm?: string; json?: boolean }) => {
        if (!options.now) misuse('Keys expire after `keys rotate`. To drop one at once, pass --now.')
        const sentence = 'All users whose tokens the key signed have to sign in again.'
        const validate = (confirm: string) => api.retireSigningKey({ kid, confirm, validateOnly: true })
        const confirm = await confirmAtServer(sentence, kid, options, validate)
        const { successor } = await api.retireSigningKey({ kid, confirm })
        if (options.json) return printJson({ kid, successor })
        say(`Key ${kid} is dropped${successor ? `; key ${successor} signs from now on` : ''}.`)
      }),
    )
}

/** All keys, the newest first, each with its state. */
async function readKeys(api: Api) {
  const { keys } = await api.listSigningKeys({})
  const signing = keys.findIndex(({ signs }) => signs)
  return keys.map(({ kid, signTime, expireTime }, place) => ({
    kid,
    state: place === signing ? 'signing' : place < signing ? 'published' : 'retiring',
    signs_at: timestampDate(signTime!),
    ...(expireTime && { verifies_until: timestampDate(expireTime) }),
  }))
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
