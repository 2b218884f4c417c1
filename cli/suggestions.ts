// Suggestions for unknown commands: words of other command lines, in addition to the similar words of commander.
import type { Command } from 'commander'

/** Words of other command lines, and ours in their place: the first that a command has. */
const words: Readonly<Record<string, readonly string[]>> = {
  add: ['create'],
  new: ['create'],
  register: ['create'],
  remove: ['delete'],
  rm: ['delete'],
  del: ['delete'],
  discard: ['delete'],
  revoke: ['retire', 'delete', 'revoke-tokens'],
  get: ['show'],
  info: ['show'],
  view: ['show'],
  describe: ['show'],
  ls: ['list'],
  update: ['edit', 'set'],
  set: ['edit'],
  modify: ['edit'],
  restore: ['undelete', 'offer'],
  load: ['import'],
  upload: ['import'],
  dump: ['export'],
  download: ['export'],
  cancel: ['abort'],
  stop: ['abort'],
  disable: ['deactivate', 'suspend', 'retire'],
  enable: ['activate', 'resume', 'offer'],
  sort: ['order'],
  locked: ['lockouts'],
  org: ['organizations'],
  orgs: ['organizations'],
  email: ['mail'],
  emails: ['mail'],
  'signing-keys': ['keys'],
  logs: ['audit'],
  events: ['audit'],
  settings: ['config'],
  otp: ['totp'],
  mfa: ['totp'],
}

/** Has a command and all below it suggest our words for unknown ones. */
export function withSuggestions(command: Command): Command {
  for (const each of command.commands) withSuggestions(each)
  return command.on('command:*', ([word = '']: string[]) => {
    const known = new Set(
      command
        .createHelp()
        .visibleCommands(command)
        .map(each => each.name()),
    )
    const ours = Object.hasOwn(words, word) ? words[word]!.find(each => known.has(each)) : undefined
    if (ours)
      command.error(`error: unknown command '${word}' (Did you mean ${ours}?)`)
      // With a listener, commander leaves the error to it. The types lack the method.
    ;(command as Command & { unknownCommand(): void }).unknownCommand()
  })
}
