/** Arguments of the programs that are configured by the environment: `--help` and `--version`, and no others. */
import { parseArgs } from 'node:util'
import { version as packageVersion } from './version.js'

/**
 * Prints the text for `--help` and the version for `--version`; reports an unknown argument and sets the exit code 2. Returns
 * whether the program has nothing else to do.
 */
export function answerArguments(usage: string): boolean {
  const options = { help: { type: 'boolean', short: 'h' }, version: { type: 'boolean', short: 'V' } } as const
  try {
    const { help, version } = parseArgs({ options }).values
    if (help) process.stdout.write(`${usage}\ndocs/settings.md describes every setting.\n`)
    else if (version) process.stdout.write(`${packageVersion}\n`)
    return Boolean(help || version)
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n`)
    process.exitCode = 2
    return true
  }
}
