import { timestampDate } from '@bufbuild/protobuf/wkt'
import type { SigningKey } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Command } from '../command.js'
import { misuse } from '../exit-codes.js'
import { confirmAtServer } from '../terminal/ask.js'
import { printJson, say } from '../terminal/output.js'
import { type List, type ListOptions, pagesOf, printPages } from '../terminal/pages.js'

/** Adds `auth-admin keys`. */
export function addSigningKeys(program: Command): void {
  const keys = program.command('keys').description('Manage the keys that sign tokens.')

  keys
    .command('list')
    .pages(keyList)
    .description('List the keys that verify tokens, newest first. Private keys are never shown.')
    .remarks(`
States: published (known to verifiers, doesn't sign yet), signing, retiring
(verifies the tokens it signed).`)
    .examples('keys list')
    .administers(async (api, options: ListOptions) => {
      const { keys } = await api.listSigningKeys({})
      await printPages(keyList, options, pagesOf(keyList, keys))
    })

  keys
    .command('retire')
    .signIn('retireSigningKey')
    .description('Drop a leaked key at once, with all tokens that it signed.')
    .argument('<kid>', 'id of the key, as `keys list` shows it')
    .option('--now', 'required; users whose tokens the key signed have to sign in again')
    .option('--confirm <kid>', 'the id of the key again; a terminal prompts for it')
    .json()
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
    .administers(async (api, kid: string, options: { now?: boolean; confirm?: string; json?: boolean }) => {
      if (!options.now)
        misuse('A key expires after `auth-admin api RotateSigningKey`. To drop one at once, pass --now.')
      const sentence = 'All users whose tokens the key signed have to sign in again.'
      const validate = (confirm: string) => api.retireSigningKey({ kid, confirm, validateOnly: true })
      const confirm = await confirmAtServer(sentence, kid, options, validate)
      const { successor } = await api.retireSigningKey({ kid, confirm })
      if (options.json) return printJson({ kid, successor })
      say(`Key ${kid} is dropped${successor ? `; key ${successor} signs from now on` : ''}.`)
    })
}

function toOutput({ kid, signs, signTime, expireTime }: SigningKey) {
  const from = timestampDate(signTime!)
  return {
    kid,
    state: signs ? 'signing' : from.getTime() > Date.now() ? 'published' : 'retiring',
    signTime: from,
    expireTime: expireTime && timestampDate(expireTime),
  }
}

const keyList: List<SigningKey, 'keys'> = {
  name: 'keys',
  fields: ['kid', 'state', 'signTime', 'expireTime'],
  toOutput,
  head: { titles: ['state', 'signs from', 'verifies until', 'kid'] },
  toCells(key) {
    const { kid, state, signTime, expireTime } = toOutput(key)
    return [state, signTime, expireTime, kid]
  },
  empty: 'There are no keys: run `auth-admin install`.',
}
