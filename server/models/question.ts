import { Op, type Transaction } from 'sequelize'
import {
  defineTable,
  flag,
  fromNow,
  hasDefault,
  integer,
  key,
  type NewRow,
  nullable,
  type Row,
  selectList,
  text,
  time,
} from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { first, sql } from '../database/sql.js'

/** Attributes of a question that queries read. */
const shown = {
  id: hasDefault(key(integer)),
  question: text,
  active: hasDefault(flag),
  /** Place in the order; null for a question that follows the ordered ones, by id. */
  position: hasDefault(nullable(integer)),
}

const questionAttributes = { ...shown, questionKey: text }

const answerAttributes = {
  userId: key(integer),
  questionId: key(integer),
  answerHash: nullable(text),
  /** A saved answer that waits, until when, and who saved it in which session. */
  nextHash: hasDefault(nullable(text)),
  nextCountsAt: hasDefault(nullable(time)),
  nextBy: hasDefault(nullable(integer)),
  nextSession: hasDefault(nullable(text)),
}
/** An answer to a question that isn't in the registry. */
const unmatchedAttributes = { userId: key(integer), question: text, questionKey: text, answerHash: text }

/** A security question. An inactive question is retired. */
export interface QuestionRow extends Row<typeof shown> {}

/** Where a question is in the order. */
export type QuestionPlace = Pick<QuestionRow, 'id' | 'position'>

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

/** The text of a question and its key for comparison. */
type QuestionText = Pick<NewRow<typeof questionAttributes>, 'question' | 'questionKey'>

/** A text of sign-ups that matches no question of the registry, as one of the users entered it, and their number. */
export type UnmatchedRow = QuestionText & { readonly users: number }

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

const columns = sql.text(selectList(shown, 'q'))
const isKeyed = sql`answer_hash LIKE 'keyed1:%'`

/** Reads and changes security questions and users' answers. */
export type Questions = ReturnType<typeof createQuestions>

