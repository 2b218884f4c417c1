// Progress of a long command: one line on standard error, at a terminal only.
import { inTerminalLanguage } from './language.js'

/** Milliseconds after which the line appears, and between two of its forms. */
const every = 1_000

const clearLine = '\r\x1b[K'

/** Whether the line stands at the terminal, and whether a prompt keeps it away. */
const line = { shown: false, held: false }

function clear(): void {
  if (line.shown) process.stderr.write(clearLine)
  line.shown = false
}

/** Runs a prompt, during which no line appears. */
export async function interruptProgress<T>(prompt: () => Promise<T>): Promise<T> {
  clear()
  line.held = true
  try {
    return await prompt()
  } finally {
    line.held = false
  }
}

/**
 * Runs `work`. At a terminal, once it has taken a second, a line says what it is doing, since when, and what it last reported
 * of itself, such as `2000 so far`; the line is erased when the work ends. What the work prompts for is within
 * `interruptProgress`. `prints` is for work that prints its results: at a terminal, these show the progress.
 */
export async function withProgress<T>(
  doing: string,
  work: (report: (done: string) => void) => Promise<T>,
  { prints = false } = {},
): Promise<T> {
  let reported = ''
  const report = (done: string) => {
    reported = `${inTerminalLanguage(done)}, `
  }
  const { stderr, stdout } = process
  if (!stderr.isTTY || (prints && stdout.isTTY)) return work(report)
  const started = Date.now()
  const timer = setInterval(() => {
    if (line.held) return
    const text = `${inTerminalLanguage(doing)}: ${reported}${Math.round((Date.now() - started) / 1000)} s`
    stderr.write(`${clearLine}${text.slice(0, stderr.columns - 1)}`)
    line.shown = true
  }, every)
  // At Ctrl-C the process ends before the work does.
  process.once('exit', clear)
  try {
    return await work(report)
  } finally {
    process.off('exit', clear)
    clearInterval(timer)
    clear()
  }
}
