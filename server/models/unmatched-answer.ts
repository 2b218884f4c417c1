// Answers at sign-up to texts that match no question of the registry.

import { defineTable, integer, key, type NewRow, text } from '../database/attributes.js'
import type { Database, Transaction } from '../database/database.js'
import { first, sql } from '../database/sql.js'

const attributes = { userId: key(integer), question: text, questionKey: text, answerHash: text }

/** A text of sign-ups that matches no question of the registry, as one of the users entered it, and their number. */
export type UnmatchedText = Pick<NewRow<typeof attributes>, 'question' | 'questionKey'> & { readonly users: number }

/** The result of a link. */
interface Linked {
  /** Number of users whose answers took effect. */
  readonly added: number
  /** Whether more answers may be left, so that the caller must repeat the link. */
  readonly more: boolean
  /** Whether a user entered the text, or it was already linked to the question. */
  readonly known: boolean
}

/** Maximum answers of a link, which take about a second. */
const maxLinked = 20_000

/** Creates these answers in a database: reads them, and links their texts to questions. */
export function createUnmatchedAnswers(database: Database) {
  const unmatched = defineTable(database, 'unmatched_answers', attributes)
  return {
    /** Returns the hash of a user's answer at sign-up to a question that isn't in the registry, by the key of its text. */
    async find(userId: number, questionKey: string) {
      return (await unmatched.findOne({ where: { userId, questionKey } }))?.get().answerHash
    },
    /** Returns texts that match no question of the registry, by descending number of users. */
    list({ after, limit }: { after?: Pick<UnmatchedText, 'questionKey' | 'users'>; limit: number }) {
      const follows = ({ users, questionKey }: typeof after & object) =>
        sql`(-count(*), question_key) > (-${users}::int, ${questionKey})`
      return database.run<UnmatchedText>(sql`
        SELECT question_key AS "questionKey", min(question) AS question, count(*)::int AS users
        FROM unmatched_answers GROUP BY question_key HAVING ${sql.all(after && follows(after))}
        ORDER BY users DESC, question_key LIMIT ${limit}`)
    },
    /**
     * Links a text, by its key, to a question. Answers to the text become answers to the question, unless an answer of the user
     * to the question counts; so do those of later sign-ups. Links at most 20,000 answers.
     */
    async link(questionKey: string, questionId: number, t: Transaction) {
      const link = sql('answers-link')`
        WITH moved AS (
          DELETE FROM unmatched_answers WHERE user_id = ANY (ARRAY(
            SELECT user_id FROM unmatched_answers WHERE question_key = ${questionKey} ORDER BY user_id LIMIT ${maxLinked} FOR UPDATE
          )) RETURNING user_id, answer_hash
        ),
        added AS (
          INSERT INTO answers AS a (user_id, question_id, answer_hash) SELECT user_id, ${questionId}, answer_hash FROM moved
          ON CONFLICT (user_id, question_id) DO UPDATE SET answer_hash = excluded.answer_hash
          WHERE a.answer_hash IS NULL AND a.next_counts_at > now() RETURNING 1
        ),
        before AS (SELECT FROM question_aliases WHERE question_key = ${questionKey} AND question_id = ${questionId}),
        alias AS (
          INSERT INTO question_aliases (question_key, question_id) VALUES (${questionKey}, ${questionId})
          ON CONFLICT (question_key) DO UPDATE SET question_id = excluded.question_id
        )
        SELECT (SELECT count(*) FROM added)::int AS added, (SELECT count(*) FROM moved) = ${maxLinked} AS more,
          EXISTS (SELECT FROM moved) OR EXISTS (SELECT FROM before) AS known`
      return (await first(database.run<Linked>(link, t)))!
    },
  }
}
