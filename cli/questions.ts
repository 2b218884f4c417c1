import { type Command, Option } from 'commander'
import type { Transaction } from '../server/database/connection.js'
import type { Registry } from '../server/models/definemodels.js'
import type { QuestionRow } from '../server/models/question.js'
import { questionKey as compare } from '../server/names.js'
import { askText, canAsk, given, readText } from './ask.js'
import { fail, misuse } from './failure.js'
import { jsonOption, printJson, printTable, say } from './output.js'
import { withRegistry } from './session.js'

/** Adds `auth-admin questions`. */
export function addQuestions(program: Command): void {
  const questions = program.command('questions').description('Security questions that users may answer')

  questions
    .command('add')
    .description('Offer a new question.')
    .addOption(new Option('--question <text>', 'its text, unique whatever case and accents').argParser(readText))
    .addOption(jsonOption())
    .addHelpText('after', "\nExample:\n  $ auth-admin questions add --question 'Qual é o seu livro preferido?'")
    .action(async (options: { question?: string; json?: boolean }) => {
      const text = await given(
        options.question,
        'The question:',
        'Give the text of the question with --question.',
        options,
      )
      const added = await withRegistry(async ({ registry, change }) => {
        const questionKey = keyOf(text)
        return change(async t => {
          const added = registry.questions.add({ question: text, questionKey }, t)
          const result = await unique(added, registry, questionKey)
          return { result, event: { action: 'question.add' as const, object: `question:${result.id}` } }
        })
      })
      show(added, options, `Question ${added.id} is offered.`)
    })

  questions
    .command('list')
    .description('List all questions by id, retired ones included.')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin questions list --json')
    .action(async (options: { json?: boolean }) => {
      const rows = await withRegistry(({ registry }) => registry.questions.all())
      if (options.json) return printJson(rows.map(toJson))
      const cells = rows.map(({ id, question, active }) => [id, question, active ? 'offered' : 'retired'])
      printTable(['id', 'question', 'state'], cells, 'There are no questions.')
    })

  questions
    .command('edit')
    .description('Change the text of a question. Answers already saved stay and count for the new text.')
    .argument('[question]', 'id or present text')
    .addOption(new Option('--question <text>', 'its new text').argParser(readText))
    .addOption(jsonOption())
    .addHelpText('after', "\nExample:\n  $ auth-admin questions edit 3 --question 'Qual era o nome da sua escola?'")
    .action(async (wanted: string | undefined, options: { question?: string; json?: boolean }) => {
      const named = await nameOf(wanted, options)
      const edited = await withRegistry(async ({ registry, change }) => {
        const found = await findQuestion(registry, named)
        const text = options.question || (await askForText(options, found.question))
        const questionKey = keyOf(text)
        return change(async t => {
          const row = await lockQuestion(registry, found.id, t)
          if (row.question === text) return { result: row }
          const edited = registry.questions.edit(row.id, { question: text, questionKey }, t)
          await unique(edited, registry, questionKey)
          const event = { action: 'question.edit', object: `question:${row.id}` } as const
          return { result: { ...row, question: text }, event }
        })
      })
      show(edited, options, `Question ${edited.id} is saved.`)
    })

  const verbs = [
    { verb: 'retire', active: false, about: 'Take no new answers to a question. Answers already saved still count.' },
    { verb: 'restore', active: true, about: 'Offer a retired question again.' },
  ] as const
  for (const { verb, active, about } of verbs) {
    questions
      .command(verb)
      .description(about)
      .argument('[question]', 'id or text')
      .addOption(jsonOption())
      .addHelpText('after', `\nExample:\n  $ auth-admin questions ${verb} 3`)
      .action(async (wanted: string | undefined, options: { json?: boolean }) => {
        const named = await nameOf(wanted, options)
        const { row, changed } = await withRegistry(async ({ registry, change }) => {
          const found = await findQuestion(registry, named)
          return change(async t => {
            const row = await lockQuestion(registry, found.id, t)
            const changed = row.active !== active
            if (changed) await registry.questions.setActive(row.id, active, t)
            const event = { action: `question.${verb}`, object: `question:${row.id}` } as const
            return { result: { row: { ...row, active }, changed }, ...(changed && { event }) }
          })
        })
        show(row, options, `Question ${row.id} is ${active ? 'offered' : 'retired'}${changed ? '' : ' already'}.`)
      })
  }
}

async function findQuestion({ questions }: Registry, wanted: string) {
  const id = /^#?(\d{1,9})$/.exec(wanted.trim())?.[1]
  const byId = id === undefined ? undefined : await questions.find({ id: Number(id) })
  const found = byId ?? (await questions.find({ key: compare(wanted) }))
  return found ?? fail(`There is no question ${wanted.trim()}: see \`auth-admin questions list\`.`)
}

async function lockQuestion({ questions }: Registry, id: number, t: Transaction): Promise<QuestionRow> {
  return (await questions.lock(id, t)) ?? fail('The question is gone.')
}

function nameOf(wanted: string | undefined, options: { json?: boolean }): Promise<string> {
  return given(wanted, 'Which question (id or text)?', 'Say which question: give its id or text.', options)
}

async function askForText(options: { json?: boolean; question?: string }, fallback: string): Promise<string> {
  if (options.question !== undefined || !canAsk(options)) misuse('Give the new text of the question with --question.')
  return askText('The question:', { required: true, fallback })
}

function keyOf(text: string): string {
  return compare(text) || misuse('The text of --question has nothing in it to compare.')
}

async function unique<T>(work: Promise<T>, { questions }: Registry, questionKey: string): Promise<T> {
  try {
    return await work
  } catch (error) {
    const { brokenConstraint } = await import('../server/database/connection.js')
    if (brokenConstraint(error) !== 'questions_question_key_key') throw error
    const same = await questions.find({ key: questionKey })
    return fail(`Question ${same?.id ?? ''} has this text already${same?.active === false ? ', and is retired' : ''}.`)
  }
}

function toJson({ id, question, active }: QuestionRow) {
  return { id, question, active: active ? 1 : 0 }
}

function show(row: QuestionRow, { json }: { json?: boolean }, sentence: string): void {
  if (json) printJson(toJson(row))
  else say(sentence)
}
