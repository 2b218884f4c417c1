/**
 * Generates the command reference in the documentation from the help texts, and the last paragraphs of the comments in proto/
 * from the access policy. Run `npm run docs`.
 */
import { readFile, writeFile } from 'node:fs/promises'
import { createProgram } from '../dist/cli/program.js'
import { toMarkdown } from '../dist/cli/reference.js'
import { definitions, withLastParagraphs } from '../dist/gateway/openapi/rpc-comments.js'

const file = new URL('../docs/administration.md', import.meta.url)
const [text] = (await readFile(file, 'utf8')).split(/(?<=^<!-- Below this line .*\n)/m)
await writeFile(file, `${text}\n${toMarkdown(createProgram())}`)

// The reasons of the access policy, in the comments of the RPCs.
for (const [name, service, rows] of definitions) {
  const definition = new URL(`../proto/auth/v1/${name}.proto`, import.meta.url)
  await writeFile(definition, withLastParagraphs(await readFile(definition, 'utf8'), service, rows))
}
