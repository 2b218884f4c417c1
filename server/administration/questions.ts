import {
  type AdministeredQuestion,
  AdministeredQuestionSchema,
  Administration as AdministrationService,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { brokenConstraint } from '../database/failures.js'
import type { QuestionPlace, QuestionRow, Questions, UnmatchedRow } from '../models/question.js'
import type { OpenPage } from '../requests/paging.js'
import { refuse } from '../requests/refusal.js'
import { wrongFields } from '../requests/wrong-fields.js'
import { isOneLine, questionKey } from '../rules/names.js'
import { limits, tooLong } from '../rules/sizes.js'
import { changeRecord, type Done, type Kind, setActive } from './change-record.js'
import type { Checked, Handler } from './context.js'
import { withEtag } from './etag.js'
import type { References } from './references.js'

interface Deps {
  questions: Questions
  openPage: OpenPage
}

/** Most questions that one call puts first. */
const maxOrdered = 100

/** The text of a question, and the key that finds it. */
interface QuestionText {
  readonly question: string
  readonly questionKey: string
}

/** Lists questions in their order. */
export function listQuestions(deps: Deps): Handler<'listQuestions'> {
  const { questions, openPage } = deps
  return async request => {
    const page = openPage<QuestionPlace>(AdministrationService.method.listQuestions, request)
    const rows = await questions.list({
      limit: page.limit,
      ...(page.after && { after: page.after }),
      ...(request.offered !== undefined && { active: request.offered }),
    })
    const { shown, ...next } = page.cut(rows, ({ id, position }) => ({ id, position }))
    return {
      questions: shown.map(toQuestion),
      ...next,
    }
  }
}

/** Returns a question. */
export function getQuestion(): Handler<'getQuestion'> {
  return async (_request, { target }) => ({ question: toQuestion(target) })
}

/** Offers a new question. */
export function createQuestion(deps: Deps): Handler<'createQuestion'> {
  const { questions } = deps
  return async (request, { create }) => {
    const text = checkQuestion('question', request.question)
    const created = create(AdministrationService.method.createQuestion, request, async ({ t, record }) => {
      const row = await questions.add(text, t)
      await record({ action: 'question.add', object: `question:${row.id}` })
      return { question: toQuestion(row) }
    })
    return unique(created, questions, text)
  }
}

/** Changes the text of a question; answers already saved stay and count for the new text. */
export function updateQuestion({ questions }: Deps): Checked<'updateQuestion', QuestionText> {
  return {
    check: request => checkQuestion('text', request.text),
    handle(request, context, text) {
      const updated = changeRecord(kindOf(questions), context, request, async (row, t) => {
        if (row.question === text.question) return undefined
        await questions.edit(row.id, text, t)
        return { action: 'question.edit' }
      })
      return unique(updated, questions, text)
    },
  }
}

/** Offers a retired question again. */
export function offerQuestion({ questions }: Deps): Handler<'offerQuestion'> {
  const offer = setActive(questions, true, 'question.restore')
  return (request, context) => changeRecord(kindOf(questions), context, request, offer)
}

/** Retires a question: it takes no new answers. Saved answers still count. */
export function retireQuestion({ questions }: Deps): Handler<'retireQuestion'> {
  const retire = setActive(questions, false, 'question.retire')
  return (request, context) => changeRecord(kindOf(questions), context, request, retire)
}

/** Puts questions first, in the given order; the others follow in their present order. */
export function orderQuestions(deps: {
  questions: Questions
  references: Pick<References, 'question'>
}): Handler<'orderQuestions'> {
  const { questions, references } = deps
  return async (request, { change }) => {
    const { questions: named } = request
    if (named.length === 0 || named.length > maxOrdered)
      wrongFields([{ field: 'questions', message: `Name 1 to ${maxOrdered} questions, in their new order.` }])
    const first: number[] = []
    for (const reference of named) first.push((await references.question(reference, 'questions')).id)
    if (new Set(first).size < first.length) wrongFields([{ field: 'questions', message: 'Name each question once.' }])
    return change(request, async ({ t, record }) => {
      const changed = await questions.order(first, t)
      if (changed) await record({ action: 'question.order', reason: first.join(',') })
      return { questions: (await questions.all(t)).map(toQuestion), changed }
    })
  }
}

/** Lists texts of sign-ups that match no question of the registry, those with most users first. */
export function listUnmatchedQuestions(deps: Deps): Handler<'listUnmatchedQuestions'> {
  const { questions, openPage } = deps
  return async request => {
    type Place = Pick<UnmatchedRow, 'questionKey' | 'users'>
    const page = openPage<Place>(AdministrationService.method.listUnmatchedQuestions, request)
    const rows = await questions.unmatched({ limit: page.limit, ...(page.after && { after: page.after }) })
    const { shown, ...next } = page.cut(rows, ({ questionKey, users }) => ({ questionKey, users }))
    return { questions: shown.map(({ question, users }) => ({ question, users })), ...next }
  }
}

/** Links a text of sign-ups to a question: its answers count, now and in later sign-ups. */
export function linkQuestion({ questions }: Deps): Checked<'linkQuestion', QuestionText> {
  return {
    check: request => checkQuestion('text', request.text),
    async handle(request, { change, target: { id } }, text) {
      const linkSome = () =>
        change(request, async ({ t, record }) => {
          const row = await kindOf(questions).lock(id, t)
          const { added, more, known } = await questions.link(text.questionKey, id, t)
          if (!known) refuse(Reason.RECORD_NOT_FOUND, { text: `No sign-up has the question ${text.question}.` })
          await record({ action: 'question.link', object: `question:${id}` })
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
  }
}

function kindOf(questions: Questions): Kind<QuestionRow, Done, { question: AdministeredQuestion }> {
  return {
    async lock(id, t) {
      const row = await questions.lock(id, t)
      return row ?? refuse(Reason.RECORD_NOT_FOUND, { text: `Question #${id} no longer exists.` })
    },
    show: toQuestion,
    record: ({ record }, done, { id }) => record({ ...done, object: `question:${id}` }),
    answer: row => ({ question: toQuestion(row) }),
  }
}

/** A text with its comparing form. Refuses one that is too long, or has nothing to compare. */
function checkQuestion(field: string, given: string | undefined): QuestionText {
  const question = (given ?? '').trim()
  const key = questionKey(question)
  if (key === '' || tooLong(question, 'text') || !isOneLine(question)) {
    const message = `Specify the text of a question: at most ${limits.text} characters, no line breaks.`
    wrongFields([{ field, message }])
  }
  return { question, questionKey: key }
}

/** Refuses with NAME_TAKEN, and names the question that has the text already. */
async function unique<T>(work: Promise<T>, questions: Questions, { questionKey }: { questionKey: string }): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (brokenConstraint(error) !== 'questions_question_key_key') throw error
    const same = await questions.find({ key: questionKey })
    const retired = same?.active === false ? ', and is retired' : ''
    return refuse(Reason.NAME_TAKEN, { text: `Question ${same?.id ?? ''} already has this text${retired}.` })
  }
}

function toQuestion({ id, question, active }: QuestionRow): AdministeredQuestion {
  return withEtag(AdministeredQuestionSchema, { record: { id, question, active: active ? 1 : 0 } })
}
