/**
 * Copies the migrations beside the compiled programs, so that a build stays as it is while a file is edited. Refuses files that
 * `migrate` would run in an order, or as a kind, that nobody chose.
 */
import { cp, readdir, readFile, rm } from 'node:fs/promises'

const [folder = 'server/database/migrations', target = `dist/${folder}`] = process.argv.slice(2)
const numbers = new Map()
for (const name of (await readdir(folder)).sort()) {
  const [, number] = /^(\d{4})-[a-z-]+\.sql$/.exec(name) ?? []
  if (!number) throw new Error(`${name}: name a migration NNNN-name.sql, in lower case.`)
  if (numbers.has(number))
    throw new Error(`${numbers.get(number)} and ${name} have the same number: give each its own.`)
  numbers.set(number, name)
  if (!/^-- (expand|contract)\n/.test(await readFile(`${folder}/${name}`, 'utf8')))
    throw new Error(`${name}: begin it with the line \`-- expand\` or \`-- contract\`.`)
}
await rm(target, { recursive: true, force: true })
await cp(folder, target, { recursive: true })
