// Generates the reference of the commands from their help, for the documentation.

/** Every command that does something, with its path, such as `users show`. */
function leaves(command, path = []) {
  const commands = command.createHelp().visibleCommands(command)
  const subcommands = commands.filter(each => each.name() !== 'help')
  if (subcommands.length === 0) return [{ command, path: path.join(' ') }]
  return subcommands.flatMap(each => leaves(each, [...path, each.name()]))
}

/** Returns the text after the options in the help of a command: remarks and examples. */
function remarksOf(command) {
  let text = ''
  const output = { writeOut: part => (text += part) }
  const before = command.configureOutput()
  command.configureOutput(output)
  command.outputHelp()
  command.configureOutput(before)
  const plain = command.helpInformation()
  return text.startsWith(plain) ? text.slice(plain.length).trim() : ''
}

/** An argument in the usage of its command. */
function placeOf(argument) {
  const name = `${argument.name()}${argument.variadic ? '...' : ''}`
  return argument.required ? `<${name}>` : `[${name}]`
}

function usageOf(command, path) {
  const places = command.registeredArguments.map(placeOf)
  return ['auth-admin', path, ...places, ...(optionsOf(command).length > 0 ? ['[options]'] : [])].join(' ')
}

function optionsOf(command) {
  return command.options.filter(({ hidden }) => !hidden)
}

/** The arguments of a command that have a description. */
function argumentsOf(command) {
  return command.registeredArguments.filter(({ description }) => description)
}

/** What an option says, with what it takes. */
function aboutOption(option) {
  const choices = option.argChoices ? ` (${option.argChoices.join(', ')})` : ''
  const fallback = option.defaultValue === undefined ? '' : ` (default: ${String(option.defaultValue)})`
  return `${option.description}${choices}${fallback}`
}

/** The reference as Markdown: a section for each command. */
export function toMarkdown(program) {
  const sections = leaves(program).map(({ command, path }) => {
    const remarks = remarksOf(command)
    return [
      `### ${path}`,
      command.description(),
      `\`\`\`text\n${usageOf(command, path)}\n\`\`\``,
      [
        ...argumentsOf(command).map(argument => `- \`${placeOf(argument)}\`: ${argument.description}`),
        ...optionsOf(command).map(option => `- \`${option.flags}\`: ${aboutOption(option)}`),
      ].join('\n'),
      remarks && `\`\`\`text\n${remarks}\n\`\`\``,
    ]
      .filter(Boolean)
      .join('\n\n')
  })
  const everywhere = optionsOf(program).map(option => `- \`${option.flags}\`: ${aboutOption(option)}`)
  return `Options of every command:\n\n${everywhere.join('\n')}\n\n${sections.join('\n\n')}\n`
}
