import { timestampDate } from '@bufbuild/protobuf/wkt'
import { Option } from 'commander'
import type { QueuedEmail } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Command } from '../command.js'
import { type List, type ListOptions, printPages } from '../terminal/pages.js'

/** Adds `auth-admin mail`. */
export function addMail(program: Command): void {
  const mail = program.command('mail').description('Show queued and failed e-mails.')

  mail
    .command('list')
    .pages()
    .description('List queued e-mails, oldest first. Texts, keys and addresses are never shown.')
    .addOption(new Option('--failed', 'only those that failed permanently').conflicts('waiting'))
    .option('--waiting', 'only those that are still to be sent or retried')
    .remarks(`
To send an e-mail again, to delete it or to send one for testing, see
docs/administration.md: \`auth-admin api\` does it.`)
    .examples('mail list --failed')
    .administers(async (api, options: ListOptions & { failed?: boolean; waiting?: boolean }) => {
      const { failed, waiting } = options
      const filter = (failed || waiting) && { failed: !waiting }
      await printPages(emailList, options, page => api.listEmails({ ...filter, ...page }))
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
  toOutput,
  head: { titles: ['id', 'kind', 'user', 'queued', 'attempts', 'due', 'error'] },
  toCells(email) {
    const { id, kind, user, createTime, attempts, dueTime, error } = toOutput(email)
    return [id, kind, user && `#${user}`, createTime, attempts, dueTime ?? 'failed', error]
  },
  empty: 'No e-mails match.',
}
