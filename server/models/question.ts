import type { Transaction } from 'sequelize'
import {
  defineTable,
  flag,
  integer,
  key,
  type NewRow,
  nullable,
  preset,
  type Row,
  selectList,
  text,
  time,
} from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'

/** What is read of a question. */
const shown = { id: preset(key(integer)), question: text, active: preset(flag) }

const questionAttributes = { ...shown, questionKey: text }

const answerAttributes = {
  userId: key(integer),
  questionId: key(integer),
  /** Null until a first answer counts. */
  answerHash: preset(nullable(text)),
  /** An answer that was saved long after sign-up, and when it begins to count. */
  nextHash: preset(nullable(text)),
  nextCountsAt: preset(nullable(time)),
}

/** A security question; an inactive one is retired. */
export interface QuestionRow extends Row<typeof shown> {}

/** A user's hashed answer to a question, as it counts now. */
export interface StoredAnswer {
  readonly questionId: number
  readonly answerHash: string
}

/** A text of a question and the form in which it compares. */
type QuestionText = Pick<NewRow<typeof questionAttributes>, 'question' | 'questionKey'>

/** Security questions and users' answers to them. */
export interface Questions {
  /** All questions by id, retired ones included. */
  all(): Promise<QuestionRow[]>
  /** The offered question with this number, or with this text in comparing form. */
  offered(wanted: { id: number } | { key: string }): Promise<QuestionRow | undefined>
  /** The question with this number, or with this text in comparing form, retired or not. */
  find(wanted: { id: number } | { key: string }): Promise<QuestionRow | undefined>
  /** Locks a question until the end of the transaction. */
  lock(id: number, t: Transaction): Promise<QuestionRow | undefined>
  /** Offers a new question. Throws a unique violation of `questions_question_key_key`. */
  add(text: QuestionText, t?: Transaction): Promise<QuestionRow>
  /** Changes the text of a question; answers stay. Throws as `add` does. */
  edit(id: number, text: QuestionText, t?: Transaction): Promise<void>
  /** Offers a question again, or retires it. */
  setActive(id: number, active: boolean, t?: Transaction): Promise<void>
  /** A user's answers that count now. */
  answers(userId: number): Promise<StoredAnswer[]>
  /**
   * Saves an answer instead of an earlier one. In the first day after sign-up it counts at once; later it counts from
   * 24 hours on, and until then the one before does. Whether it counts at once.
   */
  saveAnswer(userId: number, questionId: number, answerHash: string, t: Transaction): Promise<boolean>
  /** Forgets the answers of a user that don't count yet: a thief of a token keeps no way back. */
  discardNext(userId: number, t: Transaction): Promise<void>
}

const all: Statement = {
  name: 'questions-all',
  text: `SELECT ${selectList(shown, 'q')} FROM questions q ORDER BY id`,
}

const offered: Statement = {
  name: 'questions-offered',
  text: `SELECT ${selectList(shown, 'q')} FROM questions q WHERE active AND (id = $1 OR question_key = $2)`,
}

const answers: Statement = {
  name: 'answers-of',
  text: `SELECT question_id AS "questionId", hash AS "answerHash" FROM answers a,
    LATERAL (SELECT CASE WHEN next_counts_at <= now() THEN next_hash ELSE answer_hash END AS hash) counting
    WHERE user_id = $1 AND hash IS NOT NULL`,
}

const saveAnswer: Statement = {
  name: 'answers-save',
  text: `WITH who AS (SELECT created_at > now() - interval '1 day' AS new FROM users WHERE id = $1)
    INSERT INTO answers AS a (user_id, question_id, answer_hash, next_hash, next_counts_at)
    SELECT $1, $2, CASE WHEN new THEN $3 END, CASE WHEN NOT new THEN $3 END,
      CASE WHEN NOT new THEN now() + interval '1 day' END FROM who
    ON CONFLICT (user_id, question_id) DO UPDATE SET
      answer_hash = coalesce(excluded.answer_hash,
        CASE WHEN a.next_counts_at <= now() THEN a.next_hash ELSE a.answer_hash END),
      next_hash = excluded.next_hash, next_counts_at = excluded.next_counts_at
    RETURNING next_hash IS NULL AS counts`,
}

const discardNext: Statement = {
  name: 'answers-discard-next',
  text: `WITH gone AS (DELETE FROM answers WHERE user_id = $1 AND next_counts_at > now() AND answer_hash IS NULL)
    UPDATE answers SET next_hash = NULL, next_counts_at = NULL
    WHERE user_id = $1 AND next_counts_at > now() AND answer_hash IS NOT NULL`,
}

/** The questions in a database. */
export function createQuestions(database: Database): Questions {
  const questions = defineTable(database, 'questions', questionAttributes)
  defineTable(database, 'answers', answerAttributes)
  return {
    all: () => database.read<QuestionRow>(all, []),
    async offered(wanted) {
      const values = 'id' in wanted ? [wanted.id, null] : [null, wanted.key]
      return (await database.read<QuestionRow>(offered, values))[0]
    },
    async find(wanted) {
      const where = 'id' in wanted ? { id: wanted.id } : { questionKey: wanted.key }
      return (await questions.findOne({ where }))?.get()
    },
    lock: async (id, transaction) =>
      (await questions.findByPk(id, { transaction, lock: transaction.LOCK.UPDATE }))?.get(),
    add: async (text, transaction) => (await questions.create({ ...text, active: true }, { transaction })).get(),
    async edit(id, text, transaction) {
      await questions.update(text, { where: { id }, transaction })
    },
    async setActive(id, active, transaction) {
      await questions.update({ active }, { where: { id }, transaction })
    },
    answers: userId => database.read<StoredAnswer>(answers, [userId]),
    async saveAnswer(userId, questionId, answerHash, transaction) {
      const values = [userId, questionId, answerHash]
      return (await database.run<{ counts: boolean }>(saveAnswer, values, transaction))[0]!.counts
    },
    async discardNext(userId, transaction) {
      await database.run(discardNext, [userId], transaction)
    },
  }
}
