import type { Command } from '../command.js'
import { misuse } from '../exit-codes.js'

/** Adds `auth-admin help`, which finds commands at any depth. */
export function addHelp(program: Command): void {
  program
    .command('help')
    .description('Print help for a command.')
    .argument('[command...]', 'the command, such as `users show`')
    .action((words: string[]) => {
      let found = program
      for (const word of words)
        found = found.commands.find(each => each.name() === word) ?? misuse(`unknown command '${words.join(' ')}'`)
      found.outputHelp()
    })
}
