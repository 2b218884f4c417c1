// `auth-admin keys`: the keys of the registry itself. The verbs that change them are rows of verbs.ts.
import { timestampDate } from '@bufbuild/protobuf/wkt'
import type { ListSigningKeysResponse } from '../../proto/gen/auth/v1/administration_pb.js'
import type { GlobalOptions } from '../administration.js'
import type { Command } from '../command.js'
import { inTerminalLanguage } from '../terminal/language.js'
import { printJson, printTable } from '../terminal/output.js'

/** Adds `auth-admin keys`. */
export function addKeys(program: Command): void {
  const keys = program.command('keys').description('Manage the keys that sign and seal tokens.')

  keys
    .command('list')
    .description('List the keys, those that sign or seal now first.')
    .json()
    .examples('keys list')
    .administers(async (api, { json }: GlobalOptions) => {
      const rows = rowsOf(await api.listSigningKeys({}))
      if (json) return printJson({ keys: rows })
      const cells = rows.map(({ kid, of, signs, from, expireTime }) => {
        return [kid, inTerminalLanguage(of), signs, from, expireTime]
      })
      printTable({ titles: ['id', 'of', 'in use', 'since', 'until'], whole: ['id'] }, cells, 'There are no keys.')
    })
}

function rowsOf({ keys, sealingKeys, idTokenKeys }: ListSigningKeysResponse) {
  const signing = (of: string) => (key: ListSigningKeysResponse['keys'][number] | (typeof idTokenKeys)[number]) => ({
    kid: key.kid,
    of,
    signs: key.signs,
    from: timestampDate(key.signTime!),
    expireTime: 'expireTime' in key && key.expireTime ? timestampDate(key.expireTime) : undefined,
  })
  const sealing = sealingKeys.map(({ kid, createTime }, index) => ({
    ...{ kid, of: 'sealed tokens', signs: index === 0, from: timestampDate(createTime!) },
    expireTime: undefined,
  }))
  return [...keys.map(signing('tokens')), ...sealing, ...idTokenKeys.map(signing('ID tokens'))]
}
