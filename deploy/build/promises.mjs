/**
 * The weights of docs/promises.md: `npm run docs` writes the lines of source and tests into each row, and fails if a row names
 * a file that doesn't exist, or a file of source or tests has no row. With `--sum` it only prints the sums.
 *
 * A row names files and folders; a file counts in the row that names the longest part of its path.
 */
import { readdir, readFile, writeFile } from 'node:fs/promises'

const root = new URL('../../', import.meta.url)
const document = new URL('docs/promises.md', root)

const rooms = { source: ['server', 'gateway', 'cli', 'proto/client'], tests: ['test'] }

/** The lines of each file of these folders, by path. */
async function linesIn(folders) {
  const lines = new Map()
  for (const folder of folders) {
    for (const entry of await readdir(new URL(folder, root), { recursive: true, withFileTypes: true })) {
      const path = `${entry.parentPath}/${entry.name}`.slice(root.pathname.length)
      if (!entry.isFile() || !path.endsWith('.ts')) continue
      const text = await readFile(new URL(path, root), 'utf8')
      lines.set(path, text.split('\n').length - 1)
    }
  }
  return lines
}

const sources = await linesIn(rooms.source)
const tests = await linesIn(rooms.tests)
const sum = lines => [...lines.values()].reduce((total, each) => total + each, 0)
const sums = `source ${sum(sources)}, tests ${sum(tests)} lines`

const text = await readFile(document, 'utf8')
/** The rows: cells between bars, of which the third and the fourth name files. */
const rows = text.split('\n').map(line => (line.startsWith('| ') ? line.split('|').slice(1, -1) : undefined))
const named = cell => [...(cell ?? '').matchAll(/`([^`]+)`/g)].map(([, path]) => path)
const claims = [2, 3].map(
  column => new Map(rows.flatMap((row, place) => (row ? named(row[column]).map(path => [path, place]) : []))),
)

/** The lines of each row, by place. */
function weigh(lines, claimed) {
  const weights = new Map()
  const unused = new Set(claimed.keys())
  const homeless = []
  for (const [path, count] of lines) {
    const claim = [...claimed.keys()]
      .filter(each => path === each || (each.endsWith('/') && path.startsWith(each)))
      .sort((a, b) => b.length - a.length)[0]
    if (claim === undefined) {
      homeless.push(path)
      continue
    }
    unused.delete(claim)
    weights.set(claimed.get(claim), (weights.get(claimed.get(claim)) ?? 0) + count)
  }
  const faults = [...homeless.map(path => `no row for ${path}`), ...[...unused].map(path => `there is no ${path}`)]
  if (faults.length > 0) throw new Error(`docs/promises.md: ${faults.join('; ')}.`)
  return weights
}

const [ofSource, ofTests] = [weigh(sources, claims[0]), weigh(tests, claims[1])]
console.log(sums)
if (!process.argv.includes('--sum')) {
  const weighed = rows.map((row, place) => {
    if (!row || row.length < 5) return text.split('\n')[place]
    if (row[4].trim() === 'lines') return text.split('\n')[place]
    return `|${[...row.slice(0, 4), ` ${ofSource.get(place) ?? 0} + ${ofTests.get(place) ?? 0} `].join('|')}|`
  })
  await writeFile(document, weighed.join('\n').replace(/^Sum: .*$/m, `Sum: ${sums}.`))
}
