import { Option } from 'commander'
import type { AdministeredQuestion, UnmatchedQuestion } from '../../proto/gen/auth/v1/administration_pb.js'
import type { GlobalOptions as Options } from '../administration.js'
import { readReference } from '../arguments.js'
import type { Command } from '../command.js'
import { misuse } from '../exit-codes.js'
import { askText, canAsk, confirm, given, readText } from '../terminal/ask.js'
import { inTerminalLanguage } from '../terminal/language.js'
import { printFields, printJson, say } from '../terminal/output.js'
import { type List, type ListOptions, printPages } from '../terminal/pages.js'
import { questionOutput, referenceTo, stateOf, withRecord } from './nouns.js'

/** Adds `auth-admin questions`. */
export function addQuestions(program: Command): void {
  const questions = program.command('questions').description('Manage the security questions that users may answer.')

  questions
    .command('create')
    .description('Offer a new question.')
    .argument('[question]', 'text; unique, case and accents don’t matter', readText)
    .option('--question <text>', 'the same as the argument', readText)
    .json()
    .examples("questions create 'Qual é o seu livro preferido?'")
    .administers(async (api, text: string | undefined, options: Options & { question?: string }) => {
      const { question } = await api.createQuestion({
        question: await given(text ?? options.question, 'Question:', 'Pass the text of the question.', options),
      })
      show(question!, options, `Question ${question!.record!.id} is offered.`)
    })

  questions
    .command('list')
    .pages()
    .description('List questions in their order, including retired ones.')
    .addOption(new Option('--offered', 'only those that users may answer').conflicts('retired'))
    .option('--retired', 'only those that take no new answers')
    .examples('questions list --json')
    .administers(async (api, options: ListOptions & { offered?: boolean; retired?: boolean }) => {
      const { offered, retired } = options
      const filter = (offered || retired) && { offered: !retired }
      await printPages(questionList, options, page => api.listQuestions({ ...filter, ...page }))
    })

  withRecord(questions.command('show'), 'question')
    .description('Show a question.')
    .examples('questions show 3')
    .administers(async (api, name: string | undefined, options: Options) => {
      const question = (await api.getQuestion({ question: await referenceTo('question', name, options) })).question!
      if (options.json) return printJson(questionOutput(question))
      const { id, question: text, active } = question.record!
      printFields({ id, question: text, status: inTerminalLanguage(stateOf(active)) })
    })

  withRecord(questions.command('edit'), 'question')
    .description('Change the text of a question. Saved answers count for the new text.')
    .option('--question <text>', 'new text of the question', readText)
    .examples("questions edit 3 --question 'Qual era o nome da sua escola?'")
    .administers(async (api, name: string | undefined, options: Options & { question?: string }) => {
      const question = await referenceTo('question', name, options)
      const asks = options.question === undefined && canAsk(options)
      const now = asks ? (await api.getQuestion({ question })).question! : undefined
      const text = now
        ? await askText('Question:', { required: true, fallback: now.record!.question ?? '' })
        : options.question || misuse('Pass the new text of the question with --question.')
      const edited = await api.updateQuestion({ question, text, etag: now?.etag ?? '' })
      show(edited.question!, options, `Question ${edited.question!.record!.id} is saved.`)
    })

  questions
    .command('order')
    .description('Put questions first, in the given order; the others follow in their present order.')
    .argument('<question...>', 'ids or texts', (name: string, before: string[] = []) => [
      ...before,
      readReference(name),
    ])
    .json()
    .remarks(`
Applications show the questions in this order. It is by id until you change it.
A new question is the last.`)
    .examples('questions order 5 3 1')
    .administers(async (api, names: string[], options: Options) => {
      const { questions, changed } = await api.orderQuestions({ questions: names })
      if (options.json) return printJson({ questions: questions.map(questionOutput), changed })
      const ids = questions.map(({ record }) => record!.id).join(', ')
      say(`The order of the questions is ${changed ? 'now' : 'already'} ${ids}.`)
    })

  const unmatched = questions
    .command('unmatched')
    .description('Show questions of sign-ups that aren’t in the registry.')
  unmatched
    .command('list')
    .pages()
    .description('List questions of sign-ups that aren’t in the registry, with the number of users of each.')
    .remarks(`
Applications may offer their own questions. The answers are kept, and count once
\`questions link\` links the text to a question of the registry.`)
    .examples('questions unmatched list')
    .administers(async (api, options: ListOptions) => {
      await printPages(unmatchedList, options, page => api.listUnmatchedQuestions(page))
    })

  questions
    .command('link')
    .description('Link a question of sign-ups to one of the registry: its answers count from now on.')
    .argument('<text>', 'as `questions unmatched list` shows it; case and accents don’t matter', readText)
    .argument('<question>', 'id or text of the question to link it to')
    .yes()
    .json()
    .remarks(`
Users who answered the question itself keep that answer. The link also applies
to later sign-ups. This can’t be undone.`)
    .examples("questions link 'Nome do primeiro pet' 1")
    .administers(async (api, text: string, name: string, options: Options & { yes?: boolean }) => {
      const request = { text, question: name }
      await confirm(
        `The answers to “${text}” count for question ${name} from now on, for good. Link it?`,
        options,
        () => api.linkQuestion({ ...request, validateOnly: true }),
      )
      const { question, linked } = await api.linkQuestion(request)
      if (options.json) return printJson({ ...questionOutput(question!), linked })
      const who = linked === 1 ? 'The answer of 1 user counts' : `The answers of ${linked} users count`
      say(`${who} for question ${question!.record!.id} from now on.`)
    })
}

const questionList: List<AdministeredQuestion, 'questions'> = {
  name: 'questions',
  toOutput: questionOutput,
  head: { titles: ['id', 'status', 'question'] },
  toCells({ record }) {
    const { id, question, active } = record!
    return [id, inTerminalLanguage(stateOf(active)), question]
  },
  empty: 'No questions match.',
}

const unmatchedList: List<UnmatchedQuestion, 'questions'> = {
  name: 'questions',
  toOutput: ({ question, users }) => ({ question, users }),
  head: { titles: ['users', 'question'], whole: ['question'] },
  toCells: ({ question, users }) => [users, question],
  empty: 'Every question of a sign-up is in the registry.',
}

function show(question: AdministeredQuestion, { json }: Options, sentence: string): void {
  if (json) printJson(questionOutput(question))
  else say(sentence)
}
