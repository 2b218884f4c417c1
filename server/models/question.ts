import { DataTypes, type Model, type Transaction } from 'sequelize'
import type { Database, Statement } from '../database/connection.js'

/** A security question as it is stored. */
export interface QuestionRow {
  id: number
  question: string
  questionKey: string
  active: boolean
}

/** A user's hashed answer to a question. */
export interface StoredAnswer {
  readonly questionId: number
  readonly answerHash: string
}

/** Security questions and users's answers to them. */
export interface Questions {
  readonly table: ReturnType<typeof defineQuestions>
  /** All questions by id, retired ones included. */
  all(): Promise<QuestionRow[]>
  /** The offered question with this number, or with this text in comparing form. */
  offered(wanted: { id: number } | { key: string }): Promise<QuestionRow | undefined>
  /** A user's answers. */
  answers(userId: number): Promise<StoredAnswer[]>
  /** Saves an answer in place of an earlier one. */
  saveAnswer(userId: number, questionId: number, answerHash: string, t: Transaction): Promise<void>
}

function defineQuestions({ sequelize }: Database) {
  return sequelize.define<Model<QuestionRow, Partial<QuestionRow>> & QuestionRow>('questions', {
    id: { type: DataTypes.INTEGER, primaryKey: true, autoIncrement: true },
    question: DataTypes.TEXT,
    questionKey: DataTypes.TEXT,
    active: DataTypes.BOOLEAN,
  })
}

const all: Statement = { name: 'questions-all', text: 'SELECT id, question, active FROM questions ORDER BY id' }

const offered: Statement = {
  name: 'questions-offered',
  text: 'SELECT id, question, active FROM questions WHERE active AND (id = $1 OR question_key = $2)',
}

const answers: Statement = {
  name: 'answers-of',
  text: 'SELECT question_id AS "questionId", answer_hash AS "answerHash" FROM answers WHERE user_id = $1',
}

const saveAnswer: Statement = {
  name: 'answers-save',
  text: `INSERT INTO answers (user_id, question_id, answer_hash) VALUES ($1, $2, $3)
    ON CONFLICT (user_id, question_id) DO UPDATE SET answer_hash = excluded.answer_hash`,
}

/** The questions in a database. */
export function createQuestions(database: Database): Questions {
  return {
    table: defineQuestions(database),
    all: () => database.read<QuestionRow>(all, []),
    async offered(wanted) {
      const values = 'id' in wanted ? [wanted.id, null] : [null, wanted.key]
      return (await database.read<QuestionRow>(offered, values))[0]
    },
    answers: userId => database.read<StoredAnswer>(answers, [userId]),
    async saveAnswer(userId, questionId, answerHash, transaction) {
      await database.run(saveAnswer, [userId, questionId, answerHash], transaction)
    },
  }
}
