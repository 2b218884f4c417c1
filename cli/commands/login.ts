import { timestampDate } from '@bufbuild/protobuf/wkt'
import { type Command, InvalidArgumentError, Option } from 'commander'
import { administering, type GlobalOptions } from '../administration.js'
import {
  type Context,
  chooseContext,
  contextOf,
  contextOfEnvironment,
  local,
  readContexts,
  removeToken,
  tokenFileOf,
  writeContexts,
  writeToken,
} from '../contexts.js'
import { fail, misuse } from '../exit-codes.js'
import { readUrl } from '../remote.js'
import { type Secrets, signIn } from '../sign-in.js'
import { canAsk, given } from '../terminal/ask.js'
import { jsonOption, printFields, printJson, printTable, say, warn } from '../terminal/output.js'
import { userOutput } from './users/output.js'

type LoginOptions = GlobalOptions &
  Secrets & {
    readonly ca?: string
    readonly username?: string
  }

/** Adds `auth-admin login`, `logout`, `whoami` and `contexts`. */
export function addLogin(program: Command): void {
  program
    .command('login')
    .description('Sign in to a server as an administrator. The session lasts 12 hours.')
    .argument('[url]', 'https://host:port of its administration listener; by default that of the context', parseUrl)
    .addOption(new Option('--ca <file>', 'PEM file of the certificate authority of the server'))
    .addOption(new Option('--username <name>', 'username of the administrator'))
    .addOption(new Option('--password-file <file>', 'file with the password; - for standard input'))
    .addOption(new Option('--code-file <file>', 'file with the one-time code, if you enrolled an authenticator'))
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
A terminal prompts for the URL, the username, the password and the one-time
code. The token is kept in a file of your configuration folder, and all commands
use it from then on. Pass --local to work on the database itself.

Examples:
  $ auth-admin login https://auth.example.org:50052 --context production
  $ auth-admin login --context production`,
    )
    .action(async (url: string | undefined, _options: LoginOptions, command: Command) => {
      const options = command.optsWithGlobals<LoginOptions>()
      const { name, context } = await contextFor(url, options)
      const username = await given(options.username, 'Username:', 'Without a terminal, pass --username.', options)
      const session = await signIn(
        name === new URL(context.url).host ? context : { name, ...context },
        username,
        options,
      )
      await writeToken(context.tokenFile, session.token)
      const { contexts } = await readContexts()
      await writeContexts({ current: name, contexts: { ...contexts, [name]: context } })
      const expires = timestampDate(session.expireTime!)
      if (options.json) printJson({ context: name, url: context.url, username, expires })
      else say(`You are signed in to ${name} (${context.url}) until ${expires.toLocaleString()}.`)
      warnOfEnvironment(name)
    })

  program
    .command('logout')
    .description('End the session of a context.')
    .option('--everywhere', 'also revoke all tokens of this administrator')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin logout --everywhere')
    .action(
      administering(async (api, options: GlobalOptions & { everywhere?: boolean }) => {
        const chosen = await contextOf(options)
        if (!chosen) return fail('You are not signed in: run `auth-admin login`.', 4)
        if (options.everywhere) {
          const { user } = await api.getSession({})
          await api.revokeTokens({ user: `#${user!.record!.id}` })
        }
        const there = await removeToken(chosen.context)
        if (options.json) printJson({ context: chosen.name, signedOut: there })
        else say(there ? `You are signed out of ${chosen.name}.` : `You were not signed in to ${chosen.name}.`)
      }),
    )

  program
    .command('whoami')
    .description('Show who you are, where commands run, and when the session ends.')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin whoami --json')
    .action(
      administering(async (api, options: GlobalOptions) => {
        const chosen = await contextOf(options)
        const { user, actor, signInTime, expireTime, totp } = await api.getSession({})
        const where = chosen ? { context: chosen.name, url: chosen.context.url } : { context: 'local' }
        const times = {
          signedIn: signInTime && timestampDate(signInTime),
          expires: expireTime && timestampDate(expireTime),
        }
        if (options.json) return printJson({ ...where, actor, ...(user && { user: userOutput(user), totp }), ...times })
        const who = user ? `${user.record!.username} (#${user.record!.id})` : actor
        printFields({ who, ...where, ...times, ...(user && { 'one-time codes': totp }) })
      }),
    )

  const contexts = program.command('contexts').description('Servers that you signed in to')
  contexts
    .command('list')
    .description('List the contexts; * marks the current one.')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin contexts list')
    .action(async (options: GlobalOptions) => {
      const { current, contexts } = await readContexts()
      const used = contextOfEnvironment() ?? current
      const rows = Object.entries(contexts).map(([name, { url, ca }]) => ({ name, url, ca, current: name === used }))
      if (options.json) return printJson(rows)
      const cells = rows.map(row => [row.current ? '*' : '', row.name, row.url])
      printTable(['', 'name', 'url'], cells, 'No contexts: commands work on the database itself.')
    })
  contexts
    .command('use')
    .description('Select the current context; `local` is the database itself.')
    .argument('<name>', 'name of the context')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin contexts use production')
    .action(async (name: string, options: GlobalOptions) => {
      const { contexts } = await readContexts()
      await chooseContext(name)
      await writeContexts({ ...(name !== local && { current: name }), contexts })
      if (options.json) printJson({ current: name })
      else say(name === local ? 'Commands work on the database itself.' : `Commands work at ${name}.`)
      warnOfEnvironment(name)
    })
  contexts
    .command('remove')
    .description('Remove a context and its session.')
    .argument('<name>', 'name of the context')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin contexts remove production')
    .action(async (name: string, options: GlobalOptions) => {
      const chosen = (await chooseContext(name)) ?? misuse('`local` is the database itself, and can’t be removed.')
      await removeToken(chosen.context)
      const { current, contexts } = await readContexts()
      const { [name]: _, ...others } = contexts
      await writeContexts({ ...(current !== undefined && current !== name && { current }), contexts: others })
      if (options.json) printJson({ removed: name })
      else say(`Context ${name} is removed.`)
    })
}

/** AUTH_CONTEXT outweighs the context that a command made current. */
function warnOfEnvironment(current: string): void {
  const used = contextOfEnvironment()
  if (used !== undefined && used !== current) warn(`AUTH_CONTEXT is set: commands still work at ${used}.`)
}

const urlProblem = (text: string) =>
  readUrl(text) === undefined
    ? 'Use https://host:port; http:// works for this machine only, because it exposes the token.'
    : undefined

function parseUrl(text: string): string {
  const problem = urlProblem(text)
  if (problem !== undefined) throw new InvalidArgumentError(problem)
  return readUrl(text)!
}

/** The context to sign in to: for a URL, a new one under the given name or the host; otherwise an existing one. */
async function contextFor(url: string | undefined, options: LoginOptions) {
  const { context: named, ca } = options
  const isNew = named !== undefined && !Object.hasOwn((await readContexts()).contexts, named)
  if (url === undefined && !(isNew && canAsk(options))) {
    const chosen = await chooseContext(named)
    if (chosen) return { ...chosen, context: { ...chosen.context, ...(ca && { ca }) } }
  }
  const question = 'URL of the administration listener (https://host:port):'
  const missing = 'Pass the URL of the server to sign in to.'
  const origin = parseUrl(await given(url, question, missing, options, urlProblem))
  const name = named ?? new URL(origin).host
  if (name === local) misuse('`local` is the database itself: choose another name for the context.')
  const context: Context = { url: origin, ...(ca && { ca }), tokenFile: tokenFileOf(name) }
  return { name, context }
}
