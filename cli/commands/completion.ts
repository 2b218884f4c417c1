// Completion of a command line. The shell passes the words and gets candidates, one per line. Nothing typed is evaluated,
// nothing prompts, and no embedded database starts.
import type { Argument, Option } from 'commander'
import type { Api } from '../administration.js'
import type { Command } from '../command.js'

/** Milliseconds for which a shell waits for names. */
const timeout = 1_500

/** Most names that are offered. */
const most = 50

/** Adds `auth-admin completion`, and the hidden command that the shells call. */
export function addCompletion(program: Command): void {
  program
    .command('completion')
    .description('Print a script that completes commands, options, and names of users and organizations.')
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
  const typed = unquote(words.at(-1) ?? '')
  const { command, places, expecting, context } = follow(program, words.slice(0, -1).map(unquote))
  const startsWith = (text: string) => text.toLowerCase().startsWith(typed.toLowerCase())
  if (expecting) return (await valuesOf(expecting, typed, context)).filter(startsWith)
  if (typed.startsWith('-')) {
    const options = [...command.options, ...program.options].filter(({ hidden }) => !hidden)
    return [...new Set(options.flatMap(({ long }) => long ?? []))].filter(startsWith).sort()
  }
  const commands = command.createHelp().visibleCommands(command)
  if (command.commands.length > 0) return commands.map(each => each.name()).filter(startsWith)
  const argument = command.registeredArguments[places]
  return argument ? (await valuesOf(argument, typed, context)).filter(startsWith) : []
}

/** Where the words lead: to which command, past how many of its arguments, and which option waits for its value. */
function follow(program: Command, words: readonly string[]) {
  let command = program
  let places = 0
  let expecting: Option | undefined
  let context: string | undefined
  for (const word of words) {
    if (expecting) {
      if (expecting.long === '--context') context = word
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
  return { command, places, expecting, context }
}

/** What an option or argument takes. */
async function valuesOf(of: Option | Argument, typed: string, context: string | undefined): Promise<string[]> {
  if (of.argChoices) return [...of.argChoices]
  const name = 'long' in of ? (of.long ?? '').slice(2) : of.name()
  if (name === 'context') return Object.keys((await (await import('../contexts.js')).readContexts()).contexts)
  if (name === 'shell') return Object.keys(scripts)
  if (name === 'user') return names(context, api => usernames(api, typed))
  if (name === 'organization') return names(context, api => organizationNames(api, typed))
  return []
}

async function usernames(api: Api, text: string): Promise<string[]> {
  const { users } = await api.listUsers({ text, pageSize: most })
  return users.flatMap(({ record }) => record?.username ?? [])
}

async function organizationNames(api: Api, text: string): Promise<string[]> {
  const { organizations } = await api.listOrganizations({ text, pageSize: most })
  return organizations.flatMap(({ record }) => record?.name ?? [])
}

/** Asks the server of a session. Not the database itself, which may have to start first. */
async function names(context: string | undefined, ask: (api: Api) => Promise<string[]>): Promise<string[]> {
  const { chooseContext, readToken } = await import('../contexts.js')
  const chosen = await chooseContext(context)
  if (!chosen) return []
  const [{ createClient }, { Administration }, { openRemote }] = await Promise.all([
    import('@connectrpc/connect'),
    import('../../proto/gen/auth/v1/administration_pb.js'),
    import('../remote.js'),
  ])
  const token = await readToken(chosen)
  const { transport, close } = await openRemote(chosen.context, () => token, { timeout })
  try {
    // Control characters would break the list, or move the cursor.
    return (await ask(createClient(Administration, transport))).filter(name => !/\p{Cc}/u.test(name))
  } finally {
    await close()
  }
}

/** A word as it will be once the shell has read it, as far as it is typed: `'(11` and `\(11` are `(11`. */
function unquote(word: string): string {
  const [, quote, rest = ''] = /^(['"])(.*)$/s.exec(word) ?? []
  if (quote) return rest.endsWith(quote) ? rest.slice(0, -1) : rest
  return word.replace(/\\(.)/gs, '$1')
}

const scripts = {
  // Bash breaks words at @, : and =, and replaces the last piece by the offer (an @ belongs to it), within quotes
  // that are open.
  bash: `# Completion of auth-admin in bash.
_auth_admin() {
  local candidate word glued rest=\${COMP_LINE:0:COMP_POINT} last=\${COMP_WORDS[COMP_CWORD]}
  local -a words=()
  COMPREPLY=()
  for word in "\${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
    if [[ $rest != [[:space:]]* && \${#words[@]} -gt 0 ]]; then
      words[\${#words[@]}-1]+=$word
    else
      words+=("$word")
    fi
    rest=\${rest#"\${rest%%[![:space:]]*}"}
    rest=\${rest#"$word"}
  done
  word=\${words[\${#words[@]}-1]}
  [[ $last == [@:=] ]] && glued=$word || glued=\${word%"$last"}
  glued=\${glued%@}
  while IFS= read -r candidate; do
    case $last in
      \\'*) candidate=\${candidate//\\'/\\'\\\\\\'\\'} ;;
      \\"*) candidate=$(printf '%s' "$candidate" | sed 's/[\\\\"$\`]/\\\\&/g') ;;
      *) candidate=$(printf '%q' "$candidate") ;;
    esac
    [[ $candidate == "$glued"* ]] && COMPREPLY+=("\${candidate#"$glued"}")
  done < <(auth-admin __complete -- "\${words[@]:1}" 2>/dev/null </dev/null)
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
