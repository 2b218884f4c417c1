// What imports created, as their events in the audit log name it, and what has touched it since.
import type { Database, Statement, Transaction } from '../database/connection.js'
import { readCreated } from '../rules/id-ranges.js'

/** A place among the records that an import created: behind a record of an event. */
export interface ImportedPlace {
  readonly event: number
  readonly id: number
}

/** The latest event that touched a record. */
export interface Touch {
  readonly action: string
  readonly at: Date
}

/** Reads what imports created. */
export interface ImportedRecords {
  /**
   * Whether the audit log has all events since a time, sealed ones first: `unsealed` while events of an import aren't in its
   * chain, and `deleted` once retention has deleted events.
   */
  log(importId: number, since: Date): Promise<'whole' | 'unsealed' | 'deleted'>
  /** Returns at most `limit` ids of records that an import created, by event and id, and the place behind them. */
  created(
    importId: number,
    after: ImportedPlace,
    limit: number,
  ): Promise<{ ids: number[]; next: ImportedPlace | undefined }>
  /** Returns what last touched each of these users after a time, by id: by its event, or by that of another import. */
  touchedUsers(importId: number, since: Date, ids: readonly number[], t: Transaction): Promise<Map<number, Touch>>
  /** The same for organizations. */
  touchedOrganizations(
    importId: number,
    since: Date,
    ids: readonly number[],
    t: Transaction,
  ): Promise<Map<number, Touch>>
  /** Returns those of these users whose provider keys activated members of their organizations. */
  usedProviders(ids: readonly number[], t: Transaction): Promise<Set<number>>
  /** Returns those of these organizations for which an activation key is in the mail. */
  mailedOrganizations(ids: readonly number[], t: Transaction): Promise<Set<number>>
}

const imported = `action IN ('organization.import', 'user.import') AND split_part(object, ' ', 1) = $1`

const log: Statement = {
  name: 'imported-log',
  text: `SELECT EXISTS (SELECT FROM audit_staged WHERE ${imported}) AS unsealed,
    (SELECT id > 0 FROM audit_checkpoint) AND (SELECT at FROM audit_events ORDER BY id LIMIT 1) > $2 IS NOT FALSE AS deleted`,
}

const created: Statement = {
  name: 'imported-created',
  text: `SELECT id::float8 AS event, object FROM audit_events WHERE ${imported} AND id >= $2 AND object LIKE '% created:%'
    ORDER BY id LIMIT 1`,
}

/** What only shows a user. */
const reads = `('user.export', 'user.show-key')`

/** The latest event of each given record, by the conditions that select the events of one. */
const touched = (name: string, own: string, action: string): Statement => {
  const either = [
    own,
    `action = '${action}' AND imported_ids(object) @> given.id::bigint AND split_part(object, ' ', 1) <> $2`,
  ]
  const of = (table: string, order: string) =>
    either.map(
      condition =>
        `(SELECT action, at FROM ${table} WHERE ${condition} AND outcome = 'ok' AND at >= $3 ORDER BY ${order} DESC LIMIT 1)`,
    )
  // `id + 0`: an index in the order of ids would be read to its end for a record that nothing has touched.
  const parts = [...of('audit_events', 'id + 0'), ...of('audit_staged', 'seq')].join(' UNION ALL ')
  return {
    name,
    text: `SELECT given.id, touch.* FROM unnest($1::int[]) AS given (id),
      LATERAL (SELECT * FROM (${parts}) every ORDER BY at DESC LIMIT 1) touch`,
  }
}

const touchedUsers = touched(
  'imported-touched-users',
  `subject_id = given.id AND action NOT IN ${reads}`,
  'user.import',
)

const touchedOrganizations = touched(
  'imported-touched-organizations',
  `split_part(object, ' ', 1) = 'organization:' || given.id AND action IN ('organization.activate',
    'organization.deactivate', 'organization.edit', 'organization.rotate-key')`,
  'organization.import',
)

// One scan of the members of their organizations, for all of them.
const usedProviders: Statement = {
  name: 'imported-used-providers',
  text: `SELECT DISTINCT activated_by AS id FROM users WHERE activated_by = ANY($1::int[]) AND organization_id IN (
    SELECT organization_id FROM users WHERE id = ANY($1::int[]) AND role = 'ROLE_INSTITUTION')`,
}

const mailedOrganizations: Statement = {
  name: 'imported-mailed-organizations',
  text: 'SELECT DISTINCT organization_id AS id FROM mailed_keys WHERE organization_id = ANY($1::int[])',
}

/** Creates the reader in a database. */
export function createImportedRecords(database: Database): ImportedRecords {
  const touches = (statement: Statement): ImportedRecords['touchedUsers'] => {
    return async (importId, since, ids, t) => {
      const rows = await database.run<Touch & { id: number }>(statement, [ids, `import:${importId}`, since], t)
      return new Map(rows.map(({ id, ...touch }) => [id, touch]))
    }
  }
  const among = (statement: Statement) => async (ids: readonly number[], t: Transaction) =>
    new Set((await database.run<{ id: number }>(statement, [ids], t)).map(({ id }) => id))
  return {
    async log(importId, since) {
      const values = [`import:${importId}`, since]
      const { unsealed, deleted } = (await database.run<{ unsealed: boolean; deleted: boolean }>(log, values))[0]!
      return deleted ? 'deleted' : unsealed ? 'unsealed' : 'whole'
    },
    async created(importId, after, limit) {
      const from = async (event: number) =>
        (await database.run<{ event: number; object: string }>(created, [`import:${importId}`, event]))[0]
      let found = await from(after.event)
      let rest = found ? readCreated(found.object) : []
      if (found?.event === after.event) rest = rest.filter(id => id > after.id)
      if (found && rest.length === 0) {
        found = await from(found.event + 1)
        rest = found ? readCreated(found.object) : []
      }
      if (!found) return { ids: [], next: undefined }
      const ids = rest.slice(0, limit)
      return { ids, next: { event: found.event, id: ids.at(-1)! } }
    },
    touchedUsers: touches(touchedUsers),
    touchedOrganizations: touches(touchedOrganizations),
    usedProviders: among(usedProviders),
    mailedOrganizations: among(mailedOrganizations),
  }
}
