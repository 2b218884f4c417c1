// How the values of settings are read. Each function returns a reader, or is one: it takes the text of a variable and throws a
// SettingError if the text is invalid.
import { canonicalBlock } from '../requests/client-address.js'

/** An invalid value. The message says what is expected. It never quotes the value, except entries of lists. */
export class SettingError extends Error {}

/** Accepts a value unless `check` throws: its message then says what is expected. */
export function checked(check: (value: string) => unknown) {
  return (value: string): string => {
    try {
      check(value)
    } catch (error) {
      throw new SettingError((error as Error).message)
    }
    return value
  }
}

export function url(expected: string, ...protocols: string[]) {
  return (value: string): string => {
    const parsed = URL.canParse(value) ? new URL(value) : undefined
    if (!parsed || !protocols.includes(parsed.protocol)) throw new SettingError(`expected ${expected}`)
    return value
  }
}

export function mailbox(value: string): string {
  const { named, bare } =
    /^(?:[^<>\u0000-\u001f\u007f]*<(?<named>[^<>\s]+)>|(?<bare>[^<>\s]+))$/.exec(value)?.groups ?? {}
  if (!/^[^@,;:"()\\]+@[^@,;:"()\\]+$/.test(named ?? bare ?? ''))
    throw new SettingError('expected an address, or Name <address>')
  return value
}

export function integer(min: number, max: number) {
  return (value: string): number => {
    if (!/^\d{1,9}$/.test(value) || Number(value) < min || Number(value) > max)
      throw new SettingError(`expected a whole number from ${min} to ${max}`)
    return Number(value)
  }
}

export function factor(value: string): number {
  if (!/^\d{1,6}(\.\d{1,3})?$/.test(value) || !(Number(value) > 0))
    throw new SettingError('expected a number above 0, such as 2')
  return Number(value)
}

const units = { s: 1, m: 60, h: 3600, d: 86_400 }

/** A duration in the largest unit that divides it. */
function formatDuration(seconds: number): string {
  const [unit, length] = Object.entries(units).findLast(
    ([, length]) => seconds >= length && seconds % length === 0,
  ) ?? ['s', 1]
  return `${seconds / length}${unit}`
}

/** A duration with a unit, or in seconds; the value is in seconds. */
export function duration(min: number, max: number) {
  return (value: string): number => {
    const { digits, unit = 's' } = /^(?<digits>\d{1,9})(?<unit>[smhd])?$/.exec(value)?.groups ?? {}
    const seconds = Number(digits) * units[unit as keyof typeof units]
    if (!(seconds >= min && seconds <= max))
      throw new SettingError(
        `expected a time from ${formatDuration(min)} to ${formatDuration(max)}, such as 1m, 15s or 15 (seconds)`,
      )
    return seconds
  }
}

export function timeZone(value: string): string {
  try {
    // Newer versions of Node.js take offsets, too, which know no daylight saving time.
    if (!/^[A-Za-z]/.test(value)) throw new RangeError()
    // Aliases such as UTC are in no list. Creating the first formatter takes longer than reading all other settings.
    if (!Intl.supportedValuesOf('timeZone').includes(value)) new Intl.DateTimeFormat('en', { timeZone: value })
  } catch {
    throw new SettingError('expected the name of a time zone, such as America/Sao_Paulo')
  }
  return value
}

/**
 * Reads the entries of a list. `read` throws a SettingError whose message says what is wrong with an entry: `list` names all wrong
 * entries, which are no secrets.
 */
export function list<T>(expected: string, read: (entry: string) => T, separator: string | RegExp = ',') {
  return (value: string): readonly T[] => {
    const faults: string[] = []
    const entries = value
      .split(separator)
      .map(entry => entry.trim())
      .filter(entry => entry !== '')
      .flatMap(entry => {
        try {
          return [read(entry)]
        } catch (error) {
          faults.push(`${JSON.stringify(entry)} ${(error as Error).message}`)
          return []
        }
      })
    if (faults.length > 0) throw new SettingError(`expected ${expected}; ${faults.join('; ')}`)
    return Object.freeze(entries)
  }
}

/** Origins (RFC 6454) with scheme and host, also of apps in a web view (`capacitor://localhost`), separated by commas. */
export const origins = list('origins separated by commas, such as https://app.example.org', value => {
  if (value === 'null' || value.includes('*')) throw new SettingError('is no origin: list each origin')
  const withScheme = /^[a-z][a-z\d+.-]*:\/\//i.test(value) ? value : `https://${value}`
  if (!URL.canParse(withScheme)) throw new SettingError('is no URL')
  const { protocol, host } = new URL(withScheme)
  // Browsers send `null` for every file.
  if (protocol === 'file:') throw new SettingError('is a file, which has no origin: serve the page by HTTP')
  if (host === '') throw new SettingError('has no host')
  const origin = `${protocol}//${host.toLowerCase()}`
  if (withScheme !== value) throw new SettingError(`has no scheme: write ${origin}`)
  if (origin !== value.toLowerCase().replace(/\/$/, ''))
    throw new SettingError(`has more than scheme, host and port: write ${origin}`)
  return origin
})

/** IP addresses and CIDR blocks, separated by commas, semicolons or blanks. */
export const blocks = list(
  'IP addresses or CIDR blocks, such as 10.0.0.0/8, ::1',
  value => {
    if (canonicalBlock(value) === undefined)
      throw new SettingError(
        'is neither: write 127.0.0.0/8, ::1 for a proxy on this machine, and the addresses of a proxy instead of its name',
      )
    return value
  },
  /[\s,;]+/,
)

export function oneOf<const T extends string>(...allowed: readonly T[]) {
  return (value: string): T => {
    if (!(allowed as readonly string[]).includes(value)) throw new SettingError(`expected ${allowed.join(' or ')}`)
    return value as T
  }
}
