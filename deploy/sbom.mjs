/**
 * Prints the software bill of materials of a release (CycloneDX, by `npm sbom`): what its bundles contain and what an
 * installation adds, without the tools that build and test it. Needs a build.
 */
import { execFileSync } from 'node:child_process'
import { readFile } from 'node:fs/promises'

const root = new URL('..', import.meta.url)
const readJson = async path => JSON.parse(await readFile(new URL(path, root), 'utf8'))

const bundled = new Set()
for (const path of await readJson('dist/bundled.json')) {
  const { name, version } = await readJson(`${path}/package.json`)
  bundled.add(`${name}@${version}`)
}
const command = ['sbom', '--package-lock-only', '--sbom-format=cyclonedx']
const sbom = JSON.parse(execFileSync('npm', command, { cwd: root, encoding: 'utf8', maxBuffer: 2 ** 26 }))
const isBuiltIn = ({ 'bom-ref': ref }) => bundled.has(ref)
const isInstalled = ({ properties }) => !properties.some(({ name }) => name === 'cdx:npm:package:development')
const { name } = await readJson('package.json')
sbom.metadata.component.name = name
sbom.components = sbom.components.filter(each => isBuiltIn(each) || isInstalled(each))
const refs = new Set([sbom.metadata.component, ...sbom.components].map(each => each['bom-ref']))
sbom.dependencies = sbom.dependencies
  .filter(({ ref }) => refs.has(ref))
  .map(({ ref, dependsOn }) => ({ ref, dependsOn: dependsOn.filter(each => refs.has(each)) }))
console.log(JSON.stringify(sbom, undefined, 2))
