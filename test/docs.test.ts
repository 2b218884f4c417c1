/** The documents are up to date: settings and files that they name exist. */
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import test from 'ava'
import { settingNames } from '../server/process/settings.js'
import { organizationFields } from '../server/rules/organization.js'
import { profile } from '../server/rules/profile.js'
import { temporaryFolder } from './_helpers/temporary-folder.js'

const root = fileURLToPath(new URL('../..', import.meta.url))
const read = (name: string) => readFileSync(`${root}/${name}`, 'utf8')
const documents = [
  ...readdirSync(root),
  ...['docs', 'deploy', 'proto/client'].flatMap(folder =>
    readdirSync(join(root, folder), { recursive: true }).map(name => `${folder}/${String(name).replaceAll('\\', '/')}`),
  ),
].filter(name => name.endsWith('.md'))

test('docs/settings.md describes every setting', t => {
  const described = [...read('docs/settings.md').matchAll(/^\| `([A-Z_]+)` \| .* \| (\S.*) \|$/gm)]
  t.deepEqual(described.map(([, name]) => name!).sort(), [...settingNames].sort())
})

test('docs/imports.md describes every column of an organization and of a profile', t => {
  const [, organizations = '', users = ''] = read('docs/imports.md').split(/^## Columns: .*$/m)
  const described = (text: string) => [...text.matchAll(/^\| `(\w+)` \| \S/gm)].map(([, name]) => name!)
  for (const [text, fields] of [
    [organizations, organizationFields],
    [users, Object.values(profile)],
  ] as const)
    for (const { field } of fields) t.true(described(text).includes(field), `Describe ${field}.`)
})

for (const [promise, script, ...options] of [
  ['what the code determines is up to date; `npm run docs` regenerates it', 'reference', '--check'],
  ['no sentence occurs in two documents', 'twice'],
  ['no setting, metric, command, reason, exit code or migration of a release is gone or changed', 'names', '--check'],
] as const)
  test(promise, t => {
    const args = [`${root}/deploy/build/${script}.mjs`, ...options]
    const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' })
    t.is(status, 0, stdout + stderr)
  })

test('a command may take more optional arguments after the others; no argument or option may go or change', async t => {
  const file = join(await temporaryFolder(t), 'names.json')
  const check = async (...commands: string[]) => {
    await writeFile(file, JSON.stringify({ commands }))
    const { stderr } = spawnSync(process.execPath, [`${root}/deploy/build/names.mjs`, '--check', file], {
      encoding: 'utf8',
    })
    return [...stderr.matchAll(/^Gone or changed: commands, (.*)$/gm)].map(([, name]) => name)
  }
  const same = ['organizations create [name] [options]', 'organizations create --name <text>']
  t.deepEqual(await check(...same, 'organizations create [options]', 'users set-role [user] [options]'), [])
  const changed = [
    ...['organizations create [label] [options]', 'organizations create [name] [type] [options]'],
    ...['api [request] [options]', 'organizations export [options]', 'questions order [options]'],
    ...['organizations create <name> [options]', 'organizations create [name]', 'users set-role [role] [options]'],
    ...['organizations create --title <title>', 'organizations create --name', 'organizations make [options]'],
  ]
  t.deepEqual(await check(...changed), changed)
})

test('every file of source and tests belongs to a promise in docs/promises.md, which names none that doesn’t exist', t => {
  const rows = [...read('docs/promises.md').matchAll(/^\| .*$/gm)].map(([row]) => row.split('|'))
  const namedIn = (column: number) =>
    rows.flatMap(row => [...row[column]!.matchAll(/`([^`]+)`/g)].map(([, path]) => path!))
  for (const [column, folders] of [
    [3, ['server', 'gateway', 'cli', 'proto/client']],
    [4, ['test']],
  ] as const) {
    const named = namedIn(column)
    for (const path of named) t.true(existsSync(join(root, path)), path)
    for (const folder of folders)
      for (const name of readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' }))
        if (name.endsWith('.ts'))
          t.true(
            named.some(path => `${folder}/${name}`.startsWith(path)),
            `${folder}/${name}`,
          )
  }
})

/** The anchors of a document's headings, as GitHub makes them. */
function anchorsOf(name: string): string[] {
  const headings = read(name)
    .replace(/^```.*?^```$/gms, '')
    .matchAll(/^#+ (.*)$/gm)
  return [...headings].map(([, title = '']) =>
    title
      .toLowerCase()
      .replace(/[^\p{L}\p{N}\s_-]/gu, '')
      .replaceAll(' ', '-'),
  )
}

test('every link within the repository leads to a file, and to a heading in it', t => {
  for (const name of documents) {
    for (const [, path = '', anchor] of read(name).matchAll(/\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)/g)) {
      const target = path === '' ? name : join(dirname(name), path)
      t.true(existsSync(join(root, target)), `${name}: ${path}`)
      if (anchor) t.true(anchorsOf(target).includes(anchor), `${name}: ${path}#${anchor}`)
    }
  }
})

test('every file that shows the version shows that of the package', t => {
  const { version } = JSON.parse(read('package.json'))
  t.is(JSON.parse(read('package-lock.json')).version, version)
  t.is(JSON.parse(read('proto/client/package.json')).version, version)
  t.is(/^## (\d\S*)/m.exec(read('CHANGELOG.md'))?.[1], version)
  const shown = documents.filter(name => name !== 'RELEASING.md')
  const tarballs = shown.flatMap(name => [...read(name).matchAll(/auth-registry(?:-client)?-(\d\S*)\.tgz/g)])
  t.true(tarballs.length > 1)
  for (const [name, given] of tarballs) t.is(given, version, name)
})
