// A verb: a command that names a record, calls one RPC, and says in a sentence what became of the record.
import type { administrationPolicies } from '../../server/policy/administration.js'
import type { Api, GlobalOptions } from '../administration.js'
import type { Command } from '../command.js'
import { misuse } from '../exit-codes.js'
import { canAsk, confirm, confirmName, missingYes } from '../terminal/ask.js'
import { printJson, say } from '../terminal/output.js'
import { type Answer, type Found, type Noun, type NounName, nouns, outputOf, referenceTo, whoIn } from './nouns.js'

type Options = GlobalOptions & Readonly<Record<string, unknown>>

/** The options that answer a question. */
interface Confirmed extends GlobalOptions {
  readonly yes?: boolean
  readonly confirm?: string
}

/** What a verb is. In its sentences, `{0}` is the record that it is about. */
export interface Verb {
  readonly about: string
  readonly rpc: Exclude<keyof typeof administrationPolicies, 'signIn'>
  /** What its argument names; none for the registry. */
  readonly on?: NounName
  /** Adds its own options and arguments. */
  readonly more?: (command: Command) => unknown
  /** The fields of its request other than the record. */
  readonly request?: (options: Options, api: Api, ...words: never[]) => object | Promise<object>
  /** What a terminal asks before; elsewhere --yes is required. */
  readonly asks?: string
  /** What can't be undone: it needs the name of the record again. */
  readonly warns?: string
  /** What became of the record, and what is said if it was so already. */
  readonly says: string | ((answer: Answer) => string)
  readonly already?: string
  /** What `--json` prints; absent, the record. */
  readonly output?: (answer: Answer, record: object) => object
  /** Does without a record what the options say, if they do. Whether they did. */
  readonly instead?: (api: Api, options: Options) => Promise<boolean>
  /** Prints what the sentence doesn't have. */
  readonly prints?: (answer: Answer) => void
  /** Whether the sentence needs the record, and the answer doesn't have it. */
  readonly finds?: true
  readonly remarks?: string
  readonly examples: readonly string[]
}

/** Adds a verb to the command of its noun. */
export function addVerb(parent: Command, name: string, verb: Verb): void {
  const { about, rpc, on, more, asks, warns, remarks, examples } = verb
  const command = parent.command(name).description(about).signIn(rpc)
  const noun: Noun | undefined = on && nouns[on]
  if (noun) command.reference(noun.place, noun.how)
  more?.(command)
  if (asks) command.yes()
  if (warns) command.option('--confirm <name>', 'the name again; a terminal prompts for it')
  command.json()
  if (remarks) command.remarks(remarks)
  command.examples(...examples)
  command.administers(async (api, ...given: readonly unknown[]) => {
    const options = given[noun ? command.registeredArguments.length : 0] as Options & Confirmed
    const words = given.slice(0, command.registeredArguments.length) as (string | undefined)[]
    await run(api, verb, noun, words, options)
  })
}

async function run(
  api: Api,
  verb: Verb,
  noun: Noun | undefined,
  words: (string | undefined)[],
  options: Options & Confirmed,
) {
  const { rpc, asks, warns, says, already, finds, output, prints } = verb
  if (await verb.instead?.(api, options)) return
  const call = api[rpc] as (request: object) => Promise<Answer>
  const reference = verb.on ? await referenceTo(verb.on, words.shift(), options) : ''
  const fields = (await verb.request?.(options, api, ...(words as never[]))) ?? {}
  const named = noun ? { [noun.field]: noun.read ? noun.read(reference) : reference } : {}
  const mustAsk = asks !== undefined && !options.yes
  if (mustAsk && !canAsk(options)) misuse(missingYes)
  const found: Found =
    noun?.find && (mustAsk || warns || finds)
      ? await noun.find(api, reference)
      : { who: reference, name: reference, brief: named }
  const about = (sentence: string, who = found.who) => sentence.replace('{0}', () => who)
  const request = {
    ...named,
    ...(found.etag !== undefined && { etag: found.etag }),
    ...fields,
  }
  if (mustAsk) await confirm(about(asks), options, () => call({ ...request, validateOnly: true }))
  const final = warns && {
    confirm: await confirmName(about(warns), found.name, options, confirm =>
      call({ ...request, confirm, validateOnly: true }),
    ),
  }
  const answer = await call({ ...request, ...final })
  const record = outputOf(answer) ?? found.brief
  if (options.json) return printJson(output ? output(answer, record) : record)
  const sentence = typeof says === 'function' ? says(answer) : says
  say(about(answer.changed === false ? (already ?? sentence) : sentence, whoIn(answer)))
  prints?.(answer)
}
