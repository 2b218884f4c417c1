import { timestampDate } from '@bufbuild/protobuf/wkt'
import { type Command, Option } from 'commander'
import type { QueuedEmail } from '../../proto/gen/auth/v1/administration_pb.js'
import { administering } from '../administration.js'
import { fail } from '../exit-codes.js'
import { readId } from '../terminal/ask.js'
import { jsonOption, printFields, printJson, printTable, say } from '../terminal/output.js'
import { inFields, type ListOptions, printList, readPages, withPages } from '../terminal/pages.js'

interface Options {
  readonly json?: boolean
}

/** Adds `auth-admin mail`. */
export function addMail(program: Command): void {
  const mail = program.command('mail').description('E-mails that wait to be sent, or that have failed')

  withPages(mail.command('list'))
    .description('List queued e-mails, the oldest first. Texts, keys and addresses are never shown.')
    .addOption(new Option('--failed', 'only those that have failed for good').conflicts('waiting'))
    .option('--waiting', 'only those that are sent, or tried again, when they are due')
    .addHelpText('after', '\nExample:\n  $ auth-admin mail list --failed')
    .action(
      administering(async (api, options: ListOptions & { failed?: boolean; waiting?: boolean }) => {
        const { failed, waiting } = options
        const listed = await readPages(options, async page => {
          const { emails, nextPageToken } = await api.listEmails({
            ...((failed || waiting) && { failed: !waiting }),
            ...page,
          })
          return { rows: emails.map(toOutput), nextPageToken }
        })
        if (inFields(options)) return printList('emails', listed, options)
        const cells = listed.rows.map(({ id, kind, user, created, attempts, due, error }) => {
          return [id, kind, user && `#${user}`, created, attempts, due ?? 'failed', error]
        })
        const head = ['id', 'kind', 'user', 'queued (utc)', 'attempts', 'due (utc)', 'error']
        printTable(head, cells, 'There are no such e-mails.', listed)
      }),
    )

  withId(mail.command('show'))
    .description('Show a queued e-mail, without its text.')
    .addHelpText('after', '\nExample:\n  $ auth-admin mail show 12')
    .action(
      administering(async (api, id: number, options: Options) => {
        const email = toOutput((await api.getEmail({ id: BigInt(id) })).email!)
        if (options.json) printJson(email)
        else printFields({ ...email, due: email.due ?? 'failed for good' })
      }),
    )

  withId(mail.command('retry'))
    .description('Make an e-mail that waits or has failed for good due now.')
    .addHelpText('after', '\nExample:\n  $ auth-admin mail retry 12')
    .action(
      administering(async (api, id: number, options: Options) => {
        const { email } = await api.retryEmail({ id: BigInt(id) })
        if (options.json) printJson(toOutput(email!))
        else say(`E-mail ${id} is due now: the service sends it.`)
      }),
    )

  withId(mail.command('discard'))
    .description('Forget a queued e-mail: it is never sent.')
    .addHelpText('after', '\nExample:\n  $ auth-admin mail discard 12')
    .action(
      administering(async (api, id: number, options: Options) => {
        await api.discardEmail({ id: BigInt(id) })
        if (options.json) printJson({ id, discarded: true })
        else say(`E-mail ${id} is discarded.`)
      }),
    )

  mail
    .command('test')
    .description('Send an e-mail to an address at once, and tell what the mail server says. If it fails, end with 1.')
    .argument('<address>', 'e-mail address (RFC 5321)')
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
It goes by the mail server of the process that answers: of the server where a
context is used, else by SMTP_URL of this environment.

Example:
  $ auth-admin mail test ana@example.org`,
    )
    .action(
      administering(async (api, email: string, options: Options) => {
        const { sent, answer, milliseconds } = await api.sendTestEmail({ email })
        if (!sent) fail(`The e-mail was not taken after ${milliseconds} ms: ${answer}.`)
        if (options.json) printJson({ sent, answer, milliseconds })
        else say(`The e-mail was taken in ${milliseconds} ms: ${answer}`)
      }),
    )
}

function withId(command: Command): Command {
  return command.argument('<id>', 'number of the e-mail, as `mail list` shows it', readId).addOption(jsonOption())
}

/** An e-mail of the queue; what is absent is left out. */
function toOutput({ id, kind, user, createTime, attempts, dueTime, error }: QueuedEmail) {
  return {
    id: Number(id),
    kind,
    ...(user !== undefined && { user }),
    created: timestampDate(createTime!),
    attempts,
    ...(dueTime && { due: timestampDate(dueTime) }),
    ...(error !== undefined && { error }),
  }
}
