/** The documents are up to date: tests, settings and files that they name exist. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import test from 'ava'
import { createProgram } from '../cli/program.js'
import { toMarkdown } from '../cli/reference.js'
import { settingNames } from '../server/process/settings.js'

const root = fileURLToPath(new URL('../..', import.meta.url))
const read = (name: string) => readFileSync(`${root}/${name}`, 'utf8')
const documents = ['.', 'docs', 'deploy'].flatMap(folder =>
  readdirSync(join(root, folder))
    .filter(name => name.endsWith('.md'))
    .map(name => (folder === '.' ? name : `${folder}/${name}`)),
)

test('SECURITY.md names tests for every attack, and each of them exists', t => {
  const [before = '', appendix = ''] = read('SECURITY.md').split('## Appendix: tests')
  const attacks = [...before.matchAll(/^\| (\d+) \|/gm)].map(([, number]) => number)
  const named = [...appendix.matchAll(/^(\d+)\. (.*)$/gm)]
  t.true(attacks.length > 30)
  t.deepEqual(
    named.map(([, number]) => number),
    attacks,
  )
  for (const [, number, list = ''] of named) {
    const titles = [...list.matchAll(/([\w/-]+): (\*[^*]+\*(?:; \*[^*]+\*)*)/g)].flatMap(([, file, titles = '']) =>
      titles.split('; ').map(title => ({ file, title: title.slice(1, -1) })),
    )
    t.true(titles.length > 0, number)
    for (const { file, title } of titles) {
      const place = file?.includes('/') ? `test/${file}` : `test/attacks/${file}`
      const sources = ['', '.slow', '.long']
        .map(kind => `${place}${kind}.test.ts`)
        .filter(path => existsSync(`${root}/${path}`))
      t.true(
        sources.some(path => read(path).includes(`'${title}'`)),
        `${file}: ${title}`,
      )
    }
  }
})

test('README.md describes every setting, and no other', t => {
  const rows = [...read('README.md').matchAll(/^\| ((?:`[A-Z_]+`(?:, )?)+) \|/gm)]
  const described = rows.flatMap(([, names = '']) => names.replaceAll('`', '').split(', '))
  t.deepEqual(described.sort(), [...settingNames].sort())
})

test('every link within the repository leads to a file', t => {
  for (const name of documents) {
    const links = [...read(name).matchAll(/\]\((?!https?:|#)([^)#]+)[^)]*\)/g)].map(([, path]) => path!)
    for (const path of links) t.true(existsSync(join(root, dirname(name), path)), `${name}: ${path}`)
  }
})

test('the reference of commands equals their help; `npm run docs` regenerates it', t => {
  const [, reference] = read('docs/administration.md').split(/^<!-- Below this line .*\n/m)
  t.is(reference?.trim(), toMarkdown(createProgram()).trim())
})
