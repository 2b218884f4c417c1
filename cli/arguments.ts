import { type Command, InvalidArgumentError } from 'commander'

/** The flag of a field, `--inep-code` for `inep_code`. */
export function flagOf({ field }: { readonly field: string }): string {
  return `--${field.replaceAll('_', '-')}`
}

/** Adds the argument that names what a command is about; digits alone are an id, as `#` and digits always are. */
export function withReference(command: Command, what: string, how: string): Command {
  return command.argument(`[${what}]`, how, readReference)
}

/** Reads a reference: any text without control characters. */
export function readReference(value: string): string {
  if (/[\p{Cc}\p{Cs}]/u.test(value)) throw new InvalidArgumentError('Leave out control characters.')
  return value
}
