import { mkdtemp, readdir, readFile, rm, stat } from 'node:fs/promises'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import PostalMime from 'postal-mime'
import { type Composed, startSender } from '../../server/outbox/sender.js'
import { createMailTransport, type Mail } from '../../server/outbox/transport.js'
import { openMailbox } from '../_helpers/mailbox.js'
import { waitFor } from '../_helpers/patience.js'

interface Row {
  readonly id: string
  readonly kind: string
  attempts: number
  readonly createdAt: Date
  due: number
  error?: string
}

const log = { info() {}, warn() {}, error() {} }

/** A queue in memory. Delays pass a thousand times faster. */
function createQueue() {
  const rows = new Map<string, Row>()
  const history: string[] = []
  return {
    rows,
    history,
    add(id: string, createdAt = new Date()) {
      rows.set(id, { id, kind: 'test', attempts: 0, createdAt, due: 0 })
    },
    async claim(lease: number) {
      const row = [...rows.values()].find(({ due }) => due <= Date.now())
      if (!row) return undefined
      row.attempts++
      row.due = Date.now() + lease * 1000
      return { ...row }
    },
    async done(id: string) {
      history.push(`done ${id}`)
      rows.delete(id)
    },
    async failed(id: string, error: string, delay: number | undefined) {
      history.push(`failed ${id} ${delay}`)
      Object.assign(rows.get(id)!, { error, due: delay === undefined ? Number.POSITIVE_INFINITY : Date.now() + delay })
    },
  }
}

const to = 'maria@example.org'
const entry: Mail = { to, subject: 'Açaí', text: 'Olá, Maria.\n', name: 'auth.7.1', users: [] }

test('an e-mail that is refused, and then can’t be delivered at all, arrives once the server is back', async t => {
  const mailbox = await openMailbox()
  const queue = createQueue()
  const transport = createMailTransport(
    { smtpUrl: mailbox.url, mailFrom: 'Cadastro <auth@example.org>', dataDir: '' },
    log,
  )
  mailbox.refuse(2)
  queue.add('7')
  const sender = startSender({ queue, compose: async () => entry, transport, log })
  await waitFor(() => queue.history.length === 2)
  await mailbox.shut()
  await waitFor(() => queue.history.length >= 3)
  await mailbox.reopen()

  const received = await mailbox.nextEmail(to)
  t.is(received.subject, 'Açaí')
  t.is(received.text?.trim(), 'Olá, Maria.')
  t.is(received.from?.address, 'auth@example.org')
  t.is(received.messageId, '<auth.7.1@example.org>')
  await waitFor(() => queue.history.at(-1) === 'done 7')
  t.deepEqual(queue.history.slice(0, 3), ['failed 7 5', 'failed 7 10', 'failed 7 20'])
  t.is(mailbox.emails.length, 1)
  await sender.close()
  await mailbox.shut()
})

test('what a mail server says is not kept, its codes are', async t => {
  const mailbox = await openMailbox()
  const queue = createQueue()
  mailbox.refuse(1000)
  queue.add('1', new Date(Date.now() - 73 * 3600_000))
  const transport = createMailTransport({ smtpUrl: mailbox.url, mailFrom: 'auth@localhost', dataDir: '' }, log)
  const sender = startSender({ queue, compose: async () => entry, transport, log })
  await waitFor(() => queue.history.length === 1)
  t.deepEqual(queue.history, ['failed 1 undefined'], 'after 72 hours it is kept, and tried no more')
  t.regex(queue.rows.get('1')!.error!, /451/)
  t.notRegex(queue.rows.get('1')!.error!, /try again later/)
  await sender.close()
  await mailbox.shut()
})

test('several e-mails leave at once, and close waits for them', async t => {
  const queue = createQueue()
  let now = 0
  let most = 0
  const transport = {
    async send() {
      most = Math.max(most, ++now)
      await sleep(500)
      now--
    },
    close() {},
  }
  for (let id = 1; id <= 6; id++) queue.add(String(id))
  const sender = startSender({ queue, compose: async () => entry, transport, log })
  await waitFor(() => most === 4)
  await sender.close()
  t.is(now, 0)
  t.is(most, 4)
  t.is(queue.history.length, 4)
  t.is(queue.rows.size, 2)
})

test('of a thousand e-mails 50 leave at once, and then so many a second as a factor says; what nobody wants counts for nothing', async t => {
  const [queue, slower, vain] = [createQueue(), createQueue(), createQueue()]
  const transport = { async send() {}, close() {} }
  for (let id = 1; id <= 1000; id++) for (const each of [queue, slower, vain]) each.add(String(id))
  const startedAt = performance.now()
  const sender = startSender({ queue, compose: async () => entry, transport, log, factor: 50 })
  const slowSender = startSender({ queue: slower, compose: async () => entry, transport, log, factor: 0.001 })
  const vainSender = startSender({ queue: vain, compose: async () => 'unwanted', transport, log, factor: 0.001 })
  await waitFor(() => queue.history.length === 1000)
  const seconds = (performance.now() - startedAt) / 1000
  t.true(seconds > 0.9 * (950 / (50 * 2 * availableParallelism())), `${seconds}`)
  await waitFor(() => vain.history.length === 1000)
  // Four are under way when the last of them is counted.
  t.true(slower.history.length >= 50 && slower.history.length < 54, `${slower.history.length}`)
  await Promise.all([sender, slowSender, vainSender].map(each => each.close()))
})

test('an entry that nobody wants is forgotten, one that is held back is left alone', async t => {
  const queue = createQueue()
  queue.add('unwanted')
  queue.add('held')
  const transport = { send: async () => t.fail(), close() {} }
  const sender = startSender({ queue, compose: async ({ id }) => id as Composed, transport, log })
  await waitFor(() => queue.history.length === 1)
  await sender.close()
  t.deepEqual(queue.history, ['done unwanted'])
})

test('without a mail server e-mails become files that only their owner reads', async t => {
  const dataDir = await mkdtemp(join(tmpdir(), 'auth-mail-'))
  t.teardown(() => rm(dataDir, { recursive: true, force: true }))
  const transport = createMailTransport({ mailFrom: 'auth@localhost', dataDir }, log)
  await transport.send(entry)
  await sleep(2)
  await transport.send({ ...entry, subject: 'Second', name: 'auth.2.1' })
  const names = (await readdir(join(dataDir, 'mail'))).sort()
  t.is(names.length, 2)
  const [first, second] = await Promise.all(
    names.map(async name => PostalMime.parse(await readFile(join(dataDir, 'mail', name)))),
  )
  t.is(first!.subject, 'Açaí')
  t.is(second!.subject, 'Second')
  t.is((await stat(join(dataDir, 'mail'))).mode & 0o777, 0o700)
  t.is((await stat(join(dataDir, 'mail', names[0]!))).mode & 0o777, 0o600)
})

test('an address can’t smuggle in another recipient or header', async t => {
  const mailbox = await openMailbox()
  const transport = createMailTransport({ smtpUrl: mailbox.url, mailFrom: 'auth@localhost', dataDir: '' }, log)
  for (const bad of ['a@b.example\r\nBcc: c@d.example', 'a@b.example>,<c@d.example'])
    await t.throwsAsync(transport.send({ to: bad, subject: 'x', text: 'x', name: '1', users: [] }))
  await transport.send({ to, subject: 'x\r\nBcc: c@d.example', text: 'x', name: '1', users: [] })
  const received = await mailbox.nextEmail(to)
  t.is(received.bcc, undefined)
  t.is(mailbox.emails.length, 1)
  transport.close()
  await mailbox.shut()
})
