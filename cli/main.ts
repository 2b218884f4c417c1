#!/usr/bin/env node
/** `auth-admin` as a process. */
import { run } from './program.js'

// Whoever reads the output may have seen enough (`auth-admin audit list | head`).
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error
  process.exit()
})

process.exitCode = await run(process.argv.slice(2))
