/** The manual: it has every command, and man renders it without warnings. */
import { spawn } from 'node:child_process'
import test from 'ava'
import { createProgram } from '../../cli/program.js'
import { leaves, runCli } from '../_helpers/cli.js'

/** Runs a program of the system with an input; undefined if it isn't installed. */
async function filter(name: string, args: string[], input: string): Promise<string | undefined> {
  const child = spawn(name, args)
  let out = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', part => {
      out += part
    })
  }
  child.stdin.on('error', () => {}).end(input)
  return new Promise(resolve => child.once('error', () => resolve(undefined)).once('close', () => resolve(out)))
}

test('the manual has every command with its options, as a man page and as Markdown', async t => {
  const { stdout: page } = await runCli({}, ['manual'])
  const { stdout: markdown } = await runCli({}, ['manual', '--markdown'])
  const commands = leaves(createProgram()).filter(({ path }) => !path.startsWith('__'))
  t.true(commands.length > 30)
  for (const { command, path } of commands) {
    t.true(page.includes(`.SS ${path.replaceAll('-', '\\-')}\n`), path)
    t.true(markdown.includes(`### ${path}\n`), path)
    for (const { flags, hidden } of command.options) if (!hidden) t.true(markdown.includes(`\`${flags}\``), flags)
  }
  t.notRegex(page, /[^\0-\x7f]/)
})

test('man renders the page without warnings', async t => {
  const { stdout: page } = await runCli({}, ['manual'])
  t.true(page.startsWith('.'))
  const complaints =
    (await filter('mandoc', ['-T', 'lint', '-W', 'warning'], page)) ??
    (await filter('groff', ['-man', '-ww', '-z', '-K', 'utf8'], page))
  if (complaints === undefined) t.log('neither mandoc nor groff is here: the page was not read')
  t.is(complaints ?? '', '')
})
