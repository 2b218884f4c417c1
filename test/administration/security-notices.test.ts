/** Administrators are notified by e-mail of each change that affects the access to their own account, by any actor. */
import test, { type ExecutionContext } from 'ava'
import { TOTP } from 'otpauth'
import { sql } from '../../server/database/sql.js'
import {
  type AdministrationClient,
  anotherAdministrator,
  openLocal,
  openSignedIn,
  reasonOf,
} from '../_helpers/administration.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { startTestService, type TestService } from '../_helpers/service.js'
import { waitFor } from '../_helpers/wait.js'

const mailbox = mailboxForFile()
const subject = 'A change to your administrator account'

/** A service whose administrator `admin` has an address, and a second administrator who has one. */
async function scene(t: ExecutionContext, email: string, locale = 'en') {
  const settings = { AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url, AUTH_MAIL_LOCALE: locale }
  const own = await startTestService(t, settings)
  const admin = await openSignedIn(t, own)
  return { own, admin, ...(await anotherAdministrator(t, own, admin, { username: 'bia', email })) }
}

const run = ({ registry }: TestService, text: string) => registry.database.sequelize.query(text)
const failToSignIn = ({ request }: TestService) =>
  request('POST', '/users/login', { query: { username: 'bia', password: 'errada-errada' } })
const subjectsTo = (address: string) =>
  mailbox.emails.filter(({ to }) => to?.[0]?.address === address).map(({ subject }) => subject ?? '')

const bia = `(SELECT id FROM users WHERE username = 'bia')`

/** Waits until the queue is empty. */
async function quiet({ registry }: TestService): Promise<void> {
  const left = async () => registry.database.run<object>(sql`SELECT id FROM emails`)
  await waitFor(async () => (await left()).length === 0, left)
}

/** Changes of an administrator, each with its description in the e-mail. */
const deeds: readonly [says: string, (client: AdministrationClient, own: TestService) => Promise<unknown>][] = [
  ['was changed', c => c.updateUser({ user: 'bia', form: { city: 'Y' }, updateMask: { paths: ['city'] } })],
  ['was given a new password', c => c.setPassword({ user: 'bia', password: 'sete girafas bem altas' })],
  [
    'no longer has answers to security questions',
    async (c, own) => {
      await run(own, `INSERT INTO answers (user_id, question_id, answer_hash) VALUES (${bia}, 1, '')`)
      await c.clearAnswers({ user: 'bia' })
    },
  ],
  ['was suspended', c => c.suspendUser({ user: 'bia' })],
  ['is no longer suspended', c => c.resumeUser({ user: 'bia' })],
  ['was deleted', c => c.deleteUser({ user: 'bia' })],
  ['is no longer deleted', c => c.undeleteUser({ user: 'bia' })],
  [
    'was unlocked',
    async (c, own) => {
      await failToSignIn(own)
      await c.unlockUser({ user: 'bia' })
    },
  ],
  [
    'no longer needs a one-time code to sign in',
    async (c, own) => {
      await run(own, `INSERT INTO totp_secrets (user_id, secret_sealed) VALUES (${bia}, '')`)
      await c.removeTotp({ user: 'bia', confirm: 'bia' })
    },
  ],
  ['was given another role: ROLE_CLIENT', c => c.setRole({ user: 'bia', role: 'ROLE_CLIENT', confirm: 'bia' })],
  ['was given another role: ROLE_ADMIN', c => c.setRole({ user: 'bia', role: 'ROLE_ADMIN', confirm: 'bia' })],
  [
    'was activated',
    async (c, own) => {
      await run(own, `UPDATE users SET active = false WHERE username = 'bia'`)
      await c.activateUser({ user: 'bia', confirm: 'bia' })
    },
  ],
]

