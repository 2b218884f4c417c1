/**
 * The log: one JSON object a line on standard output, or a short line at a terminal. Standard error is for what a user must
 * read.
 *
 * The log holds no secrets, since its input holds none: of an error it writes class, code and stack only, because the
 * message of a driver or parser may quote its input; requests, headers, URLs and bodies have no serializer and are never
 * passed. What must be said of an error is part of the log message.
 *
 * An outage doesn't flood the log: entries with the same message and error are written once a second.
 */
import { isatty } from 'node:tty'
import { destination, type Logger, pino } from 'pino'

export type Log = Logger

/**
 * Creates the log. `level` is the lowest severity written. `write` receives the lines instead of standard output. Lines are
 * buffered and written in the background; when the process ends, also by an error, the buffer is written.
 */
export function createLog(level: string, write?: (line: string) => void): Log {
  const sink = write
    ? { write }
    : isatty(1)
      ? { write: (line: string) => process.stdout.write(formatForTerminal(line)) }
      : destination({ sync: false, ...buffer })
  const options = {
    level,
    base: undefined,
    timestamp: () => `,"time":"${new Date().toISOString()}"`,
    formatters: { level: (label: string) => ({ level: label }) },
    serializers: { err: (error: unknown) => describe(error), error: (error: unknown) => describe(error) },
    hooks: { logMethod: createThrottle() },
    // A second line of defense, for a field that is passed by mistake.
    redact: {
      paths: secrets.flatMap(name => [name, `*.${name}`]),
      censor,
    },
  }
  return pino(options, sink)
}

/**
 * The same log for entries without nested fields, such as those of calls: redacting nested fields takes five times as long
 * as the rest of an entry.
 */
export function flatLog(log: Log): Log {
  return log.child({}, { redact: { paths: secrets, censor } })
}

const buffer = {
  /** Bytes of a write, and ms after which fewer are written: a write costs ten times as much as a line. */
  minLength: 4096,
  periodicFlush: 100,
  /** Bytes that are buffered when the output isn't read; further lines are dropped. */
  maxLength: 16 * 1024 * 1024,
}

const censor = '[secret]'

const secrets = [
  'password',
  'newPassword',
  'securityanswer',
  'answer',
  'key',
  'activationkey',
  'token',
  'authorization',
  'masterKey',
  'url',
]

/** Milliseconds in which one entry with the same message and error is written. */
const throttleInterval = 1_000

/** An entry with an error, which is written or left out. */
type LogArguments = [fields: { err?: unknown }, message?: string]

/**
 * Writes the first entry with an error at once. Of equal entries in the following second it writes only the last, at the end
 * of that second, with the number of those that it left out (`suppressed`), and so on.
 */
function createThrottle() {
  const recent = new Map<string, { count: number; write: (suppressed: number) => void }>()

  function end(key: string): void {
    const { count, write } = recent.get(key)!
    recent.delete(key)
    if (count === 0) return
    write(count - 1)
    begin(key)
  }

  function begin(key: string): void {
    recent.set(key, { count: 0, write: () => {} })
    setTimeout(end, throttleInterval, key).unref()
  }

  return function logMethod(this: Logger, args: unknown[], method: (...entry: never) => void): void {
    const [fields, message] = args as LogArguments
    const key = fields?.err === undefined ? undefined : `${message} ${JSON.stringify(describe(fields.err))}`
    const equal = key === undefined ? undefined : recent.get(key)
    if (equal) {
      equal.count++
      equal.write = suppressed => method.apply(this, [{ ...fields, suppressed }, message] as never)
      return
    }
    method.apply(this, args as never)
    if (key !== undefined) begin(key)
  }
}

/**
 * Faults outside of the program, whose stack says nothing: of the network and file system (codes of Node.js), of the operation
 * of the database (classes of SQLSTATE), and UNAVAILABLE and DEADLINE_EXCEEDED of gRPC.
 */
const outside = /^(E(?!RR_)[A-Z_]+|(08|25|40|53|55|57|58)...|4|14)$/

/** Messages of pg, which gives no code, for a connection that has ended. */
const lostConnection = /^Connection terminated|is not queryable$/

/** Whether an error, or what caused it, is a fault outside of the program. */
function isFaultOutside(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  const { name, code, message } = error as { name: string; code?: unknown; message: string }
  if (outside.test(String(code)) || name === 'ConnectionError' || lostConnection.test(message)) return true
  return isFaultOutside(causeOf(error))
}

const causeOf = (error: Error) => error.cause ?? (error as { original?: unknown }).original

/** An error without its message: class, code (Node.js, SQLSTATE), SMTP response code, and stack if it can help. */
function describe(error: unknown, isOutside = isFaultOutside(error)): unknown {
  if (!(error instanceof Error)) return { type: typeof error }
  const { code, responseCode } = error as { code?: unknown; responseCode?: unknown }
  const cause = causeOf(error)
  return {
    type: error.name,
    code: typeof code === 'string' || typeof code === 'number' ? code : undefined,
    responseCode: typeof responseCode === 'number' ? responseCode : undefined,
    stack: isOutside ? undefined : stackOf(error),
    cause: cause === undefined ? undefined : describe(cause, isOutside),
  }
}

function stackOf({ stack }: Error): string[] | undefined {
  return stack
    ?.split('\n')
    .filter(line => /^\s+at /.test(line))
    .slice(0, 12)
    .map(line => line.trim())
}

function formatForTerminal(line: string): string {
  const { time, level, msg, err, error, ...rest } = JSON.parse(line)
  const fields = Object.entries(rest).map(([name, value]) => `${name}=${JSON.stringify(value)}`)
  const { type, code, stack = [] } = err ?? error ?? {}
  const head = [String(time).slice(11, 19), String(level).padEnd(5), msg, ...fields, type, code]
  const frames = (stack as string[]).map(frame => `\n    ${frame}`).join('')
  return `${head.filter(part => part !== undefined).join(' ')}${frames}\n`
}
