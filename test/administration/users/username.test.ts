/** Administrators change usernames. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { reasonOf, signedInForFile, wrongFieldsOf } from '../../_helpers/administration.js'
import { mailboxForFile } from '../../_helpers/mailbox.js'
import { password, serviceForFile } from '../../_helpers/service.js'
import { idOf } from '../../_helpers/tokens.js'

const mailbox = mailboxForFile()
const settings = () => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url, AUTH_MAIL_LOCALE: 'en' })
const service = serviceForFile(settings)
const admin = signedInForFile(service)

const newName = () => `joana ${randomUUID()}`
const rename = (user: string, username: string, api = admin) =>
  api.updateUser({ user, form: { username }, updateMask: { paths: ['username'] } })
const statusOfLogin = async (username: string, { request } = service) =>
  (await request('POST', '/users/login', { query: { username, password } })).status

test('when an administrator changes a username, the user is notified, tokens stay valid, and the former name stays reserved', async t => {
  const email = `${randomUUID()}@example.org`
  const { token, username } = await service.signUp('ROLE_CLIENT', { email })
  const name = newName()
  const { user, changed } = await rename(username, name)
  t.true(changed)
  t.is(user?.record?.username, name)
  t.is((await service.request('GET', '/users/me', { token })).json.username, name)
  t.deepEqual([await statusOfLogin(username), await statusOfLogin(name)], [404, 200])
  const notice = await mailbox.nextEmail(email)
  t.is(notice.subject, 'Your username was changed')
  const events = await service.registry.audit.list({ subjectId: idOf(token), action: 'user.edit', limit: 9 })
  t.deepEqual(
    events.map(({ object, outcome }) => [object, outcome]),
    [['fields:username', 'ok']],
  )
  const other = await service.signUp('ROLE_CLIENT')
  t.deepEqual(await wrongFieldsOf(rename(other.username, username)), ['form.username'])
  t.is(await reasonOf(rename(other.username, username)), 'INVALID_SIGN_UP')
  t.false((await rename(name, name)).changed)
  t.true((await rename(name, username)).changed)
})

test('a username that is taken or invalid is refused, together with all other invalid fields', async t => {
  const [user, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  for (const username of ['', '#7', 'me', 'a\u200bb', 'x'.repeat(256)]) {
    const update = admin.updateUser({
      user: user.username,
      form: { username, state: 'X' },
      updateMask: { paths: ['username', 'state'] },
    })
    t.deepEqual(await wrongFieldsOf(update), ['form.state', 'form.username'], username)
  }
  const both = admin.updateUser({
    user: user.username,
    form: { username: other.username, nickname: other.nickname },
    updateMask: { paths: ['username', 'nickname'] },
  })
  t.deepEqual(await wrongFieldsOf(both), ['form.nickname', 'form.username'])
  t.is(await statusOfLogin(user.username), 200)
})
