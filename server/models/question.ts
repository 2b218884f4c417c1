import type { Transaction } from 'sequelize'
import {
  defineTable,
  flag,
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
import type { Database, Statement } from '../database/connection.js'

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
  /** Null until the first answer takes effect. */
  answerHash: hasDefault(nullable(text)),
  /** A waiting answer, saved without the password more than a day after sign-up, and the time at which it takes effect. */
  nextHash: hasDefault(nullable(text)),
  nextCountsAt: hasDefault(nullable(time)),
  /** The user who saved it, and the session. While it waits, it ends with the tokens of that user, and of the owner. */
  nextBy: hasDefault(nullable(integer)),
  nextSession: hasDefault(nullable(text)),
}

const unmatchedAttributes = { userId: key(integer), question: text, questionKey: text, answerHash: text }

const aliasAttributes = { questionKey: key(text), questionId: integer }

/** A security question. An inactive question is retired. */
export interface QuestionRow extends Row<typeof shown> {}

/** Where a question is in the order. */
export type QuestionPlace = Pick<QuestionRow, 'id' | 'position'>

/** The hash of a user's current answer to a question. */
export interface StoredAnswer {
  readonly questionId: number
  readonly answerHash: string
}

/** An answer to save. */
interface GivenAnswer {
  readonly userId: number
  readonly questionId: number
  readonly answerHash: string
  /** Who saves it, and the id of the session; absent if more than the session proves it. */
  readonly by?: { readonly userId: number; readonly session: string }
}

/** An answer that is stored as a keyed digest. */
export interface KeyedAnswer {
  readonly userId: number
  /** Null for an answer to a question that isn't in the registry. */
  readonly questionId: number | null
  readonly keyed: string
}

/** The text of a question and its key for comparison. */
type QuestionText = Pick<NewRow<typeof questionAttributes>, 'question' | 'questionKey'>

/** The text of a question that users entered at sign-up and that matches no question of the registry. */
export interface UnmatchedRow {
  /** The key of the text for comparison. */
  readonly questionKey: string
  /** The text as one of the users entered it. */
  readonly question: string
  /** Number of users who entered it. */
  readonly users: number
}

/** The result of a link. */
interface Linked {
  /** Number of users whose answers took effect. */
  readonly added: number
  /** Whether more answers may be left, so that the caller must repeat the link. */
  readonly more: boolean
  /** Whether a user entered the text, or it was already linked to the question. */
  readonly known: boolean
}

