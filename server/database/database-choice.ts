import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '../observability/log.js'
import type { Settings } from '../process/settings.js'
import { causeOf, isPassing } from './failures.js'

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
  const embedded = await startEmbedded({ dataDir, log, ...(onLaunch && { onLaunch }) })
  return {
    get url() {
      return embedded.url
    },
    masterKey: masterKey ?? secrets.masterKey,
    release: embedded.stop,
  }
}

/** Maximum seconds that startup waits for the database. */
const timeout = 60

/**
 * Runs `work`, and repeats it until the database of `DATABASE_URL` is available. Throws an Error that says what to do: after a
 * minute, or at once if waiting can't help, for example with a wrong user or database name.
 */
export async function awaitDatabase<T>(
  work: () => Promise<T>,
  { databaseUrl = '' }: Pick<Settings, 'databaseUrl'>,
  log: Log,
  signal?: AbortSignal,
): Promise<T> {
  const at = withoutSecrets(databaseUrl)
  const end = performance.now() + timeout * 1000
  for (let isLogged = false; ; ) {
    try {
      const result = await work()
      if (isLogged) log.info({ database: at }, 'the database answers')
      return result
    } catch (error) {
      const { code } = causeOf(error)
      if (/^28/.test(String(code)))
        throw new Error(`The database refuses the user or password of DATABASE_URL (${at}).`)
      if (code === '3D000') throw new Error(`The database that DATABASE_URL names doesn’t exist (${at}): create it.`)
      if (code === 'ENOTFOUND') throw new Error(`The host that DATABASE_URL names doesn’t exist (${at}).`)
      if (!isPassing(error)) throw error
      const reason = code ?? 'no answer'
      if (performance.now() > end)
        throw new Error(
          `The database that DATABASE_URL names (${at}) has not been ready for a minute (${reason}): check that PostgreSQL runs there and accepts writes.`,
        )
      if (!isLogged)
        log.warn({ database: at, code: reason, seconds: timeout }, 'waiting for the database that DATABASE_URL names')
      isLogged = true
      await sleep(500, undefined, { ...(signal && { signal }) })
    }
  }
}

/** Removes the password from a database URL, wherever the URL has it. */
function withoutSecrets(url: string): string {
  return url.replace(/[?#].*$/s, '').replace(/^(\w+:\/\/[^:@/]*):.*@/s, '$1@')
}

/**
 * Returns the paths at which a registry can have the generated password of its first administrator: the usual one, and its own
 * one, where another registry took the usual one first.
 */
export function adminPasswordFiles(dataDir: string, registry: string): [usual: string, own: string] {
  const usual = join(dataDir, 'initial-admin-password')
  return [usual, `${usual}-${registry}`]
}
