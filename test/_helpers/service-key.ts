import { newServiceKey } from '../../server/models/service.js'
import type { ScopeName } from '../../server/rules/scopes.js'
import type { TestService } from './service.js'

let last = 0

/** The key of a new service with scopes, valid for two days. */
export async function serviceKey(
  { registry }: Pick<TestService, 'registry'>,
  scopes: ScopeName[],
  name?: string,
): Promise<string> {
  const key = newServiceKey()
  await registry.database.transact(async t => {
    const row = await registry.services.add({ name: name ?? `service-${++last}`, scopes }, t)
    await registry.services.addKey(row!.id, key, new Date(Date.now() + 172_800_000), t)
  })
  return key
}
