import { timestampDate } from '@bufbuild/protobuf/wkt'
import { Option } from 'commander'
import type { QueuedEmail } from '../../proto/gen/auth/v1/administration_pb.js'
import type { GlobalOptions as Options } from '../administration.js'
import type { Command } from '../command.js'
import { fail, misuse } from '../exit-codes.js'
import { readId } from '../terminal/ask.js'
import { printJson, say } from '../terminal/output.js'
import { type List, type ListOptions, printPages } from '../terminal/pages.js'
import { withProgress } from '../terminal/progress.js'

/** Adds `auth-admin mail`. */
export function addMail(program: Command): void {
  const mail = program.command('mail').description('Manage queued and failed e-mails.')

  mail
    .command('list')
    .pages(emailList)
    .description('List queued e-mails, oldest first. Texts, keys and addresses are never shown.')
    .addOption(new Option('--failed', 'only those that failed permanently').conflicts('waiting'))
    .option('--waiting', 'only those that are still to be sent or retried')
    .examples('mail list --failed')
    .administers(async (api, options: ListOptions & { failed?: boolean; waiting?: boolean }) => {
      const { failed, waiting } = options
      const filter = (failed || waiting) && { failed: !waiting }
      await printPages(emailList, options, page => api.listEmails({ ...filter, ...page }))
    })

  mail
    .command('retry')
    .argument('[id]', 'id of the e-mail, as `mail list` shows it', readId)
    .description('Make a waiting or failed e-mail due now, or all that failed permanently.')
    .option('--failed', 'all that failed permanently, as after an outage of the mail server')
    .json()
    .examples('mail retry 12', 'mail retry --failed')
    .administers(async (api, id: number | undefined, options: Options & { failed?: boolean }) => {
      if (options.failed && id === undefined) {
        const { emails } = await withProgress('Retrying', () => api.retryFailedEmails({}))
        if (options.json) return printJson({ retried: emails })
        return say(emails === 0 ? 'No e-mail has failed permanently.' : `E-mails that are due now: ${emails}.`)
      }
      if (options.failed || id === undefined) misuse('Pass the id of an e-mail, or --failed.')
      const { email } = await api.retryEmail({ id: BigInt(id) })
      if (options.json) printJson(toOutput(email!))
      else say(`E-mail ${id} is due now: the service sends it.`)
    })

  mail
    .command('test')
    .description('Send a test e-mail at once, and show what the mail server answers. Exits with 1 if it fails.')
    .argument('<address>', 'e-mail address (RFC 5321)')
    .json()
    .remarks(`
It uses the mail server of the process that answers: that of the server if you
use a context, otherwise SMTP_URL of this environment.`)
    .examples('mail test ana@example.org')
    .administers(async (api, email: string, options: Options) => {
      const { sent, answer, milliseconds } = await api.sendTestEmail({ email })
      if (!sent) fail(`The mail server didn’t accept the e-mail after ${milliseconds} ms: ${answer}.`)
      if (options.json) printJson({ sent, answer, milliseconds })
      else say(`The mail server accepted the e-mail in ${milliseconds} ms: ${answer}`)
    })
}

/** An e-mail of the queue; what is absent is left out. */
function toOutput({ id, kind, user, createTime, attempts, dueTime, error }: QueuedEmail) {
  return {
    id: Number(id),
    kind,
    user,
    createTime: timestampDate(createTime!),
    attempts,
    dueTime: dueTime && timestampDate(dueTime),
    error,
  }
}

const emailList: List<QueuedEmail, 'emails'> = {
  name: 'emails',
  fields: ['id', 'kind', 'user', 'createTime', 'attempts', 'dueTime', 'error'],
  toOutput,
  head: { titles: ['id', 'kind', 'user', 'queued', 'attempts', 'due', 'error'] },
  toCells(email) {
    const { id, kind, user, createTime, attempts, dueTime, error } = toOutput(email)
    return [id, kind, user && `#${user}`, createTime, attempts, dueTime ?? 'failed', error]
  },
  empty: 'No e-mails match.',
}
