import { isIP } from 'node:net'
import { resolve } from 'node:path'
import { timestampDate } from '@bufbuild/protobuf/wkt'
import { InvalidArgumentError, Option } from 'commander'
import { scopeName } from '../../server/rules/scopes.js'
import type { GlobalOptions } from '../administration.js'
import type { Command } from '../command.js'
import {
  type Context,
  chooseContext,
  contextOf,
  local,
  loginTo,
  readContexts,
  removeToken,
  tokenFileOf,
  writeContexts,
  writeToken,
} from '../contexts.js'
import { explain, fail, misuse } from '../exit-codes.js'
import { atServer, readUrl } from '../remote.js'
import { checkServer, type Secrets, signIn } from '../sign-in.js'
import { canAsk, given, readSecret } from '../terminal/ask.js'
import { printFields, printJson, say, timeText } from '../terminal/output.js'
import { warnOfEnvironment } from './contexts.js'
import { userOutput } from './users/output.js'

type LoginOptions = GlobalOptions &
  Secrets & {
    readonly ca?: string
    readonly serverName?: string
    readonly username?: string
    readonly serviceKeyFile?: string
  }

/** Adds `auth-admin login`, `logout` and `whoami`. */
export function addLogin(program: Command): void {
  program
    .command('login')
    .description('Sign in to a server as an administrator. The session lasts 12 hours.')
    .argument('[url]', 'https://host:port of its administration listener; by default that of the context', parseUrl)
    .option('--ca <file>', 'PEM file of the certificate authority of the server')
    .option(
      '--server-name <name>',
      'name to verify the certificate of the server for, instead of the host of the URL',
      parseServerName,
    )
    .option('--username <name>', 'username of the administrator; by default that of the context')
    .option('--password-file <file>', 'file with the password; - for standard input')
    .option('--code-file <file>', 'file with the one-time code, if you enrolled an authenticator')
    .addOption(
      new Option(
        '--service-key-file <file>',
        'sign in as a service: file with its key; - for standard input',
      ).conflicts(['username', 'passwordFile', 'codeFile']),
    )
    .json()
    .remarks(`
A terminal prompts for the URL, the username, the password and the one-time
code. The token is kept in a file of your configuration folder, and all commands
use it from then on. Pass --local to work on the database itself.

Machines, such as a CI job, sign in with the key of a service that has the scope
administration.read or organizations.write. It is valid until it expires.`)
    .examples(
      'login https://auth.example.org:50052 --context production',
      'login --context production',
      `login https://auth.example.org:50052 \\
      --service-key-file /run/secrets/auth-key`,
    )
    .action(async (url: string | undefined, _options: LoginOptions, command: Command) => {
      const options = command.optsWithGlobals<LoginOptions>()
      const { name, context } = await contextFor(url, options)
      if (options.serviceKeyFile !== undefined) return signInService(name, context, options)
      const server = serverOf(name, context)
      if (canAsk(options)) await checkServer(server)
      const known = options.username ?? context.username
      const username = await given(known, 'Username:', 'Without a terminal, pass --username.', options)
      const session = await signIn(server, username, options)
      const before = await keep(name, { ...context, username }, session.token)
      const expireTime = timestampDate(session.expireTime!)
      if (options.json) printJson({ context: name, url: context.url, username, expireTime })
      else say(`You are signed in to ${name} (${context.url}) until ${timeText(expireTime)}.`)
      sayCurrent(name, before, options)
    })

  program
    .command('logout')
    .description('End the session of a context.')
    .option('--everywhere', 'also revoke all tokens of this administrator')
    .json()
    .examples('logout --everywhere')
    .administers(async (api, options: GlobalOptions & { everywhere?: boolean }) => {
      const chosen = await contextOf(options)
      if (!chosen) return fail('You are not signed in: run `auth-admin login`.', 4)
      if (options.everywhere) {
        const { user } = await api.getSession({})
        if (!user) fail('Only administrators have sessions. Delete the key with `auth-admin services keys delete`.')
        await api.revokeTokens({ user: `#${user.record!.id}` })
      }
      const there = await removeToken(chosen.context)
      if (options.json) printJson({ context: chosen.name, signedOut: there })
      else say(there ? `You are signed out of ${chosen.name}.` : `You were not signed in to ${chosen.name}.`)
    })

  program
    .command('whoami')
    .description('Show who you are, where commands run, and when the session ends.')
    .json()
    .examples('whoami --json')
    .administers(async (api, options: GlobalOptions) => {
      const chosen = await contextOf(options)
      const { user, actor, signInTime, expireTime, totp, scopes } = await api.getSession({})
      const may = scopes.length > 0 ? { scopes: scopes.map(scope => scopeName(scope) ?? String(scope)) } : {}
      const where = chosen ? { context: chosen.name, url: chosen.context.url } : { context: 'local' }
      const times = {
        signInTime: signInTime && timestampDate(signInTime),
        expireTime: expireTime && timestampDate(expireTime),
      }
      if (options.json)
        return printJson({ ...where, actor, ...(user && { user: userOutput(user), totp }), ...may, ...times })
      const who = user ? `${user.record!.username} (#${user.record!.id})` : actor
      const { signInTime: signedIn, expireTime: expires } = times
      printFields({
        who,
        ...where,
        'signed in': signedIn,
        expires,
        'one-time codes': user && totp,
        scopes: may.scopes?.join(', '),
      })
    })
}

