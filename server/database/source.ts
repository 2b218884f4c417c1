import { join } from 'node:path'
import type { Log } from '../log.js'
import type { Settings } from '../settings.js'

/** A database that is there to be opened. */
export interface Source {
  readonly url: string
  readonly masterKey: Buffer
  /** Leaves it; an embedded one that nobody else uses stops. */
  release(): Promise<void>
}

/**
 * Finds the database that `DATABASE_URL` names, or starts the embedded one of the data folder unless it runs. Once that
 * is launched, `onLaunch` is called.
 */
export async function resolveDatabase(
  { databaseUrl, masterKey, dataDir }: Settings,
  log: Log,
  onLaunch?: () => void,
): Promise<Source> {
  if (databaseUrl) return { url: databaseUrl, masterKey: masterKey!, release: async () => {} }
  // Loaded only where a database is embedded.
  const [{ embeddedSecrets }, { startEmbedded }] = await Promise.all([
    import('../embedded/secrets.js'),
    import('../embedded/start.js'),
  ])
  const secrets = await embeddedSecrets(dataDir)
  const { url, stop } = await startEmbedded({ dataDir, log, ...(onLaunch && { onLaunch }) })
  return { url, masterKey: masterKey ?? secrets.masterKey, release: stop }
}

/** File that holds the administrator's password when a random one was made. */
export function adminPasswordFile(dataDir: string): string {
  return join(dataDir, 'initial-admin-password')
}
