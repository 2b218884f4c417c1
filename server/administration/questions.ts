import {
  type AdministeredQuestion,
  AdministeredQuestionSchema,
  Administration as AdministrationService,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Change } from '../access/context.js'
import { brokenConstraint } from '../database/failures.js'
import type { AuditEvent } from '../models/audit.js'
import type { QuestionRow, Questions, UnmatchedRow } from '../models/question.js'
import { refuse } from '../requests/refusal.js'
import { isOneLine, questionKey } from '../rules/names.js'
import { limits, tooLong } from '../rules/sizes.js'
import type { AdministrationContext, Checked, Handler } from './context.js'
import { checkEtag, withEtag } from './etag.js'
import type { OpenPage } from './paging.js'
import { wrongFields } from './wrong-fields.js'

interface Deps {
  questions: Questions
  openPage: OpenPage
}

/** The text of a question, and the key that finds it. */
interface QuestionText {
  readonly question: string
  readonly questionKey: string
}

/** Lists questions by id. */
export function listQuestions(deps: Deps): Handler<'listQuestions'> {
  const { questions, openPage } = deps
  return async request => {
    const page = openPage<number>(AdministrationService.method.listQuestions, request)
    const rows = await questions.list({
      limit: page.limit,
      ...(page.after !== undefined && { afterId: page.after }),
      ...(request.offered !== undefined && { active: request.offered }),
    })
    const { shown, ...next } = page.cut(rows, ({ id }) => id)
    return {
      questions: shown.map(toQuestion),
      ...next,
    }
  }
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
export function updateQuestion(deps: Deps): Checked<'updateQuestion', QuestionText> {
  return {
    check: request => checkQuestion('text', request.text),
    handle(request, context, text) {
      const updated = changeQuestion(deps.questions, context, request, async ({ t, record }, row) => {
        if (row.question === text.question) return false
        await deps.questions.edit(row.id, text, t)
        await record({ action: 'question.edit', object: `question:${row.id}` })
        return true
      })
      return unique(updated, deps.questions, text)
    },
  }
}

/** Offers a retired question again. */
export function offerQuestion(deps: Deps): Handler<'offerQuestion'> {
  return async (request, context) => {
    return changeQuestion(deps.questions, context, request, switchTo(deps, true, 'question.restore'))
  }
}

/** Takes no new answers to a question. Answers already saved still count. */
export function retireQuestion(deps: Deps): Handler<'retireQuestion'> {
  return async (request, context) => {
    return changeQuestion(deps.questions, context, request, switchTo(deps, false, 'question.retire'))
  }
}

/** Lists the texts of sign-ups that are no question of ours, those of most users first. */
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

/** Makes a text another one for a question: the answers that users gave to it count, and those of sign-ups to come. */
export function linkQuestion({ questions }: Deps): Checked<'linkQuestion', QuestionText> {
  return {
    check: request => checkQuestion('text', request.text),
    async handle(request, { change, target: { id } }, text) {
      const linkSome = () =>
        change(request, async ({ t, record }) => {
          const row = await lock(questions, id, t)
          const { added, more, known } = await questions.link(text.questionKey, id, t)
          if (!known) refuse(Reason.RECORD_NOT_FOUND, { text: `No user has given ${text.question} as a question.` })
          await record({ action: 'question.link', object: `question:${id}` })
          return { question: toQuestion(row), added, more }
        })
      // A transaction is short. A caller that is interrupted repeats it for the rest.
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

/** The change that has a question be offered, or not. */
function switchTo({ questions }: Pick<Deps, 'questions'>, active: boolean, action: AuditEvent['action']) {
  return async ({ t, record }: Change, row: QuestionRow) => {
    if (row.active === active) return false
    await questions.setActive(row.id, active, t)
    await record({ action, object: `question:${row.id}` })
    return true
  }
}

/** Locks the question that a request refers to, checks the etag, makes a change, and answers with what it is now. */
async function changeQuestion(
  questions: Questions,
  { change, target: { id } }: AdministrationContext<QuestionRow>,
  request: { etag: string; validateOnly: boolean },
  work: (change: Change, row: QuestionRow) => Promise<boolean>,
) {
  return change(request, async made => {
    const row = await lock(questions, id, made.t)
    checkEtag(request.etag, toQuestion(row))
    const changed = await work(made, row)
    return { question: toQuestion(await lock(questions, id, made.t)), changed }
  })
}

/** The row, which nobody else changes before the transaction ends. */
async function lock(questions: Questions, id: number, t: Change['t']): Promise<QuestionRow> {
  return (await questions.lock(id, t)) ?? refuse(Reason.RECORD_NOT_FOUND, { text: `Question #${id} is gone.` })
}

/** A text with its comparing form. Refuses one that is too long, or has nothing to compare. */
function checkQuestion(field: string, given: string | undefined): QuestionText {
  const question = (given ?? '').trim()
  const key = questionKey(question)
  if (key === '' || tooLong(question, 'text') || !isOneLine(question)) {
    const message = `Give the text of a question, in at most ${limits.text} characters and without line breaks.`
    wrongFields([{ field, message }])
  }
  return { question, questionKey: key }
}

/** Tells whose text it is, where another question has it. */
async function unique<T>(work: Promise<T>, questions: Questions, { questionKey }: { questionKey: string }): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (brokenConstraint(error) !== 'questions_question_key_key') throw error
    const same = await questions.find({ key: questionKey })
    const retired = same?.active === false ? ', and is retired' : ''
    return refuse(Reason.NAME_TAKEN, { text: `Question ${same?.id ?? ''} has this text already${retired}.` })
  }
}

function toQuestion({ id, question, active }: QuestionRow): AdministeredQuestion {
  return withEtag(AdministeredQuestionSchema, { record: { id, question, active: active ? 1 : 0 } })
}
