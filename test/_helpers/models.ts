/** The models on a separate database that no service uses. */
import { type Database, openDatabase, type Transaction } from '../../server/database/database.js'
import type { AuditEvent } from '../../server/models/audit.js'
import { createStoredKeys } from '../../server/models/data-key.js'
import { defineModels, type Models } from '../../server/models/index.js'
import { attributesOfForm } from '../../server/registration/form.js'
import type { Role } from '../../server/rules/roles.js'
import { freshDatabase, type Teardown } from './database.js'
import { waitFor } from './wait.js'
import './turns.js'

/** Opens models that close with the test, on a new database unless one is given. */
export async function openModels(t: Teardown, url?: string): Promise<Models> {
  const database = openDatabase(url ?? (await freshDatabase(t)))
  t.teardown(() => database.close())
  const models = defineModels(database, createStoredKeys(database, Buffer.alloc(32, 7)))
  await database.transact(async transaction => {
    await models.dataKeys.install(transaction)
    await models.audit.install(transaction)
  })
  return models
}

/** Appends events, a thousand with each statement, and seals them. */
export async function appendMany(
  { database, audit }: Pick<Models, 'database' | 'audit'>,
  events: readonly AuditEvent[],
): Promise<void> {
  const text = 'SELECT audit_append(event) FROM unnest($1::jsonb[]) event'
  const stamped = events.map(event => audit.stamp(event))
  // A statement with all may take longer than its time limit on a busy machine.
  for (let at = 0; at < stamped.length; at += 1000) await database.run({ text, values: [stamped.slice(at, at + 1000)] })
  // Another process may be sealing.
  while ((await audit.backlog()).staged > 0) await audit.seal()
}

/** Waits until every event is sealed; returns the result of `verify`. */
export const sealed = ({ registry: { audit } }: { readonly registry: Pick<Models, 'audit'> }) =>
  waitFor(async () => {
    const found = await audit.verify()
    return found.staged === 0 && found
  })

/** Changes the tokens of a user, for example by a suspension: `work` and the event that it needs. */
export function changeTokens(
  { database, audit }: Pick<Models, 'database' | 'audit'>,
  id: number,
  work: (t: Transaction) => Promise<unknown>,
): Promise<void> {
  return database.transact(async t => {
    await work(t)
    await audit.append({ action: 'user.suspend', outcome: 'ok', actor: 'test', subject_id: id }, t)
  })
}

/** Suspends a user, as an administrator does. */
export function suspend(models: Pick<Models, 'database' | 'audit' | 'users'>, id: number): Promise<void> {
  return changeTokens(models, id, t => models.users.suspend(id, t))
}

/** Registers a user of that name, and returns its id. */
export async function addUser(
  { database, userBatches }: Models,
  name: string,
  role: Role = 'ROLE_CLIENT',
  email?: string,
) {
  const form = attributesOfForm({ username: name, nickname: name, state: 'SP', city: 'Bauru', email })
  const rest = { passwordHash: '', securityQuestion: null, termsOfUsage: true, role }
  const [id] = await database.transact(t => userBatches.add([{ ...form, ...rest }], t))
  return id!
}

/** The number of statements LIKE a pattern that wait for a lock in a database. */
export async function lockWaiters({ run }: Database, like = '%'): Promise<number> {
  const text = `SELECT FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1`
  return (await run({ text, values: [like] })).length
}

/** Whether a session waits for a lock in a database. */
export async function waits(database: Database): Promise<boolean> {
  return (await lockWaiters(database)) > 0
}

/** Whether work ends, or waits for a lock of another session. */
export async function endsOrWaits(database: Database, work: Promise<unknown>): Promise<'ends' | 'waits'> {
  let ended = false
  const end = work.finally(() => {
    ended = true
  })
  await Promise.race([end, waitFor(async () => ended || (await waits(database)))])
  return ended ? 'ends' : 'waits'
}
