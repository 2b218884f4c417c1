// Delivers e-mails to a mail server, or to files when no mail server is configured.
import { randomBytes } from 'node:crypto'
import { access, constants, readdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { domainToASCII } from 'node:url'
import type { SendMailOptions } from 'nodemailer'
import type { Log } from '../observability/log.js'
import { openDataFolder } from '../process/data-folder.js'
import { makeFolder, writePrivateFile } from '../process/private-file.js'

/** A composed e-mail. */
export interface Mail {
  /** One address (RFC 5321). */
  readonly to: string
  readonly subject: string
  readonly text: string
  /** Left part of its Message-ID, the same at every attempt, so that mail clients recognize a duplicate. */
  readonly name: string
  /** Ids of the recipient and of mentioned users. The file of the e-mail is deleted when one of them is erased. */
  readonly users: readonly number[]
}

/** Sends e-mails. */
export interface MailTransport {
  /** Sends an e-mail. Resolves with the reply when the mail server has accepted it, or when the file is written. */
  send(mail: Mail): Promise<string>
  /** Rejects when the mail server doesn't accept the connection and credentials, or the folder isn't writable. */
  verify(): Promise<void>
  /** Closes idle connections. */
  close(): void
}

/**
 * Creates the transport. Without `smtpUrl` e-mails become `.eml` files (RFC 5322) in `<dataDir>/mail`, for development.
 * Files sort by time, are readable only by their owner, and have the ids of their users in their names, with the `registry`
 * (`registryTag`) whose ids they are. Of consecutive failures to write, only the first one is logged.
 */
export function createMailTransport(
  settings: {
    readonly smtpUrl?: string | undefined
    readonly currentSmtpUrl?: () => string | undefined
    readonly mailFrom: string
    readonly issuer?: string | undefined
    readonly dataDir: string
  },
  log: Pick<Log, 'error'>,
  registry = 'none',
): MailTransport {
  const { smtpUrl, currentSmtpUrl = () => smtpUrl, mailFrom, dataDir, issuer } = settings
  const sender = mailFrom.replace(/^.*<|>$/g, '')
  const domain = sender.slice(sender.lastIndexOf('@') + 1)
  const compose = ({ to, subject, text, name }: Mail): SendMailOptions => {
    if (/[\p{Cc}<>]/u.test(to)) throw new Error('The recipient address has invalid characters')
    return {
      from: mailFrom,
      to: { name: '', address: to },
      envelope: { from: sender, to: [to] },
      subject,
      text,
      messageId: `<${name}@${domain}>`,
      headers: { 'Auto-Submitted': 'auto-generated' }, // RFC 3834: no out-of-office answers
      disableFileAccess: true,
      disableUrlAccess: true,
    }
  }
  return smtpUrl
    ? toServer({ smtpUrl, currentSmtpUrl }, greeting(domain, issuer), compose)
    : toFiles({ dataDir, registry }, compose, log)
}

/** Days of retention of e-mails as files. */
const keptDays = 30

/**
 * Deletes e-mails from `<dataDir>/mail` that are older than 30 days, and those of erased users of the registry. `erasedOf`
 * returns the ids of erased users among the given ones.
 */
export async function pruneFiles(
  { dataDir, registry }: FolderOf,
  erasedOf: (ids: number[]) => Promise<number[]>,
): Promise<void> {
  const folder = folderOf(dataDir)
  const names = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return []
    throw error
  })
  const files = names
    .filter(name => /\.(?:eml|partial)$/.test(name))
    .map(name => ({ name, users: name.includes(`-r${registry}-`) ? usersOf(name) : [] }))
  const erased = new Set(await erasedOf([...new Set(files.flatMap(({ users }) => users))]))
  const oldest = Date.now() - keptDays * 86_400_000
  for (const { name, users } of files) {
    const path = join(folder, name)
    // Another process may have deleted the file.
    const isOld = async () => ((await stat(path).catch(() => undefined))?.mtimeMs ?? oldest) < oldest
    if (users.some(id => erased.has(id)) || (await isOld())) await rm(path, { force: true })
  }
}

/** The data folder, and the registry whose e-mails these are. */
interface FolderOf {
  readonly dataDir: string
  readonly registry: string
}

function folderOf(dataDir: string): string {
  return join(dataDir, 'mail')
}

/** Returns the user ids in a file name of `write`. */
function usersOf(name: string): number[] {
  return [...name.matchAll(/-u(\d{1,10})(?=[-.])/g)].map(([, id]) => Number(id))
}

type Compose = (mail: Mail) => SendMailOptions

/**
 * The name by which the service greets a mail server, which many check: the domain of the sender or, if that is none of the DNS, the
 * host of the issuer. Undefined leaves the name of the machine, or its address.
 */
function greeting(domain: string, issuer = ''): string | undefined {
  const host = URL.canParse(issuer) ? new URL(issuer).hostname : ''
  return [domainToASCII(domain), host].find(name => name.includes('.'))
}

