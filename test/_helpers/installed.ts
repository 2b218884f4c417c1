/** Registries that are installed once and copied for most services under test: an installation takes a tenth of a second. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createGateway } from '../../gateway/http.js'
import { createLog } from '../../server/observability/log.js'
import { readSettings } from '../../server/process/settings.js'
import { startService } from '../../server/service.js'
import { type Clock, createStoppedClock, stopClock } from './clock.js'
import { clocked, createDatabase, freshDatabase, installed, type Teardown } from './database.js'
import { password } from './secrets.js'

/** Settings of services under test that an installation depends on. */
const rests = {
  AUTH_MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
  AUTH_ISSUER: 'http://auth.test',
  AUTH_BCRYPT_COST: '4',
  AUTH_ADMIN_PASSWORD: password,
}

/** Settings of services under test: on any free port, without metrics and Administration. */
export const ownSettings = {
  ...rests,
  AUTH_GRPC_ADDRESS: '127.0.0.1:0',
  AUTH_HTTP_ADDRESS: '127.0.0.1:0',
  AUTH_METRICS_ADDRESS: 'off',
  AUTH_ADMIN_ADDRESS: 'off',
}

/** URL of a database for a service with these settings, dropped when the test ends; installed if the settings allow it. */
export function databaseFor(t: Teardown, env: Readonly<Record<string, string>> = {}): Promise<string> {
  const isOwn = Object.entries(rests).every(([name, value]) => (env[name] ?? value) === value)
  return freshDatabase(t, isOwn ? { from: installed } : {})
}

/** Installs the registries from which others are copied, as a first start does: one of them on a stopped clock. */
export async function makeInstalled(): Promise<void> {
  await startOnce((await createDatabase({ name: installed })).url)
  const { url } = await createDatabase({ from: 'template0', name: clocked })
  await stopClock(url)
  const ends: (() => Promise<void>)[] = []
  await startOnce(url, await createStoppedClock({ teardown: end => void ends.push(end) }, url))
  for (const end of ends) await end()
}

async function startOnce(url: string, clock?: Clock): Promise<void> {
  const dataDir = await mkdtemp(join(tmpdir(), 'auth-test-'))
  const settings = readSettings({ ...ownSettings, DATABASE_URL: url, AUTH_DATA_DIR: dataDir })
  const service = await startService(settings, createLog('silent'), createGateway, clock && { now: clock.now })
  await service.stop()
  await rm(dataDir, { recursive: true, force: true })
}
