/** `auth-admin` in the test's own process, as a child process with pipes, or at a terminal. */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { spawn as spawnTerminal } from '@lydell/node-pty'
import type { Assertions } from 'ava'
import type { Command } from 'commander'
import { run } from '../../cli/program.js'
import { formatAddress } from '../../server/process/settings.js'
import type { Teardown } from './database.js'
import { databaseFor, ownSettings } from './installed.js'
import { temporaryFolder } from './temporary-folder.js'
import './turns.js'
import type { TestService } from './service.js'
import { looksOf, waitFor } from './wait.js'

/** The program that users start. */
export const program = fileURLToPath(new URL('../../cli/main.js', import.meta.url))

/** How a run ended. */
export interface Run {
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
}

/** The environment of the user who runs the tests, without settings. */
const others = Object.fromEntries(
  Object.entries(process.env).filter(([name]) => !/^AUTH_|^(DATABASE|SMTP)_URL$/.test(name)),
) as Record<string, string>

/** For commands that derive a key from a passphrase: while V8 counts its calls, that takes four times as long. */
export const uncounted = { NODE_V8_COVERAGE: '' }

/** The environment of a command. */
function environment(env: Record<string, string>): Record<string, string> {
  return { ...others, LC_ALL: 'C', AUTH_BCRYPT_COST: '4', ...env }
}

/** Replaces the environment of this process, in the same object. Returns the former one. */
function exchangeEnvironment(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  const former = { ...process.env }
  for (const name of Object.keys(former)) delete process.env[name]
  Object.assign(process.env, env)
  return former
}

let commands: Promise<unknown> = Promise.resolve()

/**
 * Runs a command in this process, after those before it have ended: a quarter of the cost of a separate process.
 * `input` is all of its standard input.
 */
export function runCli(env: Record<string, string>, args: readonly string[], input = ''): Promise<Run> {
  const ran = commands.then(async () => {
    const own = { stdout: process.stdout.write, stderr: process.stderr.write }
    const stdin = Object.getOwnPropertyDescriptor(process, 'stdin')!
    const former = exchangeEnvironment(environment(env))
    const out = { stdout: '', stderr: '' }
    const into = (output: keyof typeof out) => (text: string | Uint8Array) => {
      out[output] += text
      return true
    }
    process.stdout.write = into('stdout')
    process.stderr.write = into('stderr')
    Object.defineProperty(process, 'stdin', { value: new PassThrough().end(input), configurable: true })
    try {
      return { code: await run(args), ...out }
    } finally {
      exchangeEnvironment(former)
      process.stdout.write = own.stdout
      process.stderr.write = own.stderr
      Object.defineProperty(process, 'stdin', stdin)
    }
  })
  commands = ran.catch(() => {})
  return ran
}

/** Environment of a separate, installed registry. */
export async function installedRegistry(t: Teardown) {
  const { AUTH_MASTER_KEY, AUTH_ADMIN_PASSWORD, AUTH_BCRYPT_COST } = ownSettings
  return { DATABASE_URL: await databaseFor(t), AUTH_MASTER_KEY, AUTH_ADMIN_PASSWORD, AUTH_BCRYPT_COST }
}

/** The objects of lines of JSON. */
export const jsonLines = (text: string) =>
  text
    .trim()
    .split('\n')
    .map(line => JSON.parse(line))

/** Runs commands that begin with these words; `json` returns the `--json` of one, which must succeed. */
export function documentsOf(service: { readonly env: Record<string, string> }, ...words: string[]) {
  const run = (...args: string[]) => runCli(service.env, [...words, ...args])
  const json = async (...args: string[]) => {
    const { code, stdout, stderr } = await run(...args, '--json')
    if (code !== 0) throw new Error(stderr)
    return JSON.parse(stdout)
  }
  return { run, json }
}

/**
 * A user of the command line without settings of the service: with an empty folder for contexts, and a data folder without a
 * registry. `login` signs in as the administrator of the installation.
 */
export async function remoteUser(t: Teardown, { service }: Pick<TestService, 'service'>, start = runCli) {
  const config = await temporaryFolder(t)
  const url = `http://${formatAddress(service.addresses.admin!)}`
  const env = { XDG_CONFIG_HOME: config, AUTH_DATA_DIR: join(config, 'none') }
  const run = (args: readonly string[], input = '') => start(env, args, input)
  const login = (...args: string[]) =>
    run(['login', url, '--username', 'admin', '--password-file', '-', ...args], ownSettings.AUTH_ADMIN_PASSWORD)
  return { env, config, url, run, login }
}

