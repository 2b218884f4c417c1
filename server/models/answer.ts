// Answers of users to security questions. Those to questions that aren't in the registry are in unmatched-answer.ts: what concerns
// all answers of a user is here.
import { Op, type Transaction } from 'sequelize'
import { defineTable, fromNow, hasDefault, integer, key, nullable, text, time } from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { sql } from '../database/sql.js'

const attributes = {
  userId: key(integer),
  questionId: key(integer),
  answerHash: nullable(text),
  /** A saved answer that waits, until when, and who saved it in which session. */
  nextHash: hasDefault(nullable(text)),
  nextCountsAt: hasDefault(nullable(time)),
  nextBy: hasDefault(nullable(integer)),
  nextSession: hasDefault(nullable(text)),
}

/** The hash of a user's current answer to a question. */
export type StoredAnswer = { readonly questionId: number; readonly answerHash: string }

/** An answer to save. */
interface GivenAnswer {
  readonly userId: number
  readonly questionId: number
  readonly answerHash: string
  /** Who saves it, and the id of the session; absent if more than the session proves it. */
  readonly by?: { readonly userId: number; readonly session: string }
}

/** An answer that is stored as a keyed digest. */
interface KeyedAnswer {
  readonly userId: number
  /** Null for an answer to a question that isn't in the registry. */
  readonly questionId: number | null
  readonly keyed: string
}

const isKeyed = sql`answer_hash LIKE 'keyed1:%'`

/** Reads and changes the answers of users. */
export type Answers = ReturnType<typeof createAnswers>

/** Creates the answers in a database. */
export function createAnswers(database: Database) {
  const answers = defineTable(database, 'answers', attributes)
  return {
    /** Returns the current answers of a user. */
    of: (userId: number) =>
      database.read<StoredAnswer>(sql('answers-of')`
        SELECT question_id AS "questionId", hash AS "answerHash" FROM answers a,
        LATERAL (SELECT CASE WHEN next_counts_at <= now() THEN next_hash ELSE answer_hash END AS hash) counting
        WHERE user_id = ${userId} AND hash IS NOT NULL`),
    /**
     * Saves an answer, which replaces an earlier one. It takes effect immediately without `by`, or on the first day after
     * sign-up; otherwise after 24 hours, until when the earlier answer stays valid. A trigger ends a waiting answer when the token
     * generation of the owner, or of who saved it, changes. Returns whether it takes effect immediately. The caller must lock
     * both users.
     */
    async save({ userId, questionId, answerHash, by }: GivenAnswer, t: Transaction) {
      const save = sql('answers-save')`
        WITH given AS (SELECT u.*, ${by?.userId}::int AS by, ${by?.session}::text AS session, ${answerHash}::text AS hash
          FROM users u WHERE u.id = ${userId}),
        who AS (SELECT *, by IS NOT NULL AND created_at <= now() - interval '1 day' AS waits FROM given)
        INSERT INTO answers AS a (user_id, question_id, answer_hash, next_hash, next_counts_at, next_by, next_session)
        SELECT id, ${questionId}, CASE WHEN NOT waits THEN hash END, CASE WHEN waits THEN hash END,
          CASE WHEN waits THEN now() + interval '1 day' END, CASE WHEN waits THEN by END, CASE WHEN waits THEN session END
        FROM who
        ON CONFLICT (user_id, question_id) DO UPDATE SET
          answer_hash = coalesce(excluded.answer_hash,
            CASE WHEN a.next_counts_at <= now() THEN a.next_hash ELSE a.answer_hash END),
          next_hash = excluded.next_hash, next_counts_at = excluded.next_counts_at,
          next_by = excluded.next_by, next_session = excluded.next_session
        RETURNING next_hash IS NULL AS counts`
      const [saved] = await database.run<{ counts: boolean }>(save, t)
      return saved!.counts
    },
    /**
     * Deletes all answers of a user: to questions of the registry, waiting ones included, and to the text of its sign-up. Returns
     * their number. The caller must lock the user.
     */
    async clear(userId: number, t: Transaction) {
      // A link moves rows from the one table to the other, and these statements follow it.
      const unmatched = await database.run(sql`DELETE FROM unmatched_answers WHERE user_id = ${userId} RETURNING 1`, t)
      return unmatched.length + (await answers.destroy({ where: { userId }, transaction: t }))
    },
    /** Ends the answers of all users that waited at a time, by default now: sessions that may have saved them have ended. */
    async endWaiting(t: Transaction, at?: Date) {
      const waited = { nextHash: { [Op.not]: null }, nextCountsAt: { [Op.gt]: at ?? fromNow(0) } }
      // In order of key, as the trigger of `users` locks them.
      const order = ['userId', 'questionId']
      await answers.findAll({ attributes: order, where: waited, order, transaction: t, lock: t.LOCK.UPDATE, raw: true })
      await answers.destroy({ where: { ...waited, answerHash: null }, transaction: t })
      const none = { nextHash: null, nextCountsAt: null, nextBy: null, nextSession: null }
      await answers.update(none, { where: { ...waited, answerHash: { [Op.not]: null } }, transaction: t })
    },
    /**
     * Returns at most `limit` answers from the older implementation that no hash thread has wrapped yet, of users with ids from
     * `fromUserId` on.
     */
    keyed: (fromUserId: number, limit: number) =>
      database.run<KeyedAnswer>(sql('answers-keyed')`
        (SELECT user_id AS "userId", question_id AS "questionId", answer_hash AS keyed FROM answers
          WHERE ${isKeyed} AND user_id >= ${fromUserId} ORDER BY user_id, question_id LIMIT ${limit})
        UNION ALL (SELECT user_id, NULL, answer_hash FROM unmatched_answers
          WHERE ${isKeyed} AND user_id >= ${fromUserId} ORDER BY user_id LIMIT ${limit})
        LIMIT ${limit}`),
    /** Returns an upper bound of the ids of users with such answers; 0 if there are none. */
    async lastKeyed() {
      const [last] = await database.run<{ id: number }>(sql('answers-last-keyed')`
        SELECT coalesce(greatest((SELECT max(user_id) FROM answers WHERE ${isKeyed}),
          (SELECT max(user_id) FROM unmatched_answers WHERE ${isKeyed})), 0) AS id`)
      return last!.id
    },
    /** Replaces such an answer with its hash, unless it was replaced meanwhile. */
    async wrap({ userId, questionId, keyed }: KeyedAnswer, hash: string) {
      const change = sql`SET answer_hash = ${hash} WHERE user_id = ${userId} AND answer_hash = ${keyed}`
      await database.run(
        questionId === null
          ? sql`UPDATE unmatched_answers ${change}`
          : sql`UPDATE answers ${change} AND question_id = ${questionId}`,
      )
    },
  }
}