/** Says that a sign-in has changed the current context, if it has. */
function sayCurrent(name: string, before: string, { json }: GlobalOptions): void {
  if (!json && name !== before) say(`It is now the current context (was ${before}).`)
  warnOfEnvironment(name)
}

const urlProblem = (text: string) =>
  readUrl(text) === undefined
    ? 'Use https://host:port; http:// works for this machine only, because it exposes the token.'
    : undefined

/** Server names in TLS are DNS names (RFC 6066). */
function parseServerName(text: string): string {
  if (isIP(text)) throw new InvalidArgumentError('It must be a DNS name: an address belongs into the URL.')
  return text
}

function parseUrl(text: string): string {
  const problem = urlProblem(text)
  if (problem !== undefined) throw new InvalidArgumentError(problem)
  return readUrl(text)!
}

/** The context to sign in to: for a URL, a new one under the given name or the host; otherwise an existing one. */
async function contextFor(url: string | undefined, options: LoginOptions) {
  const { context: named, ca, serverName } = options
  // Without a flag, the context keeps what it has.
  const tls = { ...(ca && { ca: resolve(ca) }), ...(serverName && { serverName }) }
  const isNew = named !== undefined && !Object.hasOwn((await readContexts()).contexts, named)
  if (url === undefined && !isNew) {
    const chosen = await chooseContext(named)
    if (chosen) return { ...chosen, context: { ...chosen.context, ...tls } }
  }
  const question = 'URL of the administration listener (https://host:port):'
  const missing = `Pass the URL: \`${loginTo({ name: named, url: '' }, 'https://HOST:50052')}\`.`
  const origin = parseUrl(await given(url, question, missing, options, urlProblem))
  const name = named ?? new URL(origin).host
  if (name === local) misuse('`local` is the database itself: choose another name for the context.')
  const context: Context = { url: origin, ...tls, tokenFile: tokenFileOf(name) }
  return { name, context }
}

/** A server for messages: a context that has the name of its host needs no other. */
const serverOf = (name: string, context: Context) =>
  name === new URL(context.url).host ? context : { name, ...context }

/** Signs in with the key of a service, which needs a scope of Administration. */
async function signInService(name: string, context: Context, options: LoginOptions): Promise<void> {
  const key = (await readSecret(options.serviceKeyFile!, '--service-key-file')).trim()
  if (!key.startsWith('authsvc_'))
    misuse('The file of --service-key-file has no key of a service: it begins with authsvc_.')
  const { actor, scopes } = await atServer(serverOf(name, context), key, api => api.getSession({})).catch(
    async error => {
      if ((await explain(error)).reason !== 'INVALID_TOKEN') throw error
      return fail('The server doesn’t accept the key: it is wrong, expired or deleted.', 4)
    },
  )
  const { username: _, ...server } = context
  const before = await keep(name, server, key)
  const may = scopes.map(scope => scopeName(scope) ?? String(scope))
  if (options.json) printJson({ context: name, url: context.url, actor, scopes: may })
  else say(`You are signed in to ${name} (${context.url}) as ${actor}, with ${may.join(', ')}.`)
  sayCurrent(name, before, options)
}

/** Keeps a session, and makes its context the current one. Returns the one before. */
async function keep(name: string, context: Context, token: string): Promise<string> {
  await writeToken(context.tokenFile, token)
  const { current = local, contexts } = await readContexts()
  await writeContexts({ current: name, contexts: { ...contexts, [name]: context } })
  return current
}
