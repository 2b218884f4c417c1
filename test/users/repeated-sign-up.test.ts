/** A sign-up whose answer was lost is sent again, and answered as the first one was. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { ask } from '../_helpers/database.js'
import { profileValues } from '../_helpers/fields.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, serviceWithClock, signUpForm, startTestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const full = () => ({
  ...profileValues,
  ...signUpForm(),
  securityquestion: 'Nome do meu barco?',
  securityanswer: 'Saveiro',
  email: 'ana@example.org',
})

test('a sign-up that repeats one of the last 15 minutes in every field gets a token for the same user, any other is refused', async t => {
  const service = await serviceWithClock(t)
  const post = (body: object) => service.request('POST', '/users/signup', { body })
  const form = full()
  const id = idOf((await post(form)).text)
  const again = await post({ ...form, dateofborn: '1992-02-29', username: ` ${form.username} ` })
  t.deepEqual([again.status, idOf(again.text)], [200, id])
  t.is((await service.request('GET', '/users/me', { token: again.text })).json.username, form.username)
  const { email: _, ...withoutEmail } = form
  const { securityanswer: __, ...withoutAnswer } = form
  const others: object[] = [
    { ...form, password: `${password}!` },
    { ...form, nickname: `${form.nickname}2` },
    { ...form, city: 'Olinda' },
    { ...form, dateofborn: '28/02/1992' },
    { ...form, roles: ['ROLE_INSTITUTION'] },
    { ...form, email: 'eva@example.org' },
    withoutEmail,
    { ...form, securityquestion: 'Nome da minha rua?' },
    { ...form, securityanswer: 'Jangada' },
  ]
  for (const other of others) {
    const answer = await post(other)
    refused(t, answer, 422, 'INVALID_SIGN_UP')
    t.true(wrongFields(answer).includes('username'), JSON.stringify(other))
  }
  t.is((await post(withoutAnswer)).status, 422)
  // The failures count for the account, as those of logins do.
  refused(t, await post(form), 429, 'TOO_MANY_ATTEMPTS')
  await service.clock.pass(14 * 60)
  t.is((await post(form)).status, 429)
})

test('a sign-up that repeats one in another spelling of username or question is refused: the record would show the other', async t => {
  const service = await startTestService(t, {})
  const post = async (body: object) => (await service.request('POST', '/users/signup', { body })).status
  const form = { ...full(), username: `Ana ${randomUUID()}` }
  t.is(await post(form), 200)
  t.is(await post({ ...form, username: form.username.toUpperCase() }), 422)
  t.is(await post({ ...form, securityquestion: form.securityquestion.toUpperCase() }), 422)
  t.is(await post(form), 200)
})

test('after 15 minutes, once activated, and while suspended, a sign-up is not repeated; a clock set back does not matter', async t => {
  const service = await serviceWithClock(t)
  const post = async (body: object) => (await service.request('POST', '/users/signup', { body })).status
  const late = full()
  await service.clock.pass(7200)
  t.is(await post(late), 200)
  await service.clock.pass(-3600)
  t.is(await post(late), 200)
  await service.clock.pass(3600 + 899)
  t.is(await post(late), 200)
  await service.clock.pass(2)
  t.is(await post(late), 422)
  for (const state of ['active = true, unactivated_seen_at = NULL', 'unactivated_seen_at = NULL', 'suspended = true']) {
    const form = signUpForm()
    t.is(await post(form), 200)
    await ask(service.settings.databaseUrl!, `UPDATE users SET ${state} WHERE username = '${form.username}'`)
    t.is(await post(form), 422, state)
  }
})

test('of equal sign-ups at the same moment one creates the user, and all get tokens for it', async t => {
  const service = await startTestService(t, {})
  const forms = [full(), { ...signUpForm(), securityquestion: '1', securityanswer: 'Rex' }]
  for (const body of forms) {
    const answers = await Promise.all(
      Array.from({ length: 5 }, () => service.request('POST', '/users/signup', { body })),
    )
    t.deepEqual(
      answers.map(({ status }) => status),
      answers.map(() => 200),
    )
    t.is(new Set(answers.map(({ text }) => idOf(text))).size, 1)
  }
})
