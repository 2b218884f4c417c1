import { type Command, Option } from 'commander'
import type { AdministeredQuestion, UnmatchedQuestion } from '../../proto/gen/auth/v1/administration_pb.js'
import { administering } from '../administration.js'
import { readReference, withReference } from '../arguments.js'
import { misuse } from '../exit-codes.js'
import { askText, canAsk, confirm, given, readText, yesOption } from '../terminal/ask.js'
import { jsonOption, printFields, printJson, say } from '../terminal/output.js'
import { type List, type ListOptions, printPages, withPages } from '../terminal/pages.js'

interface Options {
  readonly json?: boolean
}

/** Adds `auth-admin questions`. */
export function addQuestions(program: Command): void {
  const questions = program.command('questions').description('Manage the security questions that users may answer.')

  questions
    .command('create')
    .description('Offer a new question.')
    .addOption(new Option('--question <text>', 'text; unique, case and accents don’t matter').argParser(readText))
    .addOption(jsonOption())
    .addHelpText('after', "\nExample:\n  $ auth-admin questions create --question 'Qual é o seu livro preferido?'")
    .action(
      administering(async (api, options: Options & { question?: string }) => {
        const missing = 'Pass the text of the question with --question.'
        const { question } = await api.createQuestion({
          question: await given(options.question, 'Question:', missing, options),
        })
        show(question!, options, `Question ${question!.record!.id} is offered.`)
      }),
    )

  withPages(questions.command('list'), questionList)
    .description('List questions in their order, including retired ones.')
    .addOption(new Option('--offered', 'only those that users may answer').conflicts('retired'))
    .option('--retired', 'only those that take no new answers')
    .addHelpText('after', '\nExample:\n  $ auth-admin questions list --json')
    .action(
      administering(async (api, options: ListOptions & { offered?: boolean; retired?: boolean }) => {
        const { offered, retired } = options
        const filter = (offered || retired) && { offered: !retired }
        await printPages(questionList, options, async page => {
          const { questions, nextPageToken } = await api.listQuestions({ ...filter, ...page })
          return { rows: questions, nextPageToken }
        })
      }),
    )

  withName(questions.command('show'))
    .description('Show a question.')
    .addHelpText('after', '\nExample:\n  $ auth-admin questions show 3')
    .action(
      administering(async (api, name: string | undefined, options: Options) => {
        const question = (await api.getQuestion({ question: await nameOf(name, options) })).question!
        if (options.json) return printJson(toOutput(question))
        const { id, question: text, active } = question.record!
        printFields({ id, question: text, status: stateOf(active) })
      }),
    )

  withName(questions.command('edit'))
    .description('Change the text of a question. Saved answers count for the new text.')
    .addOption(new Option('--question <text>', 'new text of the question').argParser(readText))
    .addHelpText('after', "\nExample:\n  $ auth-admin questions edit 3 --question 'Qual era o nome da sua escola?'")
    .action(
      administering(async (api, name: string | undefined, options: Options & { question?: string }) => {
        const question = await nameOf(name, options)
        const asks = options.question === undefined && canAsk(options)
        const now = asks ? (await api.getQuestion({ question })).question! : undefined
        const text = now
          ? await askText('Question:', { required: true, fallback: now.record!.question ?? '' })
          : options.question || misuse('Pass the new text of the question with --question.')
        const edited = await api.updateQuestion({ question, text, etag: now?.etag ?? '' })
        show(edited.question!, options, `Question ${edited.question!.record!.id} is saved.`)
      }),
    )

  withName(questions.command('retire'))
    .description('Retire a question: it takes no new answers. Saved answers still count.')
    .addHelpText('after', '\nExample:\n  $ auth-admin questions retire 3')
    .action(
      administering(async (api, name: string | undefined, options: Options) => {
        const { question, changed } = await api.retireQuestion({ question: await nameOf(name, options) })
        show(question!, options, `Question ${question!.record!.id} is retired${changed ? '' : ' already'}.`)
      }),
    )

  withName(questions.command('offer'))
    .description('Offer a retired question again.')
    .addHelpText('after', '\nExample:\n  $ auth-admin questions offer 3')
    .action(
      administering(async (api, name: string | undefined, options: Options) => {
        const { question, changed } = await api.offerQuestion({ question: await nameOf(name, options) })
        show(question!, options, `Question ${question!.record!.id} is offered${changed ? '' : ' already'}.`)
      }),
    )

  questions
    .command('order')
    .description('Put questions first, in the given order; the others follow in their present order.')
    .argument('<question...>', 'ids or texts', (name: string, before: string[] = []) => [
      ...before,
      readReference(name),
    ])
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
Applications show the questions in this order. It is by id until you change it.
A new question is the last.

Example:
  $ auth-admin questions order 5 3 1`,
    )
    .action(
      administering(async (api, names: string[], options: Options) => {
        const { questions, changed } = await api.orderQuestions({ questions: names })
        if (options.json) return printJson({ questions: questions.map(toOutput), changed })
        const ids = questions.map(({ record }) => record!.id).join(', ')
        say(`The order of the questions is ${changed ? 'now' : 'already'} ${ids}.`)
      }),
    )

  const unmatched = questions
    .command('unmatched')
    .description('Show questions of sign-ups that aren’t in the registry.')
  withPages(unmatched.command('list'), unmatchedList)
    .description('List questions of sign-ups that aren’t in the registry, with the number of users of each.')
    .addHelpText(
      'after',
      `
Applications may offer their own questions. The answers are kept, and count once
\`questions link\` links the text to a question of the registry.

Example:
  $ auth-admin questions unmatched list`,
    )
    .action(
      administering(async (api, options: ListOptions) => {
        await printPages(unmatchedList, options, async page => {
          const { questions, nextPageToken } = await api.listUnmatchedQuestions(page)
          return { rows: questions, nextPageToken }
        })
      }),
    )

  questions
    .command('link')
    .description('Link a question of sign-ups to one of the registry: its answers count from now on.')
    .argument('<text>', 'as `questions unmatched list` shows it; case and accents don’t matter', readText)
    .argument('<question>', 'id or text of the question to link it to')
    .addOption(yesOption())
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
Users who answered the question itself keep that answer. The link also applies
to later sign-ups. This can’t be undone.