/** Creates the questions in a database. */
export function createQuestions(database: Database) {
  const questions = defineTable(database, 'questions', questionAttributes)
  const answers = defineTable(database, 'answers', answerAttributes)
  const unmatched = defineTable(database, 'unmatched_answers', unmatchedAttributes)

  /** Returns all questions in their order, including retired ones. */
  async function all(t?: Transaction) {
    const query = sql('questions-all')`SELECT ${columns} FROM questions q ORDER BY position, id`
    return t ? database.run<QuestionRow>(query, t) : database.read<QuestionRow>(query)
  }

  return {
    all,
    /** Returns questions in their order. `active` selects only offered (true) or only retired (false) questions. */
    list({ after, active, limit }: { after?: QuestionPlace; active?: boolean; limit: number }) {
      const follows = (place: QuestionPlace) =>
        sql`(coalesce(position, 2147483647), id) > (coalesce(${place.position}::int, 2147483647), ${place.id}::int)`
      const chosen = sql.all(after && follows(after), active !== undefined && sql`active = ${active}`)
      return database.run<QuestionRow>(
        sql`SELECT ${columns} FROM questions q WHERE ${chosen} ORDER BY position, id LIMIT ${limit}`,
      )
    },
    /** Puts questions first; the others keep their order. Returns whether the order has changed. */
    async order(first: readonly number[], t: Transaction) {
      // Parallel changes of the order wait for each other; saved answers don't.
      const lock = t.LOCK.NO_KEY_UPDATE
      await questions.findAll({ attributes: ['id'], order: ['id'], transaction: t, lock })
      const before = (await all(t)).map(({ id }) => id)
      if (String([...first, ...before.filter(id => !first.includes(id))]) === String(before)) return false
      const order = sql('questions-order')`
        UPDATE questions q SET position = place FROM (
          SELECT id, row_number() OVER (ORDER BY array_position(${first}::int[], id), position, id) AS place FROM questions
        ) placed WHERE q.id = placed.id`
      await database.run(order, t)
      return true
    },
    /** Returns the offered question with this id or text key. Its own text precedes a linked text. */
    async offered(wanted: { id: number } | { key: string }) {
      const { id, key } = { id: null, key: null, ...wanted }
      const [found] = await database.read<QuestionRow>(sql('questions-offered')`
        SELECT ${columns} FROM questions q WHERE active AND (id = ${id} OR question_key = ${key}
          OR id = (SELECT question_id FROM question_aliases WHERE question_key = ${key}))
        ORDER BY question_key IS DISTINCT FROM ${key} LIMIT 1`)
      return found
    },
    /** Returns the ids of all questions by the keys of their texts, and of linked texts. */
    async idsByKey(t: Transaction): Promise<ReadonlyMap<string, number>> {
      const query = sql('questions-ids-by-key')`SELECT question_key AS key, question_id AS id FROM question_aliases
        UNION ALL SELECT question_key, id FROM questions`
      // A question's own text precedes a linked text.
      return new Map((await database.run<{ key: string; id: number }>(query, t)).map(({ key, id }) => [key, id]))
    },
    /** Returns the question with this id or text key, including retired questions. */
    async find(wanted: { id: number } | { key: string }) {
      const where = 'id' in wanted ? { id: wanted.id } : { questionKey: wanted.key }
      return (await questions.findOne({ where }))?.get()
    },
    /** Locks a question until the end of the transaction. */
    lock: async (id: number, transaction: Transaction) =>
      (await questions.findByPk(id, { transaction, lock: transaction.LOCK.UPDATE }))?.get(),
    /** Adds a question. Throws a unique violation of `questions_question_key_key`. */
    add: async (text: QuestionText, transaction?: Transaction): Promise<QuestionRow> =>
      (await questions.create({ ...text, active: true }, { transaction })).get(),
    /** Changes the text of a question. Answers stay. Throws the same violation as `add`. */
    async edit(id: number, text: QuestionText, transaction?: Transaction) {
      await questions.update(text, { where: { id }, transaction })
    },
    /** Restores or retires a question. */
    async setActive(id: number, active: boolean, transaction?: Transaction) {
      await questions.update({ active }, { where: { id }, transaction })
    },
    /** Returns the current answers of a user. */
    answers: (userId: number) =>
      database.read<StoredAnswer>(sql('answers-of')`
        SELECT question_id AS "questionId", hash AS "answerHash" FROM answers a,
        LATERAL (SELECT CASE WHEN next_counts_at <= now() THEN next_hash ELSE answer_hash END AS hash) counting
        WHERE user_id = ${userId} AND hash IS NOT NULL`),
    /** Returns the hash of a user's answer at sign-up to a question that isn't in the registry, by the key of its text. */
    async unmatchedAnswer(userId: number, questionKey: string) {
      return (await unmatched.findOne({ where: { userId, questionKey } }))?.get().answerHash
    },
    /**
     * Saves an answer, which replaces an earlier one. It takes effect immediately without `by`, or on the first day after
     * sign-up; otherwise after 24 hours, until when the earlier answer stays valid. A trigger ends a waiting answer when the token
     * generation of the owner, or of who saved it, changes. Returns whether it takes effect immediately. The caller must lock
     * both users.
     */
    async saveAnswer({ userId, questionId, answerHash, by }: GivenAnswer, t: Transaction) {
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
      const these = { where: { userId }, transaction: t }
      return (await unmatched.destroy(these)) + (await answers.destroy(these))
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
      const change = { answerHash: hash }
      const where = { userId, answerHash: keyed }
      if (questionId === null) await unmatched.update(change, { where })
      else await answers.update(change, { where: { ...where, questionId } })
    },
    /** Returns texts that match no question of the registry, by descending number of users. */
    unmatched({ after, limit }: { after?: Pick<UnmatchedRow, 'questionKey' | 'users'>; limit: number }) {
      const follows = ({ users, questionKey }: typeof after & object) =>
        sql`(-count(*), question_key) > (-${users}::int, ${questionKey})`
      return database.run<UnmatchedRow>(sql`
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
