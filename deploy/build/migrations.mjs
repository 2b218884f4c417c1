/** Copies the migrations beside the compiled programs, so that a build stays as it is while a file is edited. */
import { cp, rm } from 'node:fs/promises'

const folder = 'server/database/migrations'
await rm(`dist/${folder}`, { recursive: true, force: true })
await cp(folder, `dist/${folder}`, { recursive: true })