const notifies = test.macro(async (t, where: 'server' | 'database') => {
  const to = `bia.${where}@example.org`
  const { own, admin, id } = await scene(t, to)
  const remote = where === 'server'
  const client = remote ? admin : await openLocal(t, own, { reason: 'chamado 42: http://example.org' })
  const first = await mailbox.nextEmail(to)
  t.is(first.subject, subject)
  t.true(first.text?.includes(`bia (id ${id}) was registered`), first.text)
  // Its mailbox has received the limit of e-mails by others in an hour.
  for (let index = 0; index < 5; index++) {
    await admin.sendRecoveryKey({ user: 'bia' })
    const texts = [await mailbox.nextEmail(to), await mailbox.nextEmail(to)].map(({ text = '' }) => text)
    t.is(texts.filter(text => text.includes(`bia (id ${id}) will receive a recovery key`)).length, 1, texts.join())
  }
  t.is(await reasonOf(admin.sendRecoveryKey({ user: 'bia' })), 'TOO_MANY_ATTEMPTS')
  const before = subjectsTo(to).length
  for (const [says, work] of deeds) {
    await work(client, own)
    const email = await mailbox.nextEmail(to)
    t.is(email.subject, subject)
    const text = email.text ?? ''
    t.true(text.includes(`bia (id ${id}) ${says}`), `${says}: ${text}`)
    t.regex(text, remote ? /^Who: admin \(id \d+\)$/m : /^Who: tester, here$/m)
    t.regex(text, /^When: .*\(Brasilia Standard Time\)$/m)
    t.is(/^Reason given: (.*)$/m.exec(text)?.[1], remote ? undefined : 'chamado 42: http:·example·org')
  }
  await quiet(own)
  t.is(subjectsTo(to).length - before, deeds.length)
})

test(
  'each change of an administrator through the server notifies that administrator by one e-mail, at once, despite its quota',
  notifies,
  'server',
)
test(
  'each change of an administrator on the database itself notifies that administrator by one e-mail',
  notifies,
  'database',
)

test('operations that any session permits, dry runs, and changes of other users send no such notice', async t => {
  const to = 'bia.outra@example.org'
  const { own, admin } = await scene(t, to)
  await mailbox.nextEmail(to)
  const other = 'cliente.avisado@example.org'
  const { username } = await own.signUp('ROLE_CLIENT', { email: other })
  await admin.revokeTokens({ user: 'bia' })
  await admin.exportUser({ user: 'bia' })
  await admin.suspendUser({ user: 'bia', validateOnly: true })
  await admin.suspendUser({ user: username })
  await admin.resumeUser({ user: username })
  await admin.setPassword({ user: username, password: 'sete girafas bem altas' })
  await quiet(own)
  t.deepEqual(subjectsTo(to), [subject])
  t.deepEqual(subjectsTo(other), ['Your password was changed'])
})

test('a new administrator, address or one-time code causes a notice in the language of the service', async t => {
  const { own, admin } = await scene(t, 'bia.terceira@example.org', 'pt-BR')
  const made = 'feita@example.org'
  const { username } = await own.signUp('ROLE_CLIENT', { email: made })
  await admin.setRole({ user: username, role: 'ROLE_ADMIN', confirm: username })
  const email = await mailbox.nextEmail(made)
  t.is(email.subject, 'Mudança na sua conta de administrador')
  t.true(email.text?.includes('recebeu outro papel: ROLE_ADMIN'), email.text)

  const chief = 'chefe.avisado@example.org'
  await admin.updateUser({ user: 'admin', form: { email: chief }, updateMask: { paths: ['email'] } })
  t.true((await mailbox.nextEmail(chief)).text?.includes('teve o endereço de e-mail alterado'))
  const { secret } = await admin.enrollTotp({})
  await admin.confirmTotp({ code: new TOTP({ secret }).generate() })
  t.true((await mailbox.nextEmail(chief)).text?.includes('precisa agora de um código de uso único para entrar'))
})

test('the erasure of an administrator sends no e-mail, as no data remains', async t => {
  const to = 'bia.apagada@example.org'
  const { own, admin } = await scene(t, to)
  await mailbox.nextEmail(to)
  await admin.eraseUser({ user: 'bia', confirm: 'bia' })
  await quiet(own)
  t.is(subjectsTo(to).length, 1)
})
