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
} from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { sql } from '../database/sql.js'

/** Attributes of a question that queries read. */
const shown = {
  id: hasDefault(key(integer)),
  question: text,
  active: hasDefault(flag),
  /** Place in the order; null for a question that follows the ordered ones, by id. */
  position: hasDefault(nullable(integer)),
}

const questionAttributes = { ...shown, questionKey: text }

/** A security question. An inactive question is retired. */
export interface QuestionRow extends Row<typeof shown> {}

/** Where a question is in the order. */
export type QuestionPlace = Pick<QuestionRow, 'id' | 'position'>

/** The text of a question and its key for comparison. */
type QuestionText = Pick<NewRow<typeof questionAttributes>, 'question' | 'questionKey'>

const columns = sql.text(selectList(shown, 'q'))

/** Reads and changes security questions. */
export type Questions = ReturnType<typeof createQuestions>

/** Creates the questions in a database. */
export function createQuestions(database: Database) {
  const questions = defineTable(database, 'questions', questionAttributes)

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
  }
}