/** The commands that do something, each with its path, such as `users show`. */
export function leaves(command: Command, path: readonly string[] = []): { command: Command; path: string }[] {
  if (command.commands.length === 0) return [{ command, path: path.join(' ') }]
  const visible = command.createHelp().visibleCommands(command)
  return visible.filter(sub => sub.name() !== 'help').flatMap(sub => leaves(sub, [...path, sub.name()]))
}

/** Starts the program that users start. */
export function startCli(env: Record<string, string>, args: readonly string[]): ChildProcessWithoutNullStreams {
  return spawn(process.execPath, [program, ...args], { env: environment(env) })
}

/** Runs the program that users start, with pipes instead of a terminal; `input` is all of its standard input. */
export function spawnCli(env: Record<string, string>, args: readonly string[], input = ''): Promise<Run> {
  const child = startCli(env, args)
  const out = { stdout: '', stderr: '' }
  child.stdout.setEncoding('utf8').on('data', text => {
    out.stdout += text
  })
  child.stderr.setEncoding('utf8').on('data', text => {
    out.stderr += text
  })
  // A command that reads nothing may have ended before.
  child.stdin.on('error', () => {}).end(input)
  return new Promise((resolve, reject) => {
    child.once('error', reject).once('close', code => resolve({ code, ...out }))
  })
}

/** A command at a terminal of 80 columns. */
export interface Terminal {
  /**
   * Resolves once the output since the last call contains the text. Rejects when the command ends without it, or shows nothing
   * new for 30 s on an idle machine: it waits for another answer.
   */
  shows(text: string): Promise<void>
  type(text: string): void
  /** Everything written so far, without colours and cursor movements. */
  screen(): string
  /** The same, unchanged. */
  raw(): string
  /** Exit code. */
  readonly ended: Promise<number>
}

/** Keys as a terminal sends them. */
export const keys = { enter: '\r', down: '\x1b[B', ctrlC: '\x03', ctrlT: '\x14', clearLine: '\x15' }

/** Runs a command at a terminal; `into` is a file for its standard output, `main` the program of another version. */
export function openTerminal(
  env: Record<string, string>,
  args: readonly string[],
  { into = '/dev/stdout', main = program } = {},
): Terminal {
  // When a program ends, a pseudoterminal may lose what it wrote last. So the shell outlives it, and writes how it ended.
  const script = `trap : INT; out=$1; shift; "$@" >"$out"; printf '\\036%d\\036' $?; exec sleep 3600`
  const shell = ['-c', script, 'sh', into, process.execPath, main, ...args]
  const terminal = spawnTerminal('sh', shell, {
    cols: 80,
    rows: 40,
    env: environment({ TERM: 'xterm-256color', ...env }),
  })
  let raw = ''
  let seen = 0
  let code: number | undefined
  const ended = new Promise<number>(resolve =>
    terminal.onData(data => {
      raw += data
      const end = /\x1e(\d+)\x1e/.exec(raw)
      if (!end) return
      raw = raw.slice(0, end.index)
      code = Number(end[1])
      terminal.kill()
      resolve(code)
    }),
  )
  const screen = () => raw.replace(/\x1b\[[\d;?]*[A-Za-z]/g, '')
  return {
    screen,
    raw: () => raw,
    ended,
    type: text => terminal.write(text),
    async shows(text) {
      const unseen = () => screen().slice(seen)
      try {
        await waitFor(
          () => unseen().includes(text),
          unseen,
          () => (code === undefined ? looksOf(30) : 0),
        )
      } catch (error) {
        terminal.kill('SIGKILL')
        throw new Error(`The terminal never showed ${JSON.stringify(text)} after: ${unseen()}`, { cause: error })
      }
      seen = screen().indexOf(text, seen) + text.length
    },
  }
}

/** Asserts that commands of a noun are refused: each with its exit code, one sentence, and no other output. */
export async function assertRefusals(
  t: Assertions,
  run: (...args: string[]) => Promise<Run>,
  cases: readonly (readonly [sentence: RegExp, code: number, ...args: string[]])[],
): Promise<void> {
  for (const [sentence, expected, ...args] of cases) {
    const { code, stdout, stderr } = await run(...args)
    t.deepEqual([code, stdout], [expected, ''], `${args.join(' ')}: ${stderr}`)
    t.regex(stderr, sentence, args.join(' '))
    t.regex(stderr, /^error: [^\n]+\n$/, args.join(' '))
  }
}
