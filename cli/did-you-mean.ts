// Suggestions for unknown commands: words of other command lines, in addition to the similar words of commander.
import type { Command } from 'commander'

/** Words of other command lines, and ours in their place: the first that a command has. */
const words: Readonly<Record<string, readonly string[]>> = {
  add: ['create', 'enroll', 'rotate'],
  new: ['create', 'enroll', 'rotate'],
  register: ['create'],
  remove: ['delete', 'retire'],
  rm: ['delete', 'retire'],
  del: ['delete', 'retire'],
  undo: ['undelete', 'abort'],
  revert: ['undelete', 'abort'],
  rollback: ['undelete', 'abort'],
  discard: ['delete'],
  revoke: ['retire', 'delete', 'revoke-tokens'],
  get: ['show', 'list'],
  search: ['list'],
  find: ['list'],
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
  unsuspend: ['resume'],
  sort: ['order'],
  locked: ['lockouts'],
  org: ['organizations'],
  orgs: ['organizations'],
  user: ['users'],
  organization: ['organizations'],
  question: ['questions'],
  service: ['services'],
  import: ['imports'],
  key: ['keys'],
  context: ['contexts'],
  email: ['mail'],
  emails: ['mail'],
  'signing-keys': ['keys'],
  logs: ['audit'],
  events: ['audit'],
  settings: ['config'],
  otp: ['totp'],
  mfa: ['totp'],
}

/** The command below that a word means: the one of this name, or the first of our words for it. */
function meant(command: Command, word: string): Command | undefined {
  const known = command.createHelp().visibleCommands(command)
  const names = Object.hasOwn(words, word) ? [...words[word]!, word] : [word]
  return names.map(name => known.find(each => each.name() === name)).find(each => each !== undefined)
}

/** Has a command and all below it suggest our words for unknown ones, also for a verb before its noun. */
export function addSuggestions(command: Command): void {
  for (const each of command.commands) addSuggestions(each)
  command.on('command:*', ([word = '', next = '']: string[]) => {
    const noun = meant(command, next)
    const verb = noun && meant(noun, word)
    const ours = meant(command, word)?.name() ?? (verb && `${noun.name()} ${verb.name()}`)
    if (ours)
      command.error(`error: unknown command '${word}' (Did you mean ${ours}?)`)
      // With a listener, commander leaves the error to it. The types lack the method.
    ;(command as Command & { unknownCommand(): void }).unknownCommand()
  })
}
