import type { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Administrators } from '../access/administrator.js'
import type { Unary } from '../call.js'
import type { Settings } from '../settings.js'

/** Tells the settings of this process, secrets masked. */
export function getConfiguration(deps: {
  administrators: Administrators
  settings: Pick<Settings, 'origins'>
}): Unary<(typeof Administration.method)['getConfiguration']> {
  const { administrators, settings } = deps
  return async (_request, call) => {
    await administrators.identify('getConfiguration', call)
    const { origins } = settings
    return { settings: [...origins.settings], unknown: [...origins.unknown] }
  }
}
