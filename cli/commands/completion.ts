// Completion of a command line. The shell passes the words and gets candidates, one per line. Nothing typed is evaluated,
// nothing prompts, and no embedded database starts.
import type { Argument, Option } from 'commander'
import type { Command } from '../command.js'

/** Adds `auth-admin completion`, and the hidden command that the shells call. */
export function addCompletion(program: Command): void {
  program
    .command('completion')
    .description('Print a script that completes commands, options and contexts.')
    .argument('[shell]', 'bash, zsh or fish')
    .remarks('The command must be in PATH. In a clone, `npm install --global .` adds it.')
    .examples(
      `completion bash \\
      > ~/.local/share/bash-completion/completions/auth-admin`,
      `completion zsh > "\${fpath[1]}/_auth-admin"`,
      'completion fish > ~/.config/fish/completions/auth-admin.fish',
    )
    .action((shell: string = '', _options: unknown, command: Command) => {
      const script = Object.hasOwn(scripts, shell) ? scripts[shell as keyof typeof scripts] : undefined
      if (!script) command.error('error: Use bash, zsh or fish.', { exitCode: 2 })
      process.stdout.write(script)
    })

  program
    .command('__complete', { hidden: true })
    .argument('[words...]')
    .allowUnknownOption()
    .helpOption(false)
    .action(async (words: string[]) => {
      const candidates = await complete(program, words).catch(() => [])
      process.stdout.write(candidates.map(candidate => `${candidate}\n`).join(''))
    })
}

/** What the last word may become. */
async function complete(program: Command, words: readonly string[]): Promise<string[]> {
  const typed = words.at(-1) ?? ''
  const { command, places, expecting } = follow(program, words.slice(0, -1))
  const offered = async () => {
    if (expecting) return valuesOf(expecting)
    if (typed.startsWith('-')) return visible([...command.options, ...program.options]).sort()
    if (command.commands.length > 0)
      return command
        .createHelp()
        .visibleCommands(command)
        .map(each => each.name())
    const argument = command.registeredArguments[places]
    return argument ? valuesOf(argument) : []
  }
  return (await offered()).filter(each => each.toLowerCase().startsWith(typed.toLowerCase()))
}

function visible(options: readonly Option[]): string[] {
  return [...new Set(options.flatMap(({ hidden, long }) => (hidden ? [] : (long ?? []))))]
}

/** Where the words lead: to which command, past how many of its arguments, and which option waits for its value. */
function follow(program: Command, words: readonly string[]) {
  let command = program
  let places = 0
  let expecting: Option | undefined
  for (const word of words) {
    if (expecting) {
      expecting = undefined
      continue
    }
    const option = [...command.options, ...program.options].find(({ long, short }) => word === long || word === short)
    if (option) {
      if (option.required) expecting = option
      continue
    }
    if (word.startsWith('-')) continue
    const next = command.commands.find(each => each.name() === word)
    if (next && command.commands.length > 0) command = next
    else places++
  }
  return { command, places, expecting }
}

/** What an option or argument takes, where that is known here. */
async function valuesOf(of: Option | Argument): Promise<readonly string[]> {
  const name = 'long' in of ? (of.long ?? '').slice(2) : of.name()
  if (name === 'context') {
    const { contexts } = await (await import('../contexts.js')).readContexts()
    // A shell would have to quote others.
    return Object.keys(contexts).filter(each => /^[\w.:-]+$/.test(each))
  }
  return of.argChoices ?? (name === 'shell' ? Object.keys(scripts) : [])
}

const scripts = {
  // Bash breaks words at colons, which the name of a context may have, and replaces the last piece.
  bash: `# Completion of auth-admin in bash.
_auth_admin() {
  local line=\${COMP_LINE:0:COMP_POINT} word
  local -a words
  read -ra words <<< "$line"
  [[ $line == *[[:space:]] ]] && words+=('')
  word=\${words[\${#words[@]}-1]}
  mapfile -t COMPREPLY < <(auth-admin __complete -- "\${words[@]:1}" 2>/dev/null </dev/null)
  COMPREPLY=("\${COMPREPLY[@]#"\${word%"\${word##*:}"}"}")
}
complete -o nosort -F _auth_admin auth-admin
`,
  // As a file of fpath it is run by the first Tab, and has to answer that one, too.
  zsh: `#compdef auth-admin
# Completion of auth-admin in zsh.
_auth_admin() {
  local -a candidates
  candidates=("\${(@f)$(auth-admin __complete -- "\${(@)words[2,CURRENT]}" 2>/dev/null </dev/null)}")
  candidates=("\${(@)candidates:#}")
  (( \${#candidates} )) && compadd -U -a candidates
}
if [[ \${funcstack[1]} == _auth-admin ]]; then
  _auth_admin
else
  compdef _auth_admin auth-admin
fi
`,
  fish: `# Completion of auth-admin in fish.
function __auth_admin_complete
    set -l words (commandline -opc) (commandline -ct)
    auth-admin __complete -- $words[2..-1] 2>/dev/null </dev/null
end
complete -c auth-admin -f -a '(__auth_admin_complete)'
`,
} as const
