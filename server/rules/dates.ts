// Dates as texts, and the day of an instant.
import { fault } from './fault.js'

/** What is wrong with a text that is no day. */
export const noDay = fault('MALFORMED', 'Give a day of the calendar as dd/MM/yyyy.')

/**
 * Parses a day, `dd/MM/yyyy` or a date or date-time of ISO 8601, and returns it as `yyyy-MM-dd`. A date-time
 * with an offset or `Z` stands for its day in the time zone, one without for its date. Exactly midnight UTC stands for
 * its date, because programs write a plain date like that. Undefined when the day doesn't exist.
 */
export function readDay(text: string, timeZone: string): string | undefined {
  const match =
    /^(?<day>\d\d)\/(?<month>\d\d)\/(?<year>\d{4})$/.exec(text) ??
    /^(?<year>\d{4})-(?<month>\d\d)-(?<day>\d\d)(?:T(?<time>[^Z+-]+)(?<offset>.*))?$/.exec(text)
  const { year, month, day, time, offset = '' } = match?.groups ?? {}
  const iso = `${year}-${month}-${day}`
  const date = new Date(`${iso}T00:00:00Z`)
  // Date rolls the 31st of a short month over into the next month.
  if (Number.isNaN(date.getTime()) || !date.toISOString().startsWith(iso)) return undefined
  if (time === undefined) return iso
  const [sinceMidnight, utcOffset] = [readTime(time), readOffset(offset)]
  if (sinceMidnight === undefined || utcOffset === undefined) return undefined
  const isPlainDate = offset === '' || (utcOffset === 0 && /^[0:.,]+$/.test(time))
  return isPlainDate ? iso : dayIn(timeZone, new Date(date.getTime() + sinceMidnight - utcOffset))
}

/** Parses `HH:mm` or `HH:mm:ss`, with or without a fraction, as ms since midnight; undefined when invalid. */
function readTime(text: string): number | undefined {
  const match = /^([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d|60)(?:[.,]\d+)?)?$/.exec(text)
  if (!match) return undefined
  const [hours = 0, minutes = 0, seconds = 0] = match.slice(1).map(part => Number(part ?? 0))
  // A leap second belongs to the day before midnight.
  return ((hours * 60 + minutes) * 60 + Math.min(seconds, 59)) * 1000
}

/** Parses `Z`, `±HH`, `±HHmm` or `±HH:mm` as an offset from UTC in ms; 0 for an empty text, undefined when invalid. */
function readOffset(text: string): number | undefined {
  const match = /^(?:Z|([+-])([01]\d|2[0-3])(?::?([0-5]\d))?)?$/.exec(text)
  if (!match) return undefined
  const [, sign, hours = 0, minutes = 0] = match
  return (sign === '-' ? -60_000 : 60_000) * (Number(hours) * 60 + Number(minutes))
}

/** Converts a day from `yyyy-MM-dd` to `dd/MM/yyyy`. */
export function formatDay(iso: string): string {
  return iso.split('-').reverse().join('/')
}

/** Returns the day of an instant in a time zone (IANA name), as `yyyy-MM-dd`. */
export function dayIn(timeZone: string, instant: Date): string {
  const format = formats.get(timeZone) ?? new Intl.DateTimeFormat('sv-SE', { timeZone })
  formats.set(timeZone, format)
  return format.format(instant).padStart(10, '0')
}

/** By time zone: a process has one, or two. Creating one takes longer than all other checks of a form. */
const formats = new Map<string, Intl.DateTimeFormat>()
