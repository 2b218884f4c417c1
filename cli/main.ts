#!/usr/bin/env node
/** `auth-admin` as a process. */

const args = process.argv.slice(2)

process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  // The reader of a pipe may stop early (`auth-admin audit list | head`).
  if (error.code === 'EPIPE') process.exit()
  // A full disk, for example.
  process.stderr.write(`error: Standard output can’t be written (${error.code}).\n`)
  process.exit(1)
})
// Nothing is left to report to.
process.stderr.on('error', () => process.exit(1))

const { report, run } = await import('./program.js')
// Errors of sockets and streams that no call waits for.
process.on('uncaughtException', async error => process.exit(await report(error, args)))
process.exitCode = await run(args)
