import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '../observability/log.js'
import type { Settings } from '../process/settings.js'
import { causeOf, isPassing } from './failures.js'

/** A database to open. */
export interface Source {
  /** Where it is now. An embedded database may return at another port. */
  readonly url: string
  readonly masterKey: Buffer
  /** Releases it. An embedded database stops when no other process uses it. */
  release(): Promise<void>
}

/**
 * Finds the database that `DATABASE_URL` names, or starts the embedded one of the data folder unless it runs, and calls
 * `onLaunch` when that is launched.
 */
export async function resolveDatabase(
  { databaseUrl, masterKey, dataDir }: Settings,
  log: Log,
  onLaunch?: () => void,
): Promise<Source> {
  if (databaseUrl) return { url: databaseUrl, masterKey: masterKey!, release: async () => {} }
  // Only an embedded database needs these.
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

/** Seconds that a start waits for the database. */
const timeout = 60

/**
 * Does the first work on the database of `DATABASE_URL` as soon as it answers. Throws an Error that says what to do: after a
 * minute without an answer, and at once if waiting doesn't help, as with a wrong user or name.
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
      if (code === '3D000') throw new Error(`The database that DATABASE_URL names doesn’t exist (${at}): create it.`)
      if (code === 'ENOTFOUND') throw new Error(`The host that DATABASE_URL names doesn’t exist (${at}).`)
      if (!isPassing(error)) throw error
      const reason = code ?? 'no answer'
      if (performance.now() > end)
        throw new Error(
          `The database that DATABASE_URL names (${at}) has not been ready for a minute (${reason}): check that PostgreSQL runs there and accepts writes.`,
        )
      if (!told)
        log.warn({ database: at, code: reason, seconds: timeout }, 'waiting for the database that DATABASE_URL names')
      told = true
      await sleep(500, undefined, { ...(signal && { signal }) })
    }
  }
}

/** A database URL without its password, in whatever part that is. */
function withoutSecrets(url: string): string {
  return url.replace(/[?#].*$/s, '').replace(/^(\w+:\/\/[^:@/]*):.*@/s, '$1@')
}

/** The file that holds the administrator's password if it was generated. */
export function adminPasswordFile(dataDir: string): string {
  return join(dataDir, 'initial-admin-password')
}
