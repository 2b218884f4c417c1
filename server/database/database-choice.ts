import type { Log } from '../observability/log.js'
import type { Settings } from '../process/settings.js'

/** A database to open. */
export interface Source {
  /** Current URL: an embedded database may restart at another port, and the password in the file of a URL rotates. */
  readonly url: string
  readonly masterKey: Buffer
  /** Releases the database. An embedded database stops when no other process uses it. */
  stop(): Promise<void>
}

/**
 * Returns the database of `DATABASE_URL`, or the embedded database of the data folder, which it starts unless it is running.
 * Calls `onLaunch` when it launches the embedded database, and gives up the start, with an error, on `signal`.
 */
export async function resolveDatabase(
  { databaseUrl, currentDatabaseUrl, masterKey, dataDir }: Settings,
  log: Log,
  options: { readonly onLaunch?: () => void; readonly signal?: AbortSignal } = {},
): Promise<Source> {
  if (databaseUrl)
    return {
      get url() {
        return currentDatabaseUrl()!
      },
      masterKey: masterKey!,
      stop: async () => {},
    }
  // Loaded only for an embedded database.
  const { startEmbedded } = await import('../embedded/start.js')
  return startEmbedded({ dataDir, log, masterKey, ...options })
}
