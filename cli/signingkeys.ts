import type { Command } from 'commander'
import { fail, misuse } from './failure.js'
import { jsonOption, printJson, printTable, say, warn } from './output.js'
import { withRegistry } from './session.js'

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
    .action(async (options: { json?: boolean }) => {
      const { all, signer } = await withRegistry(async ({ registry: { signingKeys } }) => ({
        all: await signingKeys.all(),
        signer: await signingKeys.signer(),
      }))
      const signing = all.findIndex(({ kid }) => kid === signer)
      const rows = all.map((key, place) => ({
        kid: key.kid,
        state: place === signing ? 'signing' : place < signing ? 'published' : 'retiring',
        signs_at: key.signsAt,
        ...(key.verifiesUntil && { verifies_until: key.verifiesUntil }),
      }))
      if (options.json) return printJson(rows)
      const cells = rows.map(row => [row.kid, `${row.state} ${when(row)}`])
      printTable(['kid', 'state (UTC)'], cells, 'There are no keys: run `auth-admin install`.')
    })

  keys
    .command('rotate')
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
    .action(async (options: { now?: boolean; json?: boolean }) => {
      const { publishLead } = await import('../server/models/signingkey.js')
      const lead = options.now ? 0 : publishLead
      const kid = await withRegistry(async ({ registry, settings, change }) =>
        change(async t => {
          const { tokenTtl } = settings
          const result = (await registry.signingKeys.rotate({ force: true, lead, tokenTtl }, t))!
          return { result, event: { action: 'signing-key.rotate', object: `signing-key:${result}` } }
        }),
      )
      if (options.now) warn('Verifiers that have not fetched the key set since may refuse new tokens for some minutes.')
      if (options.json) return printJson({ kid, signs_in_seconds: lead })
      say(`Key ${kid} is published${lead > 0 ? ` and signs in ${lead / 60} minutes` : ' and signs from now on'}.`)
    })
  addRetire(keys)
}

/** Adds `auth-admin keys retire`. */
function addRetire(keys: Command): void {
  keys
    .command('retire')
    .description('Drop a key at once, with every token that it signed: for a key that others may hold.')
    .argument('<kid>', 'id of the key, as `keys list` shows it')
    .option('--now', 'needed: everyone whose token it signed has to log in again')
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
When it is the key that signs, a new one takes over at once. Verifiers that hold
an older key set refuse the new key's tokens, and accept the dropped key's,
until they fetch it again: within 5 minutes.

Example:
  $ auth-admin keys retire iPEMZ8dz3Yl1pTtBxhYvYbDlN6CmTkUHzLzwP1zEYDU --now`,
    )
    .action(async (kid: string, options: { now?: boolean; json?: boolean }) => {
      if (!options.now) misuse('Keys end by themselves after `keys rotate`. To drop one at once, add --now.')
      const retired = await withRegistry(async ({ registry, change }) =>
        change(async t => {
          const result = await registry.signingKeys.retire(kid, t)
          const event = { action: 'signing-key.retire', object: `signing-key:${kid}` } as const
          return { result, ...(result && { event }) }
        }),
      )
      if (!retired) fail(`There is no key ${kid}: see \`auth-admin keys list\`.`)
      if (options.json) return printJson({ kid, ...retired })
      say(`Key ${kid} is dropped${retired.successor ? `; key ${retired.successor} signs from now on` : ''}.`)
    })
}

/** Until when a key is in its state, or since when it signs. */
function when({ state, signs_at, verifies_until }: { state: string; signs_at: Date; verifies_until?: Date }): string {
  const minute = (time?: Date) => time?.toISOString().slice(0, 16).replace('T', ' ')
  return state === 'signing'
    ? `since ${minute(signs_at)}`
    : `until ${minute(state === 'published' ? signs_at : verifies_until)}`
}
