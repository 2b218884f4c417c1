import type { Log } from '../observability/log.js'
import type { Settings } from '../process/settings.js'

/** A database to open. */
export interface Source {
  /** Current URL. An embedded database may restart at another port. */
  readonly url: string
  readonly masterKey: Buffer
  /** Releases the database. An embedded database stops when no other process uses it. */
  release(): Promise<void>
}

/**
 * Returns the database of `DATABASE_URL`, or the embedded database of the data folder, which it starts unless it is running.
 * Calls `onLaunch` when it launches the embedded database.
 */
export async function resolveDatabase(
  { databaseUrl, masterKey, dataDir }: Settings,
  log: Log,
  onLaunch?: () => void,
): Promise<Source> {
  if (databaseUrl) return { url: databaseUrl, masterKey: masterKey!, release: async () => {} }
  // Loaded only for an embedded database.
  const [{ embeddedSecrets }, { startEmbedded }] = await Promise.all([
    import('../embedded/secrets.js'),
    import('../embedded/start.js'),
  ])
  const secrets = await embeddedSecrets(dataDir)
  const embedded = await startEmbedded({ dataDir, log, onLaunch })
  return {
    get url() {
      return embedded.url
    },
    masterKey: masterKey ?? secrets.masterKey,
    release: embedded.stop,
  }
}
