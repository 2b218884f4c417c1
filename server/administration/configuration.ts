import type { Settings } from '../process/settings.js'
import type { Handler } from './context.js'

/** Returns the settings of this process, with secrets masked. */
export function getConfiguration(deps: { settings: Pick<Settings, 'origins'> }): Handler<'getConfiguration'> {
  const { settings } = deps
  return async _request => {
    const { origins } = settings
    return { settings: [...origins.settings], unknown: [...origins.unknown] }
  }
}
