/**
 * The log: one JSON object a line on standard output, or a short line at a terminal. Standard error is for what a user must
 * read.
 *
 * The log holds no secrets, since its input holds none: of an error it writes class, code and stack only, because the
 * message of a driver or parser may quote its input; requests, headers, URLs and bodies have no serializer and are never
 * passed. What must be said of an error is part of the log message.
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
    serializers: { err: describe, error: describe },
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

/** An error without its message: class, code (Node.js, SQLSTATE), SMTP response code, and stack. */
function describe(error: unknown): unknown {
  if (!(error instanceof Error)) return { type: typeof error }
  const { code, responseCode, original } = error as { code?: unknown; responseCode?: unknown; original?: unknown }
  return {
    type: error.name,
    code: typeof code === 'string' || typeof code === 'number' ? code : undefined,
    responseCode: typeof responseCode === 'number' ? responseCode : undefined,
    stack: error.stack
      ?.split('\n')
      .filter(line => /^\s+at /.test(line))
      .slice(0, 12)
      .map(line => line.trim()),
    cause: error.cause === undefined && original === undefined ? undefined : describe(error.cause ?? original),
  }
}

function formatForTerminal(line: string): string {
  const { time, level, msg, err, error, ...rest } = JSON.parse(line)
  const fields = Object.entries(rest).map(([name, value]) => `${name}=${JSON.stringify(value)}`)
  const { type, code, stack = [] } = err ?? error ?? {}
  const head = [String(time).slice(11, 19), String(level).padEnd(5), msg, ...fields, type, code]
  const frames = (stack as string[]).map(frame => `\n    ${frame}`).join('')
  return `${head.filter(part => part !== undefined).join(' ')}${frames}\n`
}
