/** A registry that is installed once, of which most services under test get a copy: to install it anew costs each a tenth of a second. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createLog } from '../../server/log.js'
import { startService } from '../../server/service.js'
import { readSettings } from '../../server/settings.js'
import { createDatabase, freshDatabase, installed, type Teardown } from './database.js'
import { password } from './secrets.js'

/** Settings of services under test that an installation rests on. */
const rests = {
  AUTH_MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
  AUTH_ISSUER: 'http://auth.test',
  AUTH_BCRYPT_COST: '4',
  AUTH_ADMIN_PASSWORD: password,
}

/** Settings of services under test: any port, and nobody but clients and callers. */
export const ownSettings = {
  ...rests,
  AUTH_GRPC_ADDRESS: '127.0.0.1:0',
  AUTH_HTTP_ADDRESS: '127.0.0.1:0',
  AUTH_METRICS_ADDRESS: 'off',
  AUTH_ADMIN_ADDRESS: 'off',
}

/** URL of a database for a service with these settings, dropped when the test ends: installed, where that is the same for all. */
export function databaseFor(t: Teardown, env: Readonly<Record<string, string>>): Promise<string> {
  const isOwn = Object.entries(rests).every(([name, value]) => (env[name] ?? value) === value)
  return freshDatabase(t, isOwn ? { from: installed } : {})
}

/** Installs the registry that the others are copies of, as a first start does. */
export async function makeInstalled(): Promise<void> {
  const dataDir = await mkdtemp(join(tmpdir(), 'auth-test-'))
  const { url } = await createDatabase({ name: installed })
  const settings = readSettings({ ...ownSettings, DATABASE_URL: url, AUTH_DATA_DIR: dataDir })
  const service = await startService(settings, createLog('silent'))
  await service.stop()
  await rm(dataDir, { recursive: true, force: true })
}
