#!/usr/bin/env node
/** `auth-admin` as a process. */
import module from 'node:module'

// Compiled code is kept for the next command, by versions of Node.js that can (22.8 and newer).
;(module as { enableCompileCache?: () => void }).enableCompileCache?.()

// The reader of a pipe may stop early (`auth-admin audit list | head`).
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error
  process.exit()
})

const { run } = await import('./program.js')
process.exitCode = await run(process.argv.slice(2))
