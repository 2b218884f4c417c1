import { InvalidArgumentError } from 'commander'

/** The flag of a field, `--inep-code` for `inep_code`. */
export function flagOf({ field }: { readonly field: string }): string {
  return `--${field.replaceAll('_', '-')}`
}

/** Reads a reference: any text without control characters. */
export function readReference(value: string): string {
  if (/[\p{Cc}\p{Cs}]/u.test(value)) throw new InvalidArgumentError('Leave out control characters.')
  return value
}