/** Reads and changes security questions and users' answers. */
export interface Questions {
  /** Returns all questions in their order, including retired ones. */
  all(t?: Transaction): Promise<QuestionRow[]>
  /** Returns questions in their order. `active` selects only offered (true) or only retired (false) questions. */
  list(filter: { after?: QuestionPlace; active?: boolean; limit: number }): Promise<QuestionRow[]>
  /** Puts questions first; the others keep their order. Returns whether the order has changed. */
  order(first: readonly number[], t: Transaction): Promise<boolean>
  /** Returns the offered question with this id or text key. Its own text precedes a linked text. */
  offered(wanted: { id: number } | { key: string }): Promise<QuestionRow | undefined>
  /** Returns the question with this id or text key, including retired questions. */
  find(wanted: { id: number } | { key: string }): Promise<QuestionRow | undefined>
  /** Locks a question until the end of the transaction. */
  lock(id: number, t: Transaction): Promise<QuestionRow | undefined>
  /** Adds a question. Throws a unique violation of `questions_question_key_key`. */
  add(text: QuestionText, t?: Transaction): Promise<QuestionRow>
  /** Changes the text of a question. Answers stay. Throws the same violation as `add`. */
  edit(id: number, text: QuestionText, t?: Transaction): Promise<void>
  /** Restores or retires a question. */
  setActive(id: number, active: boolean, t?: Transaction): Promise<void>
  /** Returns the current answers of a user. */
  answers(userId: number): Promise<StoredAnswer[]>
  /**
   * Saves an answer, which replaces an earlier one. It takes effect immediately without `by`, or on the first day after
   * sign-up; otherwise after 24 hours, until when the earlier answer stays valid. A trigger ends a waiting answer when the token
   * generation of the owner, or of who saved it, changes. Returns whether it takes effect immediately. The caller must lock
   * both users.
   */
  saveAnswer(given: GivenAnswer, t: Transaction): Promise<boolean>
  /**
   * Deletes all answers of a user: to questions of the registry, waiting ones included, and to the text of its sign-up. Returns
   * their number. The caller must lock the user.
   */
  clear(userId: number, t: Transaction): Promise<number>
  /** Ends the answers of all users that waited at a time, by default now: sessions that may have saved them have ended. */
  endWaiting(t: Transaction, at?: Date): Promise<void>
  /**
   * Returns at most `limit` answers from the older implementation that no hash thread has wrapped yet, of users with ids from
   * `fromUserId` on.
   */
  keyed(fromUserId: number, limit: number): Promise<KeyedAnswer[]>
  /** Returns an upper bound of the ids of users with such answers; 0 if there are none. */
  lastKeyed(): Promise<number>
  /** Replaces such an answer with its hash, unless it was replaced meanwhile. */
  wrap(answer: KeyedAnswer, hash: string): Promise<void>
  /** Stores the answer of a new user to a question that isn't in the registry. */
  keepUnmatched(userId: number, text: QuestionText, answerHash: string, t: Transaction): Promise<void>
  /** Returns texts that match no question of the registry, by descending number of users. */
  unmatched(filter: { after?: Pick<UnmatchedRow, 'questionKey' | 'users'>; limit: number }): Promise<UnmatchedRow[]>
  /**
   * Links a text, by its key, to a question. Answers to the text become answers to the question, unless an answer of the user
   * to the question counts; so do those of later sign-ups. Links at most 20,000 answers.
   */
  link(questionKey: string, questionId: number, t: Transaction): Promise<Linked>
}

const all: Statement = {
  name: 'questions-all',
  text: `SELECT ${selectList(shown, 'q')} FROM questions q ORDER BY position, id`,
}

const list: Statement = {
  name: 'questions-list',
  text: `SELECT ${selectList(shown, 'q')} FROM questions q
    WHERE (coalesce(position, 2147483647), id) > (coalesce($1::int, 2147483647), $2::int)
      AND ($3::boolean IS NULL OR active = $3)
    ORDER BY position, id LIMIT $4`,
}

// Parallel changes of the order wait for each other; saved answers don't.
const lockOrder: Statement = {
  name: 'questions-lock-order',
  text: 'SELECT FROM questions ORDER BY id FOR NO KEY UPDATE',
}

const order: Statement = {
  name: 'questions-order',
  text: `UPDATE questions q SET position = place FROM (
      SELECT id, row_number() OVER (ORDER BY array_position($1::int[], id), position, id) AS place FROM questions
    ) placed WHERE q.id = placed.id`,
}

const offered: Statement = {
  name: 'questions-offered',
  text: `SELECT ${selectList(shown, 'q')} FROM questions q WHERE active AND (id = $1 OR question_key = $2
      OR id = (SELECT question_id FROM question_aliases WHERE question_key = $2))
    ORDER BY question_key IS DISTINCT FROM $2 LIMIT 1`,
}

const unmatched: Statement = {
  name: 'answers-unmatched',
  text: `SELECT question_key AS "questionKey", min(question) AS question, count(*)::int AS users
    FROM unmatched_answers GROUP BY question_key
    HAVING $1::int IS NULL OR count(*) < $1 OR (count(*) = $1 AND question_key > $2)
    ORDER BY users DESC, question_key LIMIT $3`,
}

/** Maximum answers of a link, which take about a second. */
const maxLinked = 20_000

