import { resolve } from 'node:path'
import { timestampDate } from '@bufbuild/protobuf/wkt'
import { type Command, InvalidArgumentError, Option } from 'commander'
import { Administration, type SignInResponse } from '../../proto/gen/auth/v1/administration_pb.js'
import { ErrorInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import { administering, type GlobalOptions } from '../administration.js'
import {
  type Context,
  chooseContext,
  contextOf,
  readContexts,
  removeToken,
  tokenFileOf,
  writeContexts,
  writeToken,
} from '../contexts.js'
import { fail, misuse } from '../exit-codes.js'
import { openRemote, readUrl } from '../remote.js'
import { askKnownSecret, askText, canAsk, codeProblem, given, readSecret } from '../terminal/ask.js'
import { jsonOption, printFields, printJson, say, timeText } from '../terminal/output.js'
import { type List, type ListOptions, pagesOf, printPages, withPages } from '../terminal/pages.js'
import { userOutput } from './users/output.js'

interface LoginOptions extends GlobalOptions {
  readonly ca?: string
  readonly username?: string
  readonly passwordFile?: string
  readonly codeFile?: string
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
A terminal prompts for password and one-time code. The token is kept in a file
of your configuration folder, and all commands use it from then on. Pass --local
to work on the database itself.

Examples:
  $ auth-admin login https://auth.example.org:50052 --context production
  $ auth-admin login --context production`,
    )
    .action(async (url: string | undefined, _options: LoginOptions, command: Command) => {
      const options = command.optsWithGlobals<LoginOptions>()
      const { name, context } = await contextFor(url, options)
      const username = await given(options.username, 'Username:', 'Without a terminal, pass --username.', options)
      const password = await secretOf('password', options.passwordFile, options)
      const session = await signIn(context, { username, password }, options)
      await writeToken(context.tokenFile, session.token)
      const { contexts } = await readContexts()
      await writeContexts({ current: name, contexts: { ...contexts, [name]: context } })
      const expireTime = timestampDate(session.expireTime!)
      if (options.json) printJson({ context: name, url: context.url, username, expireTime })
      else say(`You are signed in to ${name} (${context.url}) until ${timeText(expireTime)}.`)
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
          ...(signInTime && { signInTime: timestampDate(signInTime) }),
          ...(expireTime && { expireTime: timestampDate(expireTime) }),
        }
        if (options.json) return printJson({ ...where, actor, ...(user && { user: userOutput(user), totp }), ...times })
        const who = user ? `${user.record!.username} (#${user.record!.id})` : actor
        const { signInTime: signedIn, expireTime: expires } = times
        printFields({ who, ...where, 'signed in': signedIn, expires, ...(user && { 'one-time codes': totp }) })
      }),
    )

  const contexts = program.command('contexts').description('Servers that you signed in to')
  withPages(contexts.command('list'), contextList)
    .description('List the contexts; * marks the current one.')
    .addHelpText('after', '\nExample:\n  $ auth-admin contexts list')
    .action(async (options: ListOptions) => {
      const { current, contexts } = await readContexts()
      const rows = Object.entries(contexts).map(([name, { url, ca }]) => ({ name, url, ca, current: name === current }))
      await printPages(contextList, options, pagesOf(rows))
    })
  contexts
    .command('use')
    .description('Select the current context; `local` is the database itself.')
    .argument('<name>', 'name of the context')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin contexts use production')
    .action(async (name: string, options: GlobalOptions) => {
      const { contexts } = await readContexts()
      if (name !== 'local') await chooseContext(name)
      await writeContexts({ ...(name !== 'local' && { current: name }), contexts })
      if (options.json) printJson({ current: name })
      else say(name === 'local' ? 'Commands work on the database itself.' : `Commands work at ${name}.`)
    })
  contexts
    .command('remove')
    .description('Remove a context and its session.')
    .argument('<name>', 'name of the context')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin contexts remove production')
    .action(async (name: string, options: GlobalOptions) => {
      const chosen = (await chooseContext(name))!
      await removeToken(chosen.context)
      const { current, contexts } = await readContexts()
      const { [name]: _, ...others } = contexts
      await writeContexts({ ...(current !== undefined && current !== name && { current }), contexts: others })
      if (options.json) printJson({ removed: name })
      else say(`Context ${name} is removed.`)
    })
}

const contextList: List<{ name: string; url: string; ca: string | undefined; current: boolean }> = {
  name: 'contexts',
  fields: ['name', 'url', 'ca', 'current'],
  toOutput: context => context,
  head: { titles: ['', 'name', 'url'], whole: ['name'] },
  toCells: ({ name, url, current }) => [current ? '*' : '', name, url],
  empty: 'No contexts: commands work on the database itself.',
}

function parseUrl(text: string): string {
  const url = readUrl(text)
  if (url !== undefined) return url
  throw new InvalidArgumentError(
    'Use https://host:port; http:// works for this machine only, because it exposes the token.',
  )
}

/** The context to sign in to: for a URL, a new one under the given name or the host; otherwise an existing one. */
async function contextFor(url: string | undefined, { context: named, ca }: LoginOptions) {
  if (url === undefined) {
    const chosen = await chooseContext(named)
    if (!chosen) misuse('Pass the URL of the server to sign in to.')
    return { ...chosen, context: { ...chosen.context, ...(ca && { ca: resolve(ca) }) } }
  }
  const name = named ?? new URL(url).host
  if (name === 'local') misuse('`local` is the database itself: choose another name for the context.')
  const context: Context = { url, ...(ca && { ca: resolve(ca) }), tokenFile: tokenFileOf(name) }
  return { name, context }
}

/** Signs in; prompts for a one-time code only if it is needed. */
async function signIn(
  context: Context,
  form: { username: string; password: string },
  options: LoginOptions,
): Promise<SignInResponse> {
  const [{ ConnectError, createClient }, { transport, close }] = await Promise.all([
    import('@connectrpc/connect'),
    openRemote(context),
  ])
  try {
    const api = createClient(Administration, transport)
    const code = options.codeFile === undefined ? undefined : await readSecret(options.codeFile, '--code-file')
    try {
      return await api.signIn({ ...form, ...(code && { code }) })
    } catch (error) {
      const needed = ConnectError.from(error).findDetails(ErrorInfoSchema)[0]?.reason === 'CODE_NEEDED'
      if (!needed || !canAsk(options)) throw error
      return await api.signIn({
        ...form,
        code: await askText('One-time code:', { required: true, check: codeProblem }),
      })
    }
  } finally {
    await close()
  }
}

/** A secret from its file, or from a prompt. */
function secretOf(name: string, file: string | undefined, options: GlobalOptions): Promise<string> {
  if (file !== undefined) return readSecret(file, `--${name}-file`)
  if (!canAsk(options)) misuse(`Without a terminal, pass --${name}-file; - is standard input.`)
  return askKnownSecret(`${name[0]!.toUpperCase()}${name.slice(1)}`)
}
