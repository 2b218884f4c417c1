/** A stranger signs up in another's name, with that other's address: what the stranger set ends when the owner's first mailed key comes back. */
import { randomUUID } from 'node:crypto'
import test, { type ExecutionContext } from 'ava'
import { openSignedIn } from '../_helpers/administration.js'
import { anyAddress, from, login, statuses } from '../_helpers/crowd.js'
import { ask } from '../_helpers/database.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { endsOrWaits } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { enterByAnswers, enterByKey, saveAnswer, sendKey, updatePassword } from '../_helpers/recovery.js'
import { type Answer, password, serviceForFile, signUpForm, startTestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ SMTP_URL: mailbox.url, AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const newPassword = 'tatu-canastra 12'
const post = (path: string, token: string, body: unknown = undefined) =>
  service.request('POST', path, { token, body, headers: from(anyAddress()) })
const me = (token: string) => service.request('GET', '/users/me', { token })
const keyIn = (text = '') => /: ([2-9A-HJ-NP-Z]{8})$/m.exec(text)?.[1] ?? ''

/** A stranger's account in the owner's name: its form, with a text of its own, and two saved answers. */
async function strangers(address: string) {
  const text = `Qual é o número ${randomUUID()}?`
  const form = signUpForm({
    email: `dona.${randomUUID()}@example.org`,
    securityquestion: text,
    securityanswer: 'azul',
  }) as ReturnType<typeof signUpForm> & { readonly email: string }
  const { username, email } = form
  const { status, text: token } = await service.request('POST', '/users/signup', { body: form, headers: from(address) })
  if (status !== 200) throw new Error(token)
  for (const question of [1, 2]) await saveAnswer(service, token, question, 'azul')
  return { form, text, username, email, token, id: idOf(token) }
}

/** A session of the owner by a mailed key. */
async function recover({ username, id }: { username: string; id: number }): Promise<string> {
  await service.registry.mailedKeys.replace(id, 'recovery', 'ABCD2345')
  const { status, text } = await enterByKey(service, username, 'ABCD2345')
  if (status !== 200) throw new Error(text)
  return text
}

const unlock = (username: string) =>
  service.registry.attempts.clear([service.registry.counterKeys.account('password', username)])

/** Whether 10 wrong passwords from elsewhere leave an address tries, or the device of a token. */
async function passes(username: string, address: string, token?: string): Promise<boolean> {
  await unlock(username)
  for (let index = 0; index < 10; index++) await login(service, username, anyAddress(), 'not the password')
  return (await login(service, username, address, 'nor this', token === undefined ? {} : { token })).status !== 429
}

for (const sets of [true, false])
  test(`nothing that a stranger set opens an account after its owner recovered it, and set ${sets ? 'a' : 'no'} password`, async t => {
    const api = await openSignedIn(t, service)
    const address = anyAddress()
    const { form, text, username, email, token, id } = await strangers(address)
    t.is((await login(service, username, address)).status, 200)
    const elsewhere = `${randomUUID()}@example.net`
    t.is((await post('/users/setemail', token, { email: elsewhere, password })).status, 200)
    const code = keyIn((await mailbox.nextEmail(elsewhere)).text)
    const { text: byAnswers } = await enterByAnswers(service, username, 'azul')
    t.true(await passes(username, address))
    t.true(await passes(username, anyAddress(), token))

    t.is((await sendKey(service, username, email)).status, 200)
    const mails = async (subject: RegExp): Promise<string> => {
      const { subject: is = '', text = '' } = await mailbox.nextEmail(email)
      return subject.test(is) ? text : mails(subject)
    }
    const asked = await mails(/chave para recuperar/)
    t.regex(asked, /respostas a perguntas de segurança gravadas desde/)
    const { status, text: session } = await enterByKey(service, username, keyIn(asked))
    t.is(status, 200, session)
    t.deepEqual(await ask(service.env.DATABASE_URL!, `SELECT purpose FROM mailed_keys WHERE user_id = ${id}`), [])
    t.regex(await mails(/defina uma senha nova/), /primeira chave deste endereço/)
    t.is((await me(session)).json.username, username)
    await unlock(username)
    if (sets) t.is((await updatePassword(service, session, newPassword)).status, 200)
    else {
      for (const secret of [password, newPassword])
        t.is((await login(service, username, anyAddress(), secret)).status, 404)
      const { obstacles } = await api.explainUser({ user: username })
      const why = obstacles.find(({ prevents }) => prevents === 'sign in')
      t.regex(why?.reason ?? '', /no password.*first key mailed to its address ended it/)
      t.is(why?.command, `auth-admin users send-key ${id}`)
    }
    await api.activateUser({ user: username, organization: `#${(await service.organization()).id}`, confirm: username })
    // The answer to the text of sign-up counts once its text is linked.
    await api.linkQuestion({ text, question: '#3' }).catch(() => {})

    refused(t, await login(service, username, anyAddress()), 404, 'INVALID_CREDENTIALS')
    for (const one of [token, byAnswers]) {
      refused(t, await me(one), 500, 'INVALID_TOKEN')
      refused(t, await service.request('GET', '/users/refresh', { token: one }), 500, 'INVALID_TOKEN')
      refused(t, await updatePassword(service, one), 500, 'INVALID_TOKEN')
    }
    for (const questions of [
      [1, 2],
      [1, 3],
      [2, 3],
    ])
      refused(t, await enterByAnswers(service, username, 'azul', { questions }), 404, 'ANSWER_NOT_FOUND')
    refused(t, await service.request('POST', '/users/signup', { body: form }), 422, 'INVALID_SIGN_UP')
    const owners = sets ? (await login(service, username, anyAddress(), newPassword)).text : session
    refused(t, await post('/users/confirmemail', owners, { code }), 422, 'INVALID_KEY')
    t.false(await passes(username, address))
    t.false(await passes(username, anyAddress(), token))
    t.is((await me(owners)).json.username, username)
  })

test('a later key, and the first one to an address that a code proved, end nothing that was set before', async t => {
  const first = await strangers(anyAddress())
  const session = await recover(first)
  t.is((await updatePassword(service, session, newPassword)).status, 200)
  const { text: token } = await login(service, first.username, anyAddress(), newPassword)
  for (const question of [1, 2]) await saveAnswer(service, token, question, 'verde')

  const email = `dona.${randomUUID()}@example.net`
  const second = await strangers(anyAddress())
  t.is((await post('/users/setemail', second.token, { email, password })).status, 200)
  const code = keyIn((await mailbox.nextEmail(email)).text)
  t.is((await post('/users/confirmemail', second.token, { code })).status, 200)

  for (const [user, secret, answer, held] of [
    [first, newPassword, 'verde', token],
    [second, password, 'azul', second.token],
  ] as const) {
    await recover(user)
    t.is((await me(held)).status, 200)
    t.is((await login(service, user.username, anyAddress(), secret)).status, 200)
    t.is((await enterByAnswers(service, user.username, answer)).status, 200)
  }
})

test('an owner who set no password recovers again, and so does one whose address an administrator changed', async t => {
  const user = await strangers(anyAddress())
  await recover(user)
  const again = await recover(user)
  t.is((await updatePassword(service, again, newPassword)).status, 200)
  const api = await openSignedIn(t, service)
  const form = { email: `dona.${randomUUID()}@example.net` }
  await api.updateUser({ user: user.username, form, updateMask: { paths: ['email'] } })
  const session = await recover(user)
  refused(t, await login(service, user.username, anyAddress(), newPassword), 404, 'INVALID_CREDENTIALS')
  t.is((await updatePassword(service, session)).status, 200)
})

test('the events of the owner say that the first key ended its tokens', async t => {
  const user = await strangers(anyAddress())
  const session = await recover(user)
  const [event] = await service.registry.audit.list({ subjectId: user.id, action: 'user.revoke-own-tokens', limit: 9 })
  t.like(event, { outcome: 'ok', reason: 'ADDRESS_PROVED', actor: 'user', actor_id: user.id })
  const { json } = await service.request('GET', '/users/me/events', { token: session })
  t.true(json.events.some(({ action }: { action: string }) => action === 'user.revoke-own-tokens'))
})

test('of ten parallel uses of the first key one signs in, and its session goes on', async t => {
  const { username, id } = await strangers(anyAddress())
  await service.registry.mailedKeys.replace(id, 'recovery', 'ABCD2345')
  const answers = await Promise.all(Array.from({ length: 10 }, () => enterByKey(service, username, 'ABCD2345')))
  t.is(statuses(answers)[200], 1)
  t.is((await me(answers.find(({ status }) => status === 200)!.text)).status, 200)
})

/** What a stranger does while the owner's key is used. */
const meanwhile: Record<string, (user: Awaited<ReturnType<typeof strangers>>) => Promise<Answer>> = {
  'a login': ({ username }) => login(service, username),
  'a login by answers': ({ username }) => enterByAnswers(service, username, 'azul'),
  'a repeated sign-up': ({ form }) => service.request('POST', '/users/signup', { body: form }),
  'an answer': ({ token }) => saveAnswer(service, token, 4, 'azul'),
  'an answer with the password': ({ token }) => saveAnswer(service, token, 4, 'azul', { password }),
  'a password': ({ token }) => updatePassword(service, token),
  'another address': ({ token }) => post('/users/setemail', token, { email: 'eva@example.net', password }),
  'a refresh': ({ token }) => service.request('GET', '/users/refresh', { token }),
}

for (const [what, act] of Object.entries(meanwhile))
  test.serial(`${what} of a stranger, in flight while the first key is used, leaves nothing`, async t => {
    const { database, users, administeredUsers, audit } = service.registry
    const user = await strangers(anyAddress())
    const { id } = user
    let asked: Promise<Answer> | undefined
    await database.transact(async transaction => {
      const row = (await administeredUsers.lock(id, transaction))!
      await users.proveByKey(row, transaction)
      await audit.append(
        { action: 'user.revoke-own-tokens', outcome: 'ok', actor: 'test', subject_id: id },
        transaction,
      )
      asked = act(user)
      // It has compared what it was given, or identified its caller, as the state was before.
      await endsOrWaits(database, asked)
    })
    const { status, text } = (await asked)!
    if (status === 200) refused(t, await me(text), 500, 'INVALID_TOKEN')
    await nothingIsLeft(t, id)
  })

async function nothingIsLeft(t: ExecutionContext, id: number): Promise<void> {
  const left = `SELECT u.password_hash AS hash, ARRAY (SELECT question_id FROM answers WHERE user_id = u.id) AS answers,
      ARRAY (SELECT address FROM known_addresses WHERE user_id = u.id) AS known,
      ARRAY (SELECT purpose FROM mailed_keys WHERE user_id = u.id) AS keys,
      ARRAY (SELECT kind FROM emails WHERE parameters ->> 'userId' = u.id::text AND kind = 'email-code') AS codes,
      EXISTS (SELECT FROM unmatched_answers WHERE user_id = u.id) AS text FROM users u WHERE u.id = ${id}`
  const [found] = await ask(service.env.DATABASE_URL!, left)
  t.deepEqual(found, { hash: '', answers: [], known: [], keys: [], codes: [], text: false })
}

test('with AUTH_RECOVERY_EMAIL=any a key proves nothing, and ends nothing', async t => {
  const { DATABASE_URL = '' } = service.env
  const any = await startTestService(t, { DATABASE_URL, SMTP_URL: mailbox.url, AUTH_RECOVERY_EMAIL: 'any' })
  const { username, token, id } = await strangers(anyAddress())
  await any.registry.mailedKeys.replace(id, 'recovery', 'ABCD2345')
  t.is((await enterByKey(any, username, 'ABCD2345')).status, 200)
  t.is((await me(token)).status, 200)
  t.is((await login(service, username)).status, 200)
})
