/**
 * Lists the sentences of eight words or more that occur in two documents, and exits with 1 if there are any. Code, and
 * documents in Portuguese, which say the same by design, aren't compared.
 */
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'

const root = new URL('../..', import.meta.url)
const documents = execFileSync('git', ['ls-files', '*.md'], { cwd: root, encoding: 'utf8' })
  .split('\n')
  .filter(name => name && !/^CHANGELOG|pt-BR|^docs\/commands/.test(name))

/** The sentences of a text in Markdown, without its marks. */
const sentencesOf = text =>
  text
    .replace(/^ *```.*?^ *```$/gms, '\n\n')
    .replace(/<!--.*?-->/gs, '')
    .replace(/\[([^\]]*)\]\([^)]*\)/g, '$1')
    .replace(/[*_`>#]/g, '')
    .split(/\n\s*\n|\n *(?:[-|]|\d+\.) |[.:;!?](?=\s)| \| /)
    .map(sentence =>
      sentence
        .replace(/\s+/g, ' ')
        .replace(/^[-| ]+|[.|: ]+$/g, '')
        .toLowerCase(),
    )
    .filter(sentence => sentence.split(' ').length >= 8)

const places = new Map()
for (const name of documents)
  for (const sentence of sentencesOf(readFileSync(new URL(name, root), 'utf8')))
    places.set(sentence, new Set(places.get(sentence)).add(name))
for (const [sentence, names] of places) {
  if (names.size < 2) continue
  console.log(`${[...names].join(', ')}: ${sentence}`)
  process.exitCode = 1
}
