/**
 * The log: one JSON object a line on standard output, or a short line at a terminal. Standard error stays free for
 * what a user must read.
 *
 * Secrets are kept out by what may go in: an error leaves its class, code and place only, since the message of a
 * driver or parser may quote what it was given; requests, headers, URLs and bodies have no serializer and are never
 * passed. What one must say of an error goes into the message by hand.
 */
import { isatty } from 'node:tty'
import { destination, type Logger, pino } from 'pino'

export type Log = Logger

/**
 * Makes the log. `level` is the least severe level written. `write` takes the lines instead of standard output. Lines leave
 * in the background, many at a time when there are many; when the process ends, also by an error, what waits is written.
 */
export function createLog(level: string, write?: (line: string) => void): Log {
  const sink = write
    ? { write }
    : isatty(1)
      ? { write: (line: string) => process.stdout.write(forHumans(line)) }
      : destination({ sync: false, ...buffer })
  const options = {
    level,
    base: undefined,
    timestamp: () => `,"time":"${new Date().toISOString()}"`,
    formatters: { level: (label: string) => ({ level: label }) },
    serializers: { err: describe, error: describe },
    // A second fence, for a field that is passed by mistake.
    redact: {
      paths: secrets.flatMap(name => [name, `*.${name}`]),
      censor,
    },
  }
  return pino(options, sink)
}

/**
 * The same log for lines with flat fields, one for each call: to look for secrets within fields takes five times as long
 * as all the rest of a line.
 */
export function flatLog(log: Log): Log {
  return log.child({}, { redact: { paths: secrets, censor } })
}

const buffer = {
  /** Bytes that are written at once, and ms after which fewer are: a write costs ten times what a line does. */
  minLength: 4096,
  periodicFlush: 100,
  /** Bytes that wait where nobody reads the output any longer; what comes on top of them is dropped. */
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

/** An error without its message: class, code (Node.js, SQLSTATE), SMTP response code, and where it was thrown. */
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

function forHumans(line: string): string {
  const { time, level, msg, err, error, ...rest } = JSON.parse(line)
  const fields = Object.entries(rest).map(([name, value]) => `${name}=${JSON.stringify(value)}`)
  const { type, code, stack = [] } = err ?? error ?? {}
  const head = [String(time).slice(11, 19), String(level).padEnd(5), msg, ...fields, type, code]
  const places = (stack as string[]).map(place => `\n    ${place}`).join('')
  return `${head.filter(part => part !== undefined).join(' ')}${places}\n`
}