const link: Statement = {
  name: 'answers-link',
  text: `WITH moved AS (
      DELETE FROM unmatched_answers WHERE user_id = ANY (ARRAY(
        SELECT user_id FROM unmatched_answers WHERE question_key = $1 ORDER BY user_id LIMIT ${maxLinked} FOR UPDATE
      )) RETURNING user_id, answer_hash
    ),
    added AS (
      INSERT INTO answers AS a (user_id, question_id, answer_hash) SELECT user_id, $2, answer_hash FROM moved
      ON CONFLICT (user_id, question_id) DO UPDATE SET answer_hash = excluded.answer_hash
      WHERE a.answer_hash IS NULL AND a.next_counts_at > now() RETURNING 1
    ),
    before AS (SELECT FROM question_aliases WHERE question_key = $1 AND question_id = $2),
    alias AS (
      INSERT INTO question_aliases (question_key, question_id) VALUES ($1, $2)
      ON CONFLICT (question_key) DO UPDATE SET question_id = excluded.question_id
    )
    SELECT (SELECT count(*) FROM added)::int AS added, (SELECT count(*) FROM moved) = ${maxLinked} AS more, EXISTS (SELECT FROM moved) OR EXISTS (SELECT FROM before) AS known`,
}

const answers: Statement = {
  name: 'answers-of',
  text: `SELECT question_id AS "questionId", hash AS "answerHash" FROM answers a,
    LATERAL (SELECT CASE WHEN next_counts_at <= now() THEN next_hash ELSE answer_hash END AS hash) counting
    WHERE user_id = $1 AND hash IS NOT NULL`,
}

const saveAnswer: Statement = {
  name: 'answers-save',
  text: `WITH who AS (SELECT $4::int IS NOT NULL AND (created_at <= now() - interval '1 day'
        OR EXISTS (SELECT FROM predecessor_users WHERE user_id = id)) AS waits FROM users WHERE id = $1)
    INSERT INTO answers AS a (user_id, question_id, answer_hash, next_hash, next_counts_at, next_by, next_session)
    SELECT $1, $2, CASE WHEN NOT waits THEN $3 END, CASE WHEN waits THEN $3 END,
      CASE WHEN waits THEN now() + interval '1 day' END, CASE WHEN waits THEN $4::int END, CASE WHEN waits THEN $5 END
    FROM who
    ON CONFLICT (user_id, question_id) DO UPDATE SET
      answer_hash = coalesce(excluded.answer_hash,
        CASE WHEN a.next_counts_at <= now() THEN a.next_hash ELSE a.answer_hash END),
      next_hash = excluded.next_hash, next_counts_at = excluded.next_counts_at,
      next_by = excluded.next_by, next_session = excluded.next_session
    RETURNING next_hash IS NULL AS counts`,
}

// A link moves rows from the one table to the other, and these statements follow it.
const clearUnmatched: Statement = {
  name: 'answers-clear-unmatched',
  text: 'DELETE FROM unmatched_answers WHERE user_id = $1 RETURNING 1',
}

// In order of key, as the trigger of `users` locks them.
const lockWaiting: Statement = {
  name: 'answers-lock-waiting',
  text: `SELECT FROM answers WHERE next_hash IS NOT NULL AND next_counts_at > coalesce($1::timestamptz, now())
    ORDER BY user_id, question_id FOR UPDATE`,
}

const endWaiting: Statement = {
  name: 'answers-end-waiting',
  text: `WITH first AS (
      DELETE FROM answers WHERE next_hash IS NOT NULL AND next_counts_at > coalesce($1::timestamptz, now()) AND answer_hash IS NULL
    )
    UPDATE answers SET next_hash = NULL, next_counts_at = NULL, next_by = NULL, next_session = NULL
    WHERE next_hash IS NOT NULL AND next_counts_at > coalesce($1::timestamptz, now()) AND answer_hash IS NOT NULL`,
}

const clearAnswers: Statement = { name: 'answers-clear', text: 'DELETE FROM answers WHERE user_id = $1 RETURNING 1' }

const isKeyed = "answer_hash LIKE 'keyed1:%'"

const keyed: Statement = {
  name: 'answers-keyed',
  text: `(SELECT user_id AS "userId", question_id AS "questionId", answer_hash AS keyed FROM answers
      WHERE ${isKeyed} AND user_id >= $1 ORDER BY user_id, question_id LIMIT $2)
    UNION ALL (SELECT user_id, NULL, answer_hash FROM unmatched_answers
      WHERE ${isKeyed} AND user_id >= $1 ORDER BY user_id LIMIT $2)
    LIMIT $2`,
}

