// What imports created, as their events in the audit log name it, and what has touched it since.
import type { Database, Transaction } from '../database/database.js'
import { first, type Query, sql } from '../database/sql.js'
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

const imported = (id: number) =>
  sql`action IN ('organization.import', 'user.import') AND split_part(object, ' ', 1) = ${`import:${id}`}`

/** Reads what imports created. */
export type ImportedRecords = ReturnType<typeof createImportedRecords>

/** Creates the reader in a database. */
export function createImportedRecords(database: Database) {
  /** The latest event of each of the records, by the conditions that select the events of one. */
  async function touches(
    { importId, since, ids }: { importId: number; since: Date; ids: readonly number[] },
    own: Query,
    action: 'user.import' | 'organization.import',
    t: Transaction,
  ): Promise<Map<number, Touch>> {
    const others = sql`action = ${sql.text(`'${action}'`)} AND imported_ids(object) @> given.id::bigint
      AND split_part(object, ' ', 1) <> ${`import:${importId}`}`
    // `id + 0`: an index in the order of ids would be read to its end for a record that nothing has touched.
    const parts = [own, others].flatMap(condition =>
      [sql.text('audit_events'), sql.text('audit_staged')].map((table, index) => {
        const order = sql.text(['id + 0', 'seq'][index]!)
        return sql`(SELECT action, at FROM ${table} WHERE ${condition} AND outcome = 'ok' AND at >= ${since}
          ORDER BY ${order} DESC LIMIT 1)`
      }),
    )
    const all = parts.reduce((all, part) => sql`${all} UNION ALL ${part}`)
    const rows = await database.run<Touch & { id: number }>(
      sql(`imported-touched-${action}`)`SELECT given.id, touch.* FROM unnest(${ids}::int[]) AS given (id),
        LATERAL (SELECT * FROM (${all}) every ORDER BY at DESC LIMIT 1) touch`,
      t,
    )
    return new Map(rows.map(({ id, ...touch }) => [id, touch]))
  }

  const idsOf = async (query: Query, t: Transaction) =>
    new Set((await database.run<{ id: number }>(query, t)).map(({ id }) => id))

  return {
    /**
     * Whether the audit log has all events since a time, sealed ones first: `unsealed` while events of an import aren't in its
     * chain, and `deleted` once retention has deleted events.
     */
    async log(importId: number, since: Date): Promise<'whole' | 'unsealed' | 'deleted'> {
      const query = sql(
        'imported-log',
      )`SELECT EXISTS (SELECT FROM audit_staged WHERE ${imported(importId)}) AS unsealed,
          (SELECT id > 0 FROM audit_checkpoint)
            AND (SELECT at FROM audit_events ORDER BY id LIMIT 1) > ${since} IS NOT FALSE AS deleted`
      const [log] = await database.run<{ unsealed: boolean; deleted: boolean }>(query)
      return log!.deleted ? 'deleted' : log!.unsealed ? 'unsealed' : 'whole'
    },

    /** Returns at most `limit` ids of records that an import created, by event and id, and the place behind them. */
    async created(
      importId: number,
      after: ImportedPlace,
      limit: number,
    ): Promise<{ ids: number[]; next: ImportedPlace | undefined }> {
      const from = (event: number) =>
        first(
          database.run<{ event: number; object: string }>(sql('imported-created')`
            SELECT id::float8 AS event, object FROM audit_events
            WHERE ${imported(importId)} AND id >= ${event} AND object LIKE '% created:%' ORDER BY id LIMIT 1`),
        )
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

    /** Returns what last touched each of these users after a time, by id: by its event, or by that of another import. */
    touchedUsers(importId: number, since: Date, ids: readonly number[], t: Transaction) {
      // Others only show a user.
      const own = sql`subject_id = given.id AND action NOT IN ('user.export', 'user.show-key')`
      return touches({ importId, since, ids }, own, 'user.import', t)
    },

    /** The same for organizations. */
    touchedOrganizations(importId: number, since: Date, ids: readonly number[], t: Transaction) {
      const own = sql`split_part(object, ' ', 1) = 'organization:' || given.id AND action IN ('organization.activate',
        'organization.deactivate', 'organization.edit', 'organization.rotate-key')`
      return touches({ importId, since, ids }, own, 'organization.import', t)
    },

    /** Returns those of these users whose provider keys activated members of their organizations. */
    usedProviders: (ids: readonly number[], t: Transaction) =>
      // One scan of the members of their organizations, for all of them.
      idsOf(
        sql('imported-used-providers')`SELECT DISTINCT activated_by AS id FROM users
          WHERE activated_by = ANY(${ids}::int[]) AND organization_id IN (
            SELECT organization_id FROM users WHERE id = ANY(${ids}::int[]) AND role = 'ROLE_INSTITUTION')`,
        t,
      ),

    /** Returns those of these organizations for which an activation key is in the mail. */
    mailedOrganizations: (ids: readonly number[], t: Transaction) =>
      idsOf(
        sql('imported-mailed-organizations')`
          SELECT DISTINCT organization_id AS id FROM mailed_keys WHERE organization_id = ANY(${ids}::int[])`,
        t,
      ),
  }
}
