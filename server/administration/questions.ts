import {
  type AdministeredQuestion,
  AdministeredQuestionSchema,
  Administration,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { AdministrationContext, AdministrationRpcs, Checked } from '../calls/context.js'
import type { References } from '../calls/steps.js'
import type { Transaction } from '../database/database.js'
import { brokenConstraint } from '../database/failures.js'
import type { Models } from '../models/index.js'
import type { QuestionPlace, QuestionRow } from '../models/question.js'
import type { UnmatchedText } from '../models/unmatched-answer.js'
import type { OpenPage } from '../requests/paging.js'
import { refuse } from '../requests/refusal.js'
import { wrongField } from '../requests/wrong-fields.js'
import { isOneLine, questionKey } from '../rules/names.js'
import { maxLengths, tooLong } from '../rules/sizes.js'
import { type Done, setActive } from './change-record.js'
import { checkEtag, withEtag } from './etag.js'

/** Most questions that one call puts first. */
const maxOrdered = 100

/** The text of a question, and the key that finds it. */
interface QuestionText {
  readonly question: string
  readonly questionKey: string
}

/** The RPCs of security questions. */
export function questionRpcs({ questions, unmatchedAnswers }: Models, references: References, openPage: OpenPage) {
  /** Changes a question under its etag. `work` returns the event, or undefined where there is nothing to change. */
  const change = (
    request: { readonly etag?: string },
    { transact }: AdministrationContext<QuestionRow>,
    work: (row: QuestionRow, t: Transaction) => Promise<Done | undefined>,
  ) =>
    transact(async ({ t, record, target: before }) => {
      checkEtag(request.etag, toQuestion(before))
      const done = await work(before, t)
      const after = done ? await references.question.lock(before.id, t) : before
      if (done) await record({ ...done, object: `question:${after.id}` })
      return { question: toQuestion(after), changed: done !== undefined }
    })

  /** Refuses with NAME_TAKEN, and names the question that has the text already. */
  async function unique<T>({ questionKey }: QuestionText, work: Promise<T>): Promise<T> {
    try {
      return await work
    } catch (error) {
      if (brokenConstraint(error) !== 'questions_question_key_key') throw error
      const same = await questions.find({ key: questionKey })
      const retired = same?.active === false ? ', and is retired' : ''
      return refuse(Reason.NAME_TAKEN, { text: `Question ${same?.id ?? ''} already has this text${retired}.` })
    }
  }

  return {
    async listQuestions(request) {
      const page = openPage<QuestionPlace>(Administration.method.listQuestions, request)
      const { limit, after } = page
      const rows = await questions.list({ limit, after, active: request.offered })
      const { shown, ...next } = page.cut(rows, ({ id, position }) => ({ id, position }))
      return { questions: shown.map(toQuestion), ...next }
    },

    getQuestion: async (_request, { target }) => ({ question: toQuestion(target) }),

    async createQuestion(request, { transact }) {
      const text = checkQuestion('question', request.question)
      const created = transact(async ({ t, record }) => {
        const row = await questions.add(text, t)
        await record({ action: 'question.add', object: `question:${row.id}` })
        return { question: toQuestion(row) }
      })
      return unique(text, created)
    },

    /** Answers already saved stay and count for the new text. */
    updateQuestion: {
      check: ({ text }) => checkQuestion('text', text),
      handle(request, context, text) {
        const changed = change(request, context, async (row, t) => {
          if (row.question === text.question) return undefined
          await questions.edit(row.id, text, t)
          return { action: 'question.edit' }
        })
        return unique(text, changed)
      },
    } satisfies Checked<'updateQuestion', QuestionText>,

    offerQuestion: (request, context) => change(request, context, setActive(questions, true, 'question.restore')),

    retireQuestion: (request, context) => change(request, context, setActive(questions, false, 'question.retire')),

    /** Puts questions first, in the given order; the others follow in their present order. */
    async orderQuestions(request, { transact }) {
      const { questions: named } = request
      if (named.length === 0 || named.length > maxOrdered)
        wrongField('questions', 'OUT_OF_RANGE', `Name 1 to ${maxOrdered} questions, in their new order.`)
      const first: number[] = []
      for (const reference of named) first.push((await references.question.find(reference, 'questions')).id)
      if (new Set(first).size < first.length) wrongField('questions', 'CONFLICTING', 'Name each question once.')
      return transact(async ({ t, record }) => {
        const changed = await questions.order(first, t)
        if (changed) await record({ action: 'question.order', reason: first.join(',') })
        return { questions: (await questions.all(t)).map(toQuestion), changed }
      })
    },

    /** Lists texts of sign-ups that match no question of the registry, those with most users first. */
    async listUnmatchedQuestions(request) {
      const page = openPage<Pick<UnmatchedText, 'questionKey' | 'users'>>(
        Administration.method.listUnmatchedQuestions,
        request,
      )
      const rows = await unmatchedAnswers.list(page)
      const { shown, ...next } = page.cut(rows, ({ questionKey, users }) => ({ questionKey, users }))
      return { questions: shown.map(({ question, users }) => ({ question, users })), ...next }
    },

    /** Links a text of sign-ups to a question: its answers count, now and in later sign-ups. */
    linkQuestion: {
      check: ({ text }) => checkQuestion('text', text),
      async handle(request, { transact }, text) {
        const linkSome = () =>
          transact(async ({ t, record, target: row }) => {
            const { added, more, known } = await unmatchedAnswers.link(text.questionKey, row.id, t)
            if (!known) refuse(Reason.RECORD_NOT_FOUND, { text: `No sign-up has the question ${text.question}.` })
            await record({ action: 'question.link', object: `question:${row.id}` })
            return { question: toQuestion(row), added, more }
          })
        // Each transaction is short. After an interruption, the caller repeats the call for the rest.
        let { question, added: linked, more } = await linkSome()
        while (more && !request.validateOnly) {
          const next = await linkSome()
          linked += next.added
          ;({ question, more } = next)
        }
        return { question, linked }
      },
    } satisfies Checked<'linkQuestion', QuestionText>,
  } satisfies Partial<AdministrationRpcs>
}

/** A text with its comparing form. Refuses one that is too long, or has nothing to compare. */
function checkQuestion(field: string, given: string | undefined): QuestionText {
  const question = (given ?? '').trim()
  const key = questionKey(question)
  if (key === '' || tooLong(question, 'text') || !isOneLine(question)) {
    const message = `Specify the text of a question: at most ${maxLengths.text} characters, no line breaks.`
    wrongField(field, key === '' ? 'MISSING' : 'MALFORMED', message)
  }
  return { question, questionKey: key }
}

function toQuestion({ id, question, active }: QuestionRow): AdministeredQuestion {
  return withEtag(AdministeredQuestionSchema, { record: { id, question, active: active ? 1 : 0 } })
}
