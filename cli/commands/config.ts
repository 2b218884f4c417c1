import type { GlobalOptions } from '../administration.js'
import type { Command } from '../command.js'
import { contextOf } from '../contexts.js'
import { inTerminalLanguage } from '../terminal/language.js'
import { printJson, printTable, warn } from '../terminal/output.js'

/** Adds `auth-admin config`. */
export function addConfig(program: Command): void {
  program
    .command('config')
    .description('Show the settings: value, origin, default. For secrets, it shows only whether they are set.')
    .json()
    .remarks(`
With a context, it shows the settings of the server. Otherwise it reads this
environment as a process of the service would, and needs no database. It also
names unknown variables that begin with AUTH_.`)
    .examples('config')
    .administers(async (api, options: GlobalOptions) => {
      const { settings, unknown } = !(await contextOf(options)) ? await describeHere() : await api.getConfiguration({})
      const rows = settings.map(({ name, value, origin, default: fallback, secret }) => {
        return { name, value, origin, default: fallback, secret }
      })
      if (options.json) return printJson({ settings: rows, unknown })
      const cells = rows.map(row => [
        row.name,
        row.value,
        inTerminalLanguage(row.origin),
        row.origin === 'default' ? '' : row.default,
      ])
      printTable({ titles: ['setting', 'value', 'origin', 'default'] }, cells, 'There are no settings.')
      for (const name of unknown) warn(`${name} is not a setting.`)
    })
}

async function describeHere() {
  const { describeSettings } = await import('../../server/process/settings.js')
  return describeSettings(process.env)
}
