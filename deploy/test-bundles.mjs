/**
 * Says which test files are bundled together. Each bundle is a process, which takes half a second to load: eight files of a
 * folder share one. A file of another kind, such as `NAME.slow.test.ts`, has one to itself; so has `NAME.alone.test.ts`, which
 * changes its process: clock, environment, priority.
 */
import { readdir, rm } from 'node:fs/promises'
import { posix } from 'node:path'

const filesPerProcess = 8

/** Returns entry points of a build, and the plugin that it needs. `given`: files to bundle one by one instead of all. */
export async function testBundles(root, given) {
  const names = await readdir(`${root}/test`, { recursive: true })
  const files = names.filter(name => name.endsWith('.test.ts')).sort()
  const shares = name => /^[^.]+\/[^./]+\.test\.ts$/.test(name)
  const alone = given.length > 0 ? given : files.filter(name => !shares(name)).map(name => `test/${name}`)
  const together = new Map(given.length > 0 ? [] : groups(files.filter(shares)))
  return { entryPoints: [...alone, ...together.keys()], plugin: bundledTogether(root, together) }
}

/** Removes the bundles of all tests: those of files that are gone would run, too. */
export async function removeTests(root) {
  await rm(`${root}/dist/test/chunks`, { recursive: true, force: true })
  const names = await readdir(`${root}/dist/test`, { recursive: true })
  for (const name of names) if (/\.test\.js(\.map)?$/.test(name)) await rm(`${root}/dist/test/${name}`)
}

/** Pairs of an entry point, such as `test/users/1.test.ts`, and the files that it stands for. */
function groups(files) {
  const folders = new Map()
  for (const file of files) {
    const folder = posix.dirname(file)
    folders.set(folder, [...(folders.get(folder) ?? []), file])
  }
  return [...folders].flatMap(([folder, members]) => {
    const count = Math.ceil(members.length / filesPerProcess)
    return Array.from({ length: count }, (_, index) => [
      `test/${folder}/${index + 1}.test.ts`,
      // Every count-th file: neighbors are alike, and the longest often are.
      members.filter((_, place) => place % count === index),
    ])
  })
}

/** Makes the entry points of groups, and puts the name of its file before the title of each test. */
function bundledTogether(root, together) {
  const members = new Set([...together.values()].flat().map(name => `${root}/test/${name}`))
  return {
    name: 'tests together',
    setup({ onResolve, onLoad }) {
      onResolve({ filter: /^test\/.+\/\d+\.test\.ts$/ }, ({ path, kind }) =>
        kind === 'entry-point' ? { path, namespace: 'together' } : undefined,
      )
      onLoad({ filter: /.*/, namespace: 'together' }, ({ path }) => ({
        contents: ['_helpers/turns.ts', ...together.get(path)].map(name => `import './test/${name}'`).join('\n'),
        resolveDir: root,
      }))
      onResolve({ filter: /^ava$/ }, ({ importer, namespace }) =>
        namespace === 'file' && members.has(importer) ? { path: importer, namespace: 'titled' } : undefined,
      )
      onLoad({ filter: /.*/, namespace: 'titled' }, ({ path }) => ({
        contents: titledTests(posix.basename(path, '.test.ts')),
        resolveDir: root,
      }))
    },
  }
}

/** AVA for one of several files in a process. */
const titledTests = file => `
  import test from 'ava'
  export * from 'ava'
  export default titled(test)
  function titled(declare) {
    return new Proxy(declare, {
      apply: (target, self, [title, ...rest]) =>
        target.call(self, typeof title === 'string' ? ${JSON.stringify(`${file} › `)} + title : title, ...rest),
      get: (target, name) => (typeof target[name] === 'function' ? titled(target[name]) : target[name]),
    })
  }
`