Example:
  $ auth-admin questions link 'Nome do primeiro pet' 1`,
    )
    .action(
      administering(async (api, text: string, name: string, options: Options & { yes?: boolean }) => {
        const request = { text, question: name }
        await confirm(
          `The answers to “${text}” count for question ${name} from now on, for good. Link it?`,
          options,
          () => api.linkQuestion({ ...request, validateOnly: true }),
        )
        const { question, linked } = await api.linkQuestion(request)
        if (options.json) return printJson({ ...toOutput(question!), linked })
        const who = linked === 1 ? 'The answer of 1 user counts' : `The answers of ${linked} users count`
        say(`${who} for question ${question!.record!.id} from now on.`)
      }),
    )
}

function withName(command: Command): Command {
  return withReference(command, 'question', 'id or text').addOption(jsonOption())
}

function nameOf(name: string | undefined, options: Options): Promise<string> {
  return given(name, 'Which question (id or text)?', 'Name the question: pass its id or text.', options)
}

function stateOf(active: number | undefined): string {
  return active === 1 ? 'offered' : 'retired'
}

/** A question in the fields of the contract, and what else administrators see. */
function toOutput({ record, etag }: AdministeredQuestion) {
  const { id, question, active } = record!
  return { id, question, active, status: stateOf(active), etag }
}

const questionList: List<AdministeredQuestion> = {
  name: 'questions',
  fields: ['id', 'question', 'active', 'status', 'etag'],
  toOutput,
  head: { titles: ['id', 'status', 'question'] },
  toCells({ record }) {
    const { id, question, active } = record!
    return [id, stateOf(active), question]
  },
  empty: 'No questions match.',
}

const unmatchedList: List<UnmatchedQuestion> = {
  name: 'questions',
  fields: ['question', 'users'],
  toOutput: ({ question, users }) => ({ question, users }),
  head: { titles: ['users', 'question'], whole: ['question'] },
  toCells: ({ question, users }) => [users, question],
  empty: 'Every question of a sign-up is in the registry.',
}

function show(question: AdministeredQuestion, { json }: Options, sentence: string): void {
  if (json) printJson(toOutput(question))
  else say(sentence)
}
