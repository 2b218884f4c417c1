/** Generates the command reference in the documentation from the help texts. Run `npm run docs`. */
import { readFile, writeFile } from 'node:fs/promises'
import { createProgram } from '../dist/cli/program.js'
import { toMarkdown } from '../dist/cli/reference.js'

const file = new URL('../docs/administration.md', import.meta.url)
const [text] = (await readFile(file, 'utf8')).split(/(?<=^<!-- Below this line .*\n)/m)
await writeFile(file, `${text}\n${toMarkdown(createProgram())}`)
