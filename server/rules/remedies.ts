// The remedies that refusals, explanations, the doctor and the log name, each once: the command or RPC, and the sentence. Code
// names a remedy by its code, and no program reads one back from a text. test/cli/remedies.test.ts parses every command.
import type { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { quote } from './shell.js'

/** Values for the placeholders of a command. A placeholder without a value stays, for the reader to replace. */
export interface Values {
  readonly USER?: number
  readonly ORGANIZATION?: number | undefined
  readonly QUESTION?: number
  readonly EMAIL?: number
  readonly ADDRESS?: string | undefined
  readonly URL?: string
  readonly REQUEST?: object
}

/** A remedy: the words of a command after the program, or an RPC without a command of its own; placeholders are in capitals. */
type Remedy = (
  | { readonly words: readonly string[] }
  | { readonly rpc: Capitalize<keyof typeof Administration.method>; readonly request?: object | 'REQUEST' }
) & {
  /** What to do, if not only to run the command; commands in braces, by code. */
  readonly sentence?: string
  /** The users whose change needs `--reason` on the database itself. Default none. */
  readonly reason?: 'administrators' | 'all'
}

const table = {
  'activate user': { words: ['users', 'activate', 'USER'], reason: 'administrators' },
  'activate member': {
    words: ['users', 'activate', 'USER', '--organization', 'ORGANIZATION'],
    reason: 'administrators',
  },
  'resume user': { words: ['users', 'resume', 'USER'], reason: 'administrators' },
  'undelete user': { words: ['users', 'restore', 'USER'], reason: 'administrators' },
  'set organization': {
    words: ['users', 'move', 'USER', '--organization', 'ORGANIZATION'],
    reason: 'administrators',
  },
  'unlock user': { words: ['users', 'unlock', 'USER'] },
  'unlock address': { words: ['users', 'unlock', 'USER', '--address', 'ADDRESS'] },
  'unlock codes': {
    words: ['users', 'unlock', 'USER'],
    sentence: 'Another administrator can unlock them: {unlock codes}.',
  },
  'send key': { words: ['users', 'send-key', 'USER'] },
  'set password': { words: ['users', 'set-password', 'USER'], reason: 'all' },
  'set initial password': {
    words: ['users', 'set-password'],
    sentence: 'Set another one with {set initial password}, and delete the file.',
  },
  'set password here': {
    words: ['users', 'set-password', '--local'],
    sentence: 'Another administrator, or {set password here} on the database itself, can set one that signs in now.',
  },
  'set e-mail address': { words: ['users', 'edit', 'USER', '--email', 'ADDRESS'], reason: 'administrators' },
  'ask for e-mail addresses': {
    words: ['users', 'edit', 'USER', '--email', 'ADDRESS'],
    sentence:
      'Without their passwords only an administrator lets them in: have apps ask for an address (`email` at sign-up, SetEmail), or run {ask for e-mail addresses}.',
  },
  'delete administrator': {
    words: ['users', 'delete'],
    sentence: 'An administrator is deleted at Administration, with {delete administrator}.',
  },
  'erase users': {
    words: ['users', 'erase', 'ID'],
    sentence:
      'Have them sign up under other names, and run {erase users} for each; until then name users by id without #.',
  },
  'create administrator': {
    words: [
      ...['users', 'create', '--local', '--reason', 'no administrator', '--username', 'NAME', '--confirm', 'NAME'],
      ...['--role', 'ROLE_ADMIN', '--active', '--state', 'DF', '--city', 'Brasília', '--password-file', 'FILE'],
    ],
  },
  'enroll codes': { words: ['totp', 'enroll'], sentence: 'Have each of them run {enroll codes}.' },
  'search users': {
    words: ['users', 'list', '--text', 'WORDS'],
    sentence: 'To search for a part of a name, run {search users}.',
  },
  'search organizations': {
    words: ['organizations', 'list', '--text', 'WORDS'],
    sentence: 'To search for a part of a name, run {search organizations}.',
  },
  'suspend members': { words: ['users', 'suspend', '--organization', 'ORGANIZATION'] },
  'activate organization': { words: ['organizations', 'activate', 'ORGANIZATION'] },
  'offer question': { words: ['questions', 'offer', 'QUESTION'] },
  'create questions': {
    words: ['questions', 'create'],
    sentence: 'Several questions aren’t in the registry: create all but one with {create questions}.',
  },
  'retry e-mail': { words: ['mail', 'retry', 'EMAIL'] },
  'retry e-mails': {
    words: ['mail', 'retry', '--failed'],
    sentence: 'Fix the cause that {list failed e-mails} shows, then run {retry e-mails}.',
  },
  'list failed e-mails': { words: ['mail', 'list', '--failed'] },
  'fix e-mails': {
    words: ['mail', 'list', '--waiting'],
    sentence: 'Fix the cause that {fix e-mails} shows.',
  },
  'send e-mails': {
    words: ['mail', 'list'],
    sentence: 'Start the service, which sends e-mails, or see the errors in {send e-mails}.',
  },
  'send test e-mail': {
    words: ['mail', 'test', 'ADDRESS'],
    sentence:
      'Check host, port, user, password and scheme (smtps where the port begins with TLS, else smtp); then run {send test e-mail}.',
  },
  install: { words: ['install'] },
  diagnose: { words: ['doctor'] },
  'create organization': { words: ['organizations', 'create', 'NAME'] },
  migrate: { words: ['migrate', 'up'] },
  'compare migrations': {
    words: ['migrate', 'status', '--local'],
    sentence:
      'On the host of the service, run {compare migrations}: if migrations are pending, run {migrate}; if some are newer, install the newer version.',
  },
  'end upgrade': {
    words: ['migrate', 'up', '--contract'],
    sentence: 'Once no process of an older version runs, run {end upgrade}.',
  },
  'rotate master key': { words: ['master-key', 'rotate'] },
  'see issuer': { words: ['api', 'GetIssuer'] },
  'set issuer': {
    rpc: 'SetIssuer',
    request: { issuer: 'URL', confirm: 'URL' },
    sentence: 'Unless all clients and services run there, run {set issuer} with the URL of the gateway.',
  },
  'set issuer as wanted': { rpc: 'SetIssuer', request: 'REQUEST' },
  'rotate signing key': {
    words: ['keys', 'rotate'],
    sentence: 'Start the service, which rotates keys, or run {rotate signing key}.',
  },
  'sign at once': { words: ['keys', 'rotate', '--now'] },
  'sign in': { words: ['login', 'URL'] },
} as const satisfies Record<string, Remedy>

/** The code of a remedy. */
export type RemedyCode = keyof typeof table

/** The remedies, by code. */
export const remedies: Readonly<Record<RemedyCode, Remedy>> = table

/** The command of a remedy, quoted for a shell, with more words. */
export function commandOf(code: RemedyCode, values: Values = {}, ...more: readonly string[]): string {
  const fill = (word: unknown) => {
    if (typeof word !== 'string') return word
    const [, hash = '', name = ''] = /^(#?)([A-Z]+)$/.exec(word) ?? []
    const value = values[name as keyof Values]
    return value === undefined ? word : hash ? `${hash}${value}` : value
  }
  const remedy = remedies[code]
  const { words } =
    'words' in remedy
      ? remedy
      : {
          words: [
            ...['api', remedy.rpc],
            ...(remedy.request ? [JSON.stringify(remedy.request, (_, value) => fill(value))] : []),
            '--yes',
          ],
        }
  return ['auth-admin', ...words, ...more].map(word => quote(String(fill(word)))).join(' ')
}

/** The command of a remedy, for a sentence. */
export const named = (code: RemedyCode, values?: Values, ...more: readonly string[]) =>
  `\`${commandOf(code, values, ...more)}\``

/** What to do, as a sentence with its commands. */
export function advise(code: RemedyCode, values?: Values): string {
  const { sentence = `Run {${code}}.` } = remedies[code]
  return sentence.replace(/\{([^}]+)\}/g, (_, other: RemedyCode) => named(other, values))
}
