#!/usr/bin/env node
/** `auth-admin`: runs a command, prints why it failed, and ends with its exit code. */
import { explain } from './failure.js'
import { printable } from './output.js'
import { createProgram } from './program.js'

// Whoever reads our output may have seen enough (`auth-admin audit list | head`).
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error
  process.exit()
})

try {
  await createProgram().parseAsync()
} catch (error) {
  const { message, exitCode } = explain(error)
  if (message !== undefined) process.stderr.write(`error: ${message.split('\n').map(printable).join('\n')}\n`)
  if (process.env.AUTH_LOG_LEVEL === 'debug' && exitCode === 1) process.stderr.write(`${(error as Error).stack}\n`)
  process.exitCode = exitCode
}
