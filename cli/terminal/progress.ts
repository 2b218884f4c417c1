// Progress of a long command: one line on standard error, at a terminal only.

/** Milliseconds after which the line appears, and between two of its forms. */
const every = 1_000

const clearLine = '\r\x1b[K'

/**
 * Runs `work`. At a terminal, once it has taken a second, a line says what it is doing, since when, and what it last reported
 * of itself, such as `2000 so far`; the line is gone when the work ends. The work asks nothing meanwhile. `prints` is for
 * work that prints its results: at a terminal, these show the progress.
 */
export async function withProgress<T>(
  doing: string,
  work: (report: (done: string) => void) => Promise<T>,
  { prints = false } = {},
): Promise<T> {
  let reported = ''
  const report = (done: string) => {
    reported = `${done}, `
  }
  const { stderr, stdout } = process
  if (!stderr.isTTY || (prints && stdout.isTTY)) return work(report)
  const started = Date.now()
  const timer = setInterval(() => {
    const line = `${doing}: ${reported}${Math.round((Date.now() - started) / 1000)} s`
    stderr.write(`${clearLine}${line.slice(0, stderr.columns - 1)}`)
  }, every)
  const clear = () => {
    clearInterval(timer)
    if (Date.now() - started >= every) stderr.write(clearLine)
  }
  // At Ctrl-C the process ends before the work does.
  process.once('exit', clear)
  try {
    return await work(report)
  } finally {
    process.off('exit', clear)
    clear()
  }
}
