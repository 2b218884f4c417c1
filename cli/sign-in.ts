// Signing in to a server: as `login`, and in place where a command needs a more recent sign-in.
import type { SignInResponse } from '../proto/gen/auth/v1/administration_pb.js'
import { type NamedContext, nameOf, type Server, writeToken } from './contexts.js'
import { explain, misuse } from './exit-codes.js'
import { atServer } from './remote.js'
import { askKnownSecret, askText, canAsk, codeProblem, readSecret } from './terminal/ask.js'
import { inTerminalLanguage } from './terminal/language.js'
import { say } from './terminal/output.js'

/** Where a sign-in has its secrets from: files, or prompts at a terminal. */
export interface Secrets {
  readonly passwordFile?: string
  readonly codeFile?: string
  readonly json?: boolean
}

/** One-time codes that a terminal prompts for in a sign-in: wrong ones count, and lock. */
const maxCodes = 3

/** Ends the command if a server can't be reached, or if something else answers there: before a password is typed. */
export async function checkServer(server: Server): Promise<void> {
  await atServer(server, undefined, api => api.getSession({})).catch(async error => {
    // Without a token, Administration refuses this.
    if ((await explain(error)).reason !== 'ACCESS_DENIED') throw error
  })
}

/** Signs in. A terminal prompts for a one-time code only if it is needed, and again after a wrong one. */
export async function signIn(server: Server, username: string, options: Secrets): Promise<SignInResponse> {
  const password = await passwordOf(username, options)
  const code = options.codeFile === undefined ? undefined : await readSecret(options.codeFile, '--code-file')
  return atServer(server, undefined, async api => {
    try {
      return await api.signIn({ username, password, code: code || undefined })
    } catch (error) {
      if (!canAsk(options) || (await explain(error)).reason !== 'CODE_NEEDED') throw error
      return askCodes(code => api.signIn({ username, password, code }), 'INVALID_CREDENTIALS')
    }
  })
}

/** Prompts for a one-time code and calls with it, again while the service refuses the code for the reason `wrong`. */
export async function askCodes<T>(call: (code: string) => Promise<T>, wrong: string): Promise<T> {
  for (let left = maxCodes - 1; ; left--) {
    const code = await askText('One-time code:', { required: true, check: codeProblem })
    try {
      return await call(code)
    } catch (error) {
      const { reason, message = '' } = await explain(error)
      if (reason !== wrong || left === 0) throw error
      say(message)
    }
  }
}

/** Signs the administrator of a session in again at a terminal, after saying why. Keeps and returns the new token. */
export async function signInAgain({ name, context }: NamedContext, username: string, why: string): Promise<string> {
  const server = { name, ...context }
  say([why, `${nameOf(server)}: sign in again as ${username}.`].map(inTerminalLanguage).join(' '))
  const { token } = await signIn(server, username, {})
  await writeToken(context.tokenFile, token)
  return token
}

function passwordOf(username: string, { passwordFile, ...options }: Secrets): Promise<string> {
  if (passwordFile !== undefined) return readSecret(passwordFile, '--password-file')
  if (!canAsk(options)) misuse('Without a terminal, pass --password-file; - is standard input.')
  return askKnownSecret(`Password of ${username}`)
}
