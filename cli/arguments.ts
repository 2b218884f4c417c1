import { InvalidArgumentError } from 'commander'

/** The flags that aren't named as their field, because one sets a part of it. */
const flags: Readonly<Record<string, string>> = {
  redirect_uris: '--redirect-uri',
  post_logout_uris: '--post-logout-uri',
  scopes: '--may',
}

/** The flag of a field, `--inep-code` for `inep_code`. */
export function flagOf({ field }: { readonly field: string }): string {
  return flags[field] ?? `--${field.replaceAll('_', '-')}`
}

/** Reads a reference: any text without control characters. */
export function readReference(value: string): string {
  if (/[\p{Cc}\p{Cs}]/u.test(value)) throw new InvalidArgumentError('Leave out control characters.')
  return value
}
