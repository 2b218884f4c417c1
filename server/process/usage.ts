/** Arguments of the programs that the environment sets: there are `--help` and `--version`, and no others. */
import { createRequire } from 'node:module'
import { parseArgs } from 'node:util'

/**
 * Answers `--help` with the text and `--version` with the version, or tells of an argument that there isn't and makes
 * the exit code 2. Returns whether that was all there is to do.
 */
export function answerArguments(usage: string): boolean {
  const options = { help: { type: 'boolean', short: 'h' }, version: { type: 'boolean', short: 'V' } } as const
  try {
    const { help, version } = parseArgs({ options }).values
    if (help) process.stdout.write(`${usage}\nThe README describes every setting.\n`)
    else if (version) process.stdout.write(`${createRequire(import.meta.url)('#package').version}\n`)
    return Boolean(help || version)
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n`)
    process.exitCode = 2
    return true
  }
}
