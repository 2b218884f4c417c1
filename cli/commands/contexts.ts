import type { GlobalOptions } from '../administration.js'
import type { Command } from '../command.js'
import { chooseContext, contextOfEnvironment, local, readContexts, removeToken, writeContexts } from '../contexts.js'
import { misuse } from '../exit-codes.js'
import { printJson, printTable, say, warn } from '../terminal/output.js'

/** Adds `auth-admin contexts`. */
export function addContexts(program: Command): void {
  program
    .command('contexts')
    .description('List the servers that you signed in to, select the current one, or delete one with its session.')
    .argument('[context]', 'makes this context the current one; `local` is the database itself')
    .option('--delete', 'delete the context instead')
    .json()
    .remarks('In the list, * marks the current context.')
    .examples('contexts', 'contexts production', 'contexts test --delete')
    .action(async (name: string | undefined, options: GlobalOptions & { delete?: boolean }) => {
      const { current, contexts } = await readContexts()
      if (name === undefined) {
        if (options.delete) misuse('Name the context to delete.')
        return print(contexts, contextOfEnvironment() ?? current, options)
      }
      const chosen = await chooseContext(name)
      if (!options.delete) {
        await writeContexts({ current: name === local ? undefined : name, contexts })
        if (options.json) printJson({ current: name })
        else say(worksAt(name))
        return warnOfEnvironment(name)
      }
      if (!chosen) return misuse('`local` is the database itself, and can’t be deleted.')
      await removeToken(chosen.context)
      const { [name]: _, ...others } = contexts
      const left = current === name ? undefined : current
      await writeContexts({ current: left, contexts: others })
      if (options.json) printJson({ name, deleted: true })
      else say(`Context ${name} is deleted. ${worksAt(left)}`)
    })
}

function print(
  contexts: Awaited<ReturnType<typeof readContexts>>['contexts'],
  used: string | undefined,
  { json }: GlobalOptions,
): void {
  const rows = Object.entries(contexts).map(([name, { url, ca, serverName }]) => ({
    ...{ name, url, ca, serverName },
    current: name === used,
  }))
  if (json) {
    printJson({ contexts: rows })
    return
  }
  const cells = rows.map(({ name, url, current }) => [current ? '*' : '', name, url])
  const head = { titles: ['', 'name', 'url'], whole: ['name'] }
  printTable(head, cells, 'No contexts: commands work on the database itself.')
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