const lastKeyed: Statement = {
  name: 'answers-last-keyed',
  text: `SELECT coalesce(greatest((SELECT max(user_id) FROM answers WHERE ${isKeyed}),
    (SELECT max(user_id) FROM unmatched_answers WHERE ${isKeyed})), 0) AS id`,
}

const wrapAnswer: Statement = {
  name: 'answers-wrap',
  text: 'UPDATE answers SET answer_hash = $4 WHERE user_id = $1 AND question_id = $2 AND answer_hash = $3',
}

const wrapUnmatched: Statement = {
  name: 'answers-wrap-unmatched',
  text: 'UPDATE unmatched_answers SET answer_hash = $3 WHERE user_id = $1 AND answer_hash = $2',
}

/** Creates the questions in a database. */
export function createQuestions(database: Database): Questions {
  const questions = defineTable(database, 'questions', questionAttributes)
  defineTable(database, 'answers', answerAttributes)
  const unmatchedAnswers = defineTable(database, 'unmatched_answers', unmatchedAttributes)
  defineTable(database, 'question_aliases', aliasAttributes)
  return {
    all: async t => (t ? database.run<QuestionRow>(all, [], t) : database.read<QuestionRow>(all, [])),
    list: ({ after, active, limit }) =>
      database.run<QuestionRow>(list, [after ? after.position : 0, after?.id ?? 0, active ?? null, limit]),
    async order(first, transaction) {
      await database.run(lockOrder, [], transaction)
      const ids = async () => (await database.run<QuestionRow>(all, [], transaction)).map(({ id }) => id)
      const before = await ids()
      if (String([...first, ...before.filter(id => !first.includes(id))]) === String(before)) return false
      await database.run(order, [first], transaction)
      return true
    },
    async offered(wanted) {
      const values = 'id' in wanted ? [wanted.id, null] : [null, wanted.key]
      return (await database.read<QuestionRow>(offered, values))[0]
    },
    async find(wanted) {
      const where = 'id' in wanted ? { id: wanted.id } : { questionKey: wanted.key }
      return (await questions().findOne({ where }))?.get()
    },
    lock: async (id, transaction) =>
      (await questions().findByPk(id, { transaction, lock: transaction.LOCK.UPDATE }))?.get(),
    add: async (text, transaction) => (await questions().create({ ...text, active: true }, { transaction })).get(),
    async edit(id, text, transaction) {
      await questions().update(text, { where: { id }, transaction })
    },
    async setActive(id, active, transaction) {
      await questions().update({ active }, { where: { id }, transaction })
    },
    answers: userId => database.read<StoredAnswer>(answers, [userId]),
    async saveAnswer({ userId, questionId, answerHash, by }, transaction) {
      const values = [userId, questionId, answerHash, by?.userId ?? null, by?.session ?? null]
      return (await database.run<{ counts: boolean }>(saveAnswer, values, transaction))[0]!.counts
    },
    async clear(userId, transaction) {
      const unmatched = await database.run(clearUnmatched, [userId], transaction)
      return unmatched.length + (await database.run(clearAnswers, [userId], transaction)).length
    },
    async endWaiting(transaction, at) {
      await database.run(lockWaiting, [at ?? null], transaction)
      await database.run(endWaiting, [at ?? null], transaction)
    },
    keyed: (fromUserId, limit) => database.run<KeyedAnswer>(keyed, [fromUserId, limit]),
    lastKeyed: async () => (await database.run<{ id: number }>(lastKeyed, []))[0]!.id,
    async wrap({ userId, questionId, keyed }, hash) {
      if (questionId === null) await database.run(wrapUnmatched, [userId, keyed, hash])
      else await database.run(wrapAnswer, [userId, questionId, keyed, hash])
    },
    async keepUnmatched(userId, text, answerHash, transaction) {
      await unmatchedAnswers().create({ userId, ...text, answerHash }, { transaction })
    },
    unmatched: ({ after, limit }) =>
      database.run<UnmatchedRow>(unmatched, [after?.users ?? null, after?.questionKey ?? null, limit]),
    link: async (questionKey, questionId, transaction) =>
      (await database.run<Linked>(link, [questionKey, questionId], transaction))[0]!,
  }
}
