// Named contexts: where Administration is served, and the session there. They are kept in the user's own configuration
// folder, readable by the owner only; without one, commands work on the database itself.
import { readFile, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import envPaths from 'env-paths'
import { plainText } from '../server/process/plain-text.js'
import { quote } from '../server/rules/shell.js'
import { fail } from './exit-codes.js'
import { warn } from './terminal/output.js'

/** A server to connect to. */
export interface Server {
  /** Name of its context. */
  readonly name?: string
  /** `https://host:port`, or `http://` on this machine. */
  readonly url: string
  /** PEM file of the authority that its certificate comes from, instead of those that the system trusts. */
  readonly ca?: string
  /** Name that its certificate is verified for, instead of the host of the URL. */
  readonly serverName?: string
}

/** A server, to begin a sentence with. */
export function nameOf({ name, url }: Server): string {
  return name === undefined ? url : `Context ${name} (${url})`
}

/** The command that signs in to a server, by its context or at a URL. */
export function loginTo({ name, url }: Server, at?: string): string {
  const where = at ?? (name === undefined ? url : undefined)
  const context = name === undefined ? undefined : `--context ${quote(name)}`
  return ['auth-admin login', where, context].filter(Boolean).join(' ')
}

/** A server and how to reach it. */
export interface Context extends Omit<Server, 'name'> {
  /** File that holds the token of a session. */
  readonly tokenFile: string
  /** Username of the administrator who signed in; absent for a service. */
  readonly username?: string
}

/** All contexts of the user. */
interface Contexts {
  /** Name of the one that is used unless another is named. */
  readonly current?: string
  readonly contexts: Readonly<Record<string, Context>>
}

const folder = () => envPaths('auth-admin', { suffix: '' }).config
const file = () => join(folder(), 'contexts.json')

/** File of the session of a context. */
export const tokenFileOf = (name: string) => join(folder(), 'sessions', `${encodeURIComponent(name)}.token`)

/** Reads the contexts; none are there at first. */
export async function readContexts(): Promise<Contexts> {
  const text = await readFile(file(), 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    return fail(`${file()} can’t be read (${error.code}).`)
  })
  if (text === undefined) return { contexts: {} }
  try {
    const read = JSON.parse(text) as Contexts
    return { ...read, contexts: read.contexts ?? {} }
  } catch {
    return fail(`${file()} is not valid JSON: fix it, or remove it and sign in again.`)
  }
}

/** Replaces the contexts. */
export async function writeContexts(contexts: Contexts): Promise<void> {
  await writePrivately(file(), `${JSON.stringify(contexts, null, 2)}\n`)
}

/** A context with its name. */
export interface NamedContext {
  readonly name: string
  readonly context: Context
}

/** The name of the database itself among contexts. */
export const local = 'local'

/** The context that AUTH_CONTEXT names, if it is set. */
export const contextOfEnvironment = () => plainText(process.env.AUTH_CONTEXT ?? '') || undefined

/** The context that is named, by an option or by AUTH_CONTEXT, or the current one; undefined for the database itself. */
export async function chooseContext(named: string | undefined): Promise<NamedContext | undefined> {
  const { current, contexts } = await readContexts()
  const name = named ?? contextOfEnvironment() ?? current
  if (name === undefined || name === local) return undefined
  const context = Object.hasOwn(contexts, name) ? contexts[name] : undefined
  if (!context) {
    fail(`There is no context ${name}: see \`auth-admin contexts\`, or create one with \`auth-admin login\`.`, 3)
  }
  return { name, context }
}

/** Options of a command that say where it works. */
export interface ServerOptions {
  /** Works on the database itself, in any context. */
  readonly local?: boolean
  /** Name of the context to use. */
  readonly context?: string
}

/** A command of `auth-admin`, so that it works where this one did. */
export function commandHere(command: string, { local, context }: ServerOptions): string {
  if (command === '') return ''
  return local ? `${command} --local` : context === undefined ? command : `${command} --context ${quote(context)}`
}

/** The context that a command works in; undefined where it works on the database itself, with the settings of this process. */
export async function contextOf({ local, context }: ServerOptions) {
  return local ? undefined : chooseContext(context)
}

/** The name of the context that a command works in, and its URL; undefined where it works on the database itself. */
export async function nameServer(place: ServerOptions): Promise<string | undefined> {
  const chosen = await contextOf(place)
  return chosen && `${chosen.name} (${chosen.context.url})`
}

/** The token of a session. */
export async function readToken({ name, context }: NamedContext): Promise<string> {
  const { tokenFile } = context
  const text = await readFile(tokenFile, 'utf8').catch(() => undefined)
  if (!text?.trim()) fail(`You are not signed in to ${name}: run \`${loginTo({ name, ...context })}\`.`, 4)
  const { mode } = await stat(tokenFile)
  if (process.platform !== 'win32' && (mode & 0o077) !== 0)
    warn(`${tokenFile} is readable by other users: run chmod 600 on it.`)
  return text.trim()
}

/** Keeps the token of a session. */
export async function writeToken(tokenFile: string, token: string): Promise<void> {
  await writePrivately(tokenFile, `${token}\n`)
}

/** Ends a session here. Whether there was one. */
export async function removeToken({ tokenFile }: Context): Promise<boolean> {
  const there = await stat(tokenFile).then(
    () => true,
    () => false,
  )
  await rm(tokenFile, { force: true })
  return there
}

async function writePrivately(path: string, text: string): Promise<void> {
  const { makeFolder, writePrivateFile } = await import('../server/process/private-file.js')
  await makeFolder(dirname(path))
  await writePrivateFile(path, text)
}
