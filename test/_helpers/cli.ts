/** `auth-admin` as a child process, with pipes or at a terminal. */
import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { spawn as spawnTerminal } from '@lydell/node-pty'

const program = fileURLToPath(new URL('../../cli/main.js', import.meta.url))

/** How a run ended. */
export interface Run {
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
}

/** Nothing of the caller's own settings gets in. */
function environment(env: Record<string, string>): Record<string, string> {
  return { PATH: process.env.PATH ?? '', HOME: process.env.HOME ?? '', AUTH_BCRYPT_COST: '4', ...env }
}

/** Runs a command with pipes in place of a terminal; `input` is all of its standard input. */
export function runCli(env: Record<string, string>, args: readonly string[], input = ''): Promise<Run> {
  const child = spawn(process.execPath, [program, ...args], { env: environment(env) })
  const out = { stdout: '', stderr: '' }
  child.stdout.setEncoding('utf8').on('data', text => {
    out.stdout += text
  })
  child.stderr.setEncoding('utf8').on('data', text => {
    out.stderr += text
  })
  // A command that reads nothing may be gone before.
  child.stdin.on('error', () => {}).end(input)
  return new Promise((resolve, reject) => {
    child.once('error', reject).once('close', code => resolve({ code, ...out }))
  })
}

/** A command at a terminal of 80 columns. */
export interface Terminal {
  /** Resolves once the text stands in what was written since the last call; rejects after 30 seconds. */
  shows(text: string): Promise<void>
  type(text: string): void
  /** Everything written so far, without colours and cursor movements. */
  screen(): string
  /** Exit code. */
  readonly ended: Promise<number>
}

/** Keys as a terminal sends them. */
export const keys = { enter: '\r', down: '\x1b[B', ctrlC: '\x03', clearLine: '\x15' }

/** Runs a command at a terminal. */
export function openTerminal(env: Record<string, string>, args: readonly string[]): Terminal {
  const terminal = spawnTerminal(process.execPath, [program, ...args], {
    cols: 80,
    rows: 40,
    env: environment({ TERM: 'xterm-256color', ...env }),
  })
  let raw = ''
  let seen = 0
  terminal.onData(data => {
    raw += data
  })
  const ended = new Promise<number>(resolve => terminal.onExit(({ exitCode }) => resolve(exitCode)))
  const screen = () => raw.replace(/\x1b\[[\d;?]*[A-Za-z]/g, '')
  return {
    screen,
    ended,
    type: text => terminal.write(text),
    async shows(text) {
      for (const end = Date.now() + 30_000; Date.now() < end; ) {
        const at = screen().indexOf(text, seen)
        if (at >= 0) {
          seen = at + text.length
          return
        }
        await new Promise(resolve => setTimeout(resolve, 20))
      }
      terminal.kill('SIGKILL')
      throw new Error(`The terminal never showed ${JSON.stringify(text)} but ${JSON.stringify(screen().slice(seen))}`)
    },
  }
}
