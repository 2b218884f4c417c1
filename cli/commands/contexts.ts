import type { GlobalOptions } from '../administration.js'
import type { Command } from '../command.js'
import { chooseContext, contextOfEnvironment, local, readContexts, removeToken, writeContexts } from '../contexts.js'
import { misuse } from '../exit-codes.js'
import type { Server } from '../remote-failures.js'
import { printJson, say, warn } from '../terminal/output.js'
import { type List, type ListOptions, pagesOf, printPages } from '../terminal/pages.js'

/** Adds `auth-admin contexts`. */
export function addContexts(program: Command): void {
  const contexts = program.command('contexts').description('Manage the servers that you signed in to.')
  contexts
    .command('list')
    .pages(contextList)
    .description('List the contexts; * marks the current one.')
    .examples('contexts list')
    .action(async (options: ListOptions) => {
      const { current, contexts } = await readContexts()
      const used = contextOfEnvironment() ?? current
      const rows = Object.entries(contexts).map(([name, { url, ca, serverName }]) => ({
        ...{ name, url, ca, serverName },
        current: name === used,
      }))
      await printPages(contextList, options, pagesOf(contextList, rows))
    })
  contexts
    .command('use')
    .description('Select the current context; `local` is the database itself.')
    .argument('<name>', 'name of the context')
    .json()
    .examples('contexts use production')
    .action(async (name: string, options: GlobalOptions) => {
      const { contexts } = await readContexts()
      await chooseContext(name)
      await writeContexts({ current: name === local ? undefined : name, contexts })
      if (options.json) printJson({ current: name })
      else say(worksAt(name))
      warnOfEnvironment(name)
    })
  contexts
    .command('delete')
    .description('Delete a context and its session.')
    .argument('<name>', 'name of the context')
    .json()
    .examples('contexts delete production')
    .action(async (name: string, options: GlobalOptions) => {
      const chosen = (await chooseContext(name)) ?? misuse('`local` is the database itself, and can’t be deleted.')
      await removeToken(chosen.context)
      const { current, contexts } = await readContexts()
      const { [name]: _, ...others } = contexts
      const left = current === name ? undefined : current
      await writeContexts({ current: left, contexts: others })
      if (options.json) printJson({ name, deleted: true })
      else say(`Context ${name} is deleted. ${worksAt(left)}`)
    })
}

/** Where commands work by this current context, as a sentence. */
function worksAt(current = local): string {
  return current === local ? 'Commands work on the database itself.' : `Commands work at ${current}.`
}

/** AUTH_CONTEXT outweighs the context that a command made current. */
export function warnOfEnvironment(current: string): void {
  const used = contextOfEnvironment()
  if (used !== undefined && used !== current) warn(`AUTH_CONTEXT is set: commands still work at ${used}.`)
}

type Listed = Omit<Server, 'name'> & { readonly name: string; readonly current: boolean }

const contextList: List<Listed, 'contexts'> = {
  name: 'contexts',
  fields: ['name', 'url', 'ca', 'serverName', 'current'],
  toOutput: context => context,
  head: { titles: ['', 'name', 'url'], whole: ['name'] },
  toCells: ({ name, url, current }) => [current ? '*' : '', name, url],
  empty: 'No contexts: commands work on the database itself.',
}
