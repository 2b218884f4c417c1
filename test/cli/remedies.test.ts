/** Commands that the service, its command line and the documents name: `auth-admin` itself parses each. */
import { execFileSync } from 'node:child_process'
import { readdir, readFile } from 'node:fs/promises'
import test from 'ava'
import type { CommanderError } from 'commander'
import type { Command } from '../../cli/command.js'
import { createProgram } from '../../cli/program.js'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { commandOf, type RemedyCode, remedies } from '../../server/rules/remedies.js'

/** Why `auth-admin` doesn't take a command; undefined if it does. No command runs. */
async function problemOf(words: readonly string[]): Promise<CommanderError | undefined> {
  const program = createProgram()
  const stub = (command: Command) => {
    command.configureOutput({ writeOut() {}, writeErr() {}, outputError() {} })
    if (command.commands.length === 0) command.action(() => {})
    command.commands.forEach(stub)
  }
  stub(program)
  return program.parseAsync(words, { from: 'user' }).then(
    () => undefined,
    error => error,
  )
}

/** The words of a command after the program, as a shell reads them. */
const wordsOf = (line: string) =>
  execFileSync('sh', ['-c', `printf '%s\\0' ${line}`], { encoding: 'utf8' })
    .split('\0')
    .slice(1, -1)

const rpcs = new Set(Administration.methods.map(({ name }) => name))
const codes = Object.keys(remedies) as RemedyCode[]

test('auth-admin takes the command of each remedy, and an RPC that one names exists', async t => {
  const values = { USER: 7, ORGANIZATION: 8, QUESTION: 9, EMAIL: 10, ADDRESS: '2001:db8::1', URL: 'https://a:1' }
  for (const code of codes) {
    const line = commandOf(code, { ...values, REQUEST: { confirm: "d'água" } })
    t.is((await problemOf(wordsOf(line)))?.message, undefined, line)
    const remedy = remedies[code]
    if ('rpc' in remedy) t.true(rpcs.has(remedy.rpc), code)
  }
})

test('a command that doesn’t exist, or lacks an argument, is noticed', async t => {
  for (const line of ['users undelete 7', 'users list --text', 'users unlock 7 8', 'mail list --lost'])
    t.not(await problemOf(line.split(' ')), undefined, line)
})

const filesIn = async (folder: string, ending: RegExp) =>
  (await readdir(folder, { recursive: true })).filter(name => ending.test(name)).map(name => `${folder}/${name}`)

test('the service names commands by their remedies alone', async t => {
  for (const file of await filesIn('server', /\.ts$/)) {
    const code = (await readFile(file, 'utf8')).replace(/^\s*(\/\/|\/?\*).*$/gm, '')
    if (!file.endsWith('remedies.ts')) t.notRegex(code, /auth-admin [a-z]/, file)
  }
})

test('each command that a document or the command line names exists', async t => {
  const documents = (
    await Promise.all(['docs', 'deploy', 'proto/client'].map(folder => filesIn(folder, /\.md$/)))
  ).flat()
  const files = [...documents, 'README.md', 'SECURITY.md', 'RELEASING.md', ...(await filesIn('cli', /\.(ts|json)$/))]
  const lines = new Map<string, string>()
  for (const file of files) {
    const text = (await readFile(file, 'utf8')).replaceAll(/\\\n/g, ' ').replaceAll(/\\(?=[`'])/g, '')
    for (const [, whole = '', shown = ''] of text.matchAll(
      /`(auth-admin [a-z][^`]*)`|^(?: *\$ )?(auth-admin [a-z].*)/gm,
    )) {
      // What follows isn't of the command: usage, comments, other programs and files.
      lines.set((whole || shown).replace(/ (\[|<|#|\||>|&&|…).*$/s, '').replaceAll(/\$\{[^}]*\}/g, '7'), file)
    }
  }
  t.true(lines.size > 200)
  // A noun, a command or an option without its values, and values that the reader replaces.
  const unfinished = ['commander.help', 'commander.missingArgument', 'commander.optionMissingArgument']
  for (const [line, file] of lines) {
    const words = [...line.matchAll(/'([^']*)'|"([^"]*)"|(\S+)/g)].map(([, one, two, bare]) => one ?? two ?? bare!)
    const { code, message } = (await problemOf(words.slice(1))) ?? {}
    const isNamed = unfinished.includes(`${code}`) || /'[A-Z]+' is invalid/.test(`${message}`)
    if (!isNamed) t.is(message, undefined, `${file}: ${line}`)
  }
})
