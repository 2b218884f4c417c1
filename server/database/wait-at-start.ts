import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '../observability/log.js'
import type { Settings } from '../process/settings.js'
import { adviceOn, ConnectionError, causeOf, isPassing, isSchemaError, isSqlState } from './failures.js'

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
      const advice = adviceOn(error)?.replace('DATABASE_URL', `DATABASE_URL (${at})`)
      const isRefused = error instanceof ConnectionError && error.advice !== undefined
      if (isRefused || code === '3D000' || code === 'ENOTFOUND') throw new Error(advice)
      if (isSqlState(code) && !isPassing(error)) throw new Error(inDatabase(error, at))
      if (!isPassing(error)) throw error
      const reason = code ?? 'no answer'
      if (performance.now() > end)
        throw new Error(
          `The database that DATABASE_URL names (${at}) has not been ready for a minute (${reason}): check that PostgreSQL runs there and accepts writes.`,
        )
      if (!isLogged)
        log.warn({ database: at, code: reason, seconds: timeout }, 'waiting for the database that DATABASE_URL names')
      isLogged = true
      await sleep(500, undefined, { signal })
    }
  }
}

/** Says what failed in the database, without the text of the error, which can quote values. */
function inDatabase(error: unknown, at: string): string {
  const { code } = causeOf(error)
  if (isSchemaError(error))
    return `The tables of the database that DATABASE_URL names (${at}) aren’t those of this version (${code}): use an empty database, or restore a backup.`
  return `The database that DATABASE_URL names (${at}) can’t be used (${code}): see the log of PostgreSQL.`
}

/** Removes the password from a database URL, wherever the URL has it. */
function withoutSecrets(url: string): string {
  return url.replace(/[?#].*$/s, '').replace(/^(\w+:\/\/[^:@/]*):.*@/s, '$1@')
}
