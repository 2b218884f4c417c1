import { timestampDate } from '@bufbuild/protobuf/wkt'
import { Option } from 'commander'
import { EmailState, type QueuedEmail } from '../../proto/gen/auth/v1/administration_pb.js'
import type { GlobalOptions } from '../administration.js'
import type { Command } from '../command.js'
import { misuse } from '../exit-codes.js'
import { readId, readText } from '../terminal/ask.js'
import { inTerminalLanguage } from '../terminal/language.js'
import { printJson, say } from '../terminal/output.js'
import { type List, type ListOptions, printPages } from '../terminal/pages.js'
import { nouns, referenceTo } from './nouns.js'

/** Adds `auth-admin mail`. */
export function addMail(program: Command): void {
  const mail = program
    .command('mail')
    .description('Show queued and failed e-mails, send them again, and send one for testing.')

  mail
    .command('list')
    .pages()
    .description('List queued e-mails, oldest first. Texts, keys and addresses are never shown.')
    .addOption(new Option('--failed', 'only those that failed permanently').conflicts('waiting'))
    .option('--waiting', 'only those that are still to be sent or retried')
    .option('--user <user>', 'only those to this user, also sent ones of the last 7 days: username or id', readText)
    .examples('mail list --failed', "mail list --user '(11)98765-4321'")
    .administers(async (api, options: ListOptions & { failed?: boolean; waiting?: boolean; user?: string }) => {
      const { failed, waiting, user } = options
      const filter = (failed || waiting) && { failed: !waiting }
      await printPages(emailList, options, page => api.listEmails({ ...filter, user, ...page }))
    })

  mail
    .command('retry')
    .description('Send an e-mail of the queue again now, or all that failed permanently.')
    .argument('[id]', nouns.email.how, readId)
    .option('--failed', 'all that failed permanently')
    .json()
    .examples('mail retry 12', 'mail retry --failed')
    .administers(async (api, number: number | undefined, options: GlobalOptions & { failed?: boolean }) => {
      if (options.failed) {
        if (number !== undefined) misuse('Pass an e-mail or --failed, not both.')
        const { emails } = await api.retryFailedEmails({})
        return options.json ? printJson({ emails }) : say(`E-mails that are sent again now: ${emails}.`)
      }
      const id = number ?? readId(await referenceTo('email', undefined, options))
      const { email } = await api.retryEmail({ id: BigInt(id) })
      if (options.json) printJson(emailOutput(email!))
      else say(`E-mail ${email!.id} is sent again now.`)
    })
}

/** An e-mail of the queue; what is absent is left out. */
export function emailOutput({ $typeName: _, $unknown: __, ...email }: QueuedEmail) {
  const { id, state, createTime, dueTime, sendTime } = email
  return {
    ...email,
    id: Number(id),
    state: EmailState[state].toLowerCase(),
    createTime: timestampDate(createTime!),
    dueTime: dueTime && timestampDate(dueTime),
    sendTime: sendTime && timestampDate(sendTime),
  }
}

const emailList: List<QueuedEmail, 'emails'> = {
  name: 'emails',
  toOutput: emailOutput,
  head: { titles: ['id', 'kind', 'user', 'state', 'queued', 'attempts', 'due', 'mail server'] },
  toCells(email) {
    const { id, kind, user, state, createTime, attempts, dueTime, error, answer } = emailOutput(email)
    return [
      id,
      kind,
      user && `#${user}`,
      inTerminalLanguage(state),
      createTime,
      attempts,
      dueTime,
      inTerminalLanguage(error ?? answer ?? ''),
    ]
  },
  empty: 'No e-mails match.',
}