/** The mail server of a URL, and how the URL is read again: a password rotates in its file. */
interface ServerOf {
  readonly smtpUrl: string
  readonly currentSmtpUrl: () => string | undefined
}

function toServer({ smtpUrl, currentSmtpUrl }: ServerOf, name: string | undefined, compose: Compose): MailTransport {
  const timeouts = { dnsTimeout: 10_000, connectionTimeout: 10_000, greetingTimeout: 10_000, socketTimeout: 20_000 }
  // Loaded with the first e-mail, for a faster start.
  const load = async (url: string) =>
    (await import('nodemailer')).createTransport({ url, name, pool: true, maxConnections: 4, ...timeouts })
  let current = smtpUrl
  let transporter: ReturnType<typeof load> | undefined
  const close = () => void transporter?.then(loaded => loaded.close())

  /** Reads the URL again; if it has changed, later connections use it. */
  function renew(): void {
    let found: string | undefined
    try {
      found = currentSmtpUrl()
    } catch {
      // A file that is being replaced.
    }
    if (!found || found === current) return
    close()
    current = found
    transporter = undefined
  }

  /** Repeats work whose credentials the mail server refuses, if others are there. */
  async function use<T>(work: (loaded: Awaited<ReturnType<typeof load>>) => Promise<T>): Promise<T> {
    const used = current
    transporter ??= load(used)
    try {
      return await work(await transporter)
    } catch (error) {
      if ((error as { code?: string }).code !== 'EAUTH') throw error
      renew()
      // Another e-mail may have found the change.
      if (current === used) throw error
      transporter ??= load(current)
      return work(await transporter)
    }
  }

  return {
    send: async mail => (await use(loaded => loaded.sendMail(compose(mail)))).response,
    async verify() {
      await use(loaded => loaded.verify())
    },
    close,
  }
}

function toFiles({ dataDir, registry }: FolderOf, compose: Compose, log: Pick<Log, 'error'>): MailTransport {
  const folder = folderOf(dataDir)
  const load = async () =>
    (await import('nodemailer')).createTransport({ streamTransport: true, buffer: true, newline: 'unix' })
  let writer: ReturnType<typeof load> | undefined
  let failing = false

  async function write(message: Buffer, users: readonly number[]): Promise<void> {
    await openDataFolder(dataDir)
    await makeFolder(folder)
    const about = [...new Set(users)].map(id => `-u${id}`).join('')
    const name = `${new Date().toISOString().replaceAll(':', '')}-${randomBytes(4).toString('hex')}-r${registry}${about}`
    await writePrivateFile(join(folder, `${name}.eml`), message)
  }

  return {
    async send(mail) {
      writer ??= load()
      const { message } = await (await writer).sendMail(compose(mail))
      try {
        await write(message as Buffer, mail.users)
        failing = false
      } catch (error) {
        // The sender logs each delayed e-mail; the common cause is logged once.
        const { code } = error as NodeJS.ErrnoException
        if (!failing) log.error({ folder, code }, 'the mail folder isn’t writable: free disk space or change its owner')
        failing = true
        throw error
      }
      return 'written to the folder for e-mails'
    },
    async verify() {
      await openDataFolder(dataDir)
      await makeFolder(folder)
      await access(folder, constants.W_OK)
    },
    close() {},
  }
}

/**
 * Whether the mail server refuses the recipient: a 5xx reply to RCPT TO (RFC 5321). A 5xx reply to another command
 * concerns this service, its credentials or its reputation, which an operator can correct.
 */
export function refusesRecipient(error: unknown): boolean {
  const { command, responseCode } = error as Record<string, unknown>
  return command === 'RCPT TO' && Number(responseCode) >= 500
}

/** Whether the mail server refuses the name by which the service greets it. */
export function refusesName(error: unknown): boolean {
  return ['EHLO', 'HELO'].includes(String((error as Record<string, unknown>).command))
}

/** Rejects with ETIMEDOUT when a task takes longer than `seconds`. The task isn't cancelled. */
export async function within<T>(seconds: number, task: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(Object.assign(new Error('too slow'), { code: 'ETIMEDOUT' })), seconds * 1000)
  })
  return Promise.race([task, late]).finally(() => clearTimeout(timer))
}

/** The answer of a mail server as it is shown and kept, on one line. */
export const shownAnswer = (answer: string) => answer.replace(/\p{C}+/gu, ' ').slice(0, 200)

/**
 * Describes an error by its codes only: messages of mail servers and drivers may quote e-mails, addresses or passwords.
 */
export function describe(error: unknown): string {
  const { name, code, originalCode = code, responseCode, command } = error as Record<string, unknown>
  return [name, originalCode, responseCode, command]
    .filter(part => typeof part === 'string' || typeof part === 'number')
    .join(' ')
}
