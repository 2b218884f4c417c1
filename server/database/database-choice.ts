import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '../observability/log.js'
import type { Settings } from '../process/settings.js'
import { causeOf, isPassing } from './failures.js'

/** A database that is there to be opened. */
export interface Source {
  /** Where it is now: an embedded one may come back at another port. */
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
  const embedded = await startEmbedded({ dataDir, log, ...(onLaunch && { onLaunch }) })
  return {
    get url() {
      return embedded.url
    },
    masterKey: masterKey ?? secrets.masterKey,
    release: embedded.stop,
  }
}

/** Seconds that a start waits for a database that isn't up yet. */
const timeout = 60

/**
 * Does the first work on the database of `DATABASE_URL` as soon as that answers. Throws an Error that says what to do when it hasn't within a minute,
 * and at once when waiting doesn't help: it refuses the user, or a name is wrong.
 */
export async function awaitDatabase<T>(
  work: () => Promise<T>,
  { databaseUrl = '' }: Pick<Settings, 'databaseUrl'>,
  log: Log,
  signal?: AbortSignal,
): Promise<T> {
  const at = withoutSecrets(databaseUrl)
  const end = performance.now() + timeout * 1000
  for (let told = false; ; ) {
    try {
      const result = await work()
      if (told) log.info({ database: at }, 'the database answers')
      return result
    } catch (error) {
      const { code } = causeOf(error)
      if (/^28/.test(String(code)))
        throw new Error(`The database refuses the user or password of DATABASE_URL (${at}).`)
      if (code === '3D000') throw new Error(`There is no such database as DATABASE_URL names (${at}): create it.`)
      if (code === 'ENOTFOUND') throw new Error(`There is no such host as DATABASE_URL names (${at}).`)
      if (!isPassing(error)) throw error
      const reason = code ?? 'no answer'
      if (performance.now() > end)
        throw new Error(
          `The database that DATABASE_URL names (${at}) has not been ready for a minute (${reason}): see that PostgreSQL runs there and takes writes.`,
        )
      if (!told)
        log.warn({ database: at, code: reason, seconds: timeout }, 'waiting for the database that DATABASE_URL names')
      told = true
      await sleep(500, undefined, { ...(signal && { signal }) })
    }
  }
}

/** A URL of a database without the password, wherever that stands in it. */
function withoutSecrets(url: string): string {
  return url.replace(/[?#].*$/s, '').replace(/^(\w+:\/\/[^:@/]*):.*@/s, '$1@')
}

/** File that holds the administrator's password when a random one was made. */
export function adminPasswordFile(dataDir: string): string {
  return join(dataDir, 'initial-admin-password')
}
