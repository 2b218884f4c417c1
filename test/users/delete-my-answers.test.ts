/** How users delete their own answers: with the password once more. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { openSignedIn, reasonOf } from '../_helpers/administration.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { enterByAnswers, saveAnswer } from '../_helpers/recovery.js'
import { password, serviceForFile, serviceWithClock, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const mailbox = mailboxForFile()
const settings = () => ({ SMTP_URL: mailbox.url, AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
const service = serviceForFile(settings)
const deleteAnswers = (token: string, body: unknown = { password }, on: TestService = service) =>
  on.request('POST', '/users/me/answers/delete', { token, body })

test('answers that count, that wait, and to a text of the sign-up are deleted with the password; a session goes on', async t => {
  const on = await serviceWithClock(t, settings())
  const securityquestion = `Qual é o número ${randomUUID()}?`
  const { username, token } = await on.signUp('ROLE_CLIENT', { securityquestion, securityanswer: 'azul' })
  for (const question of [1, 2]) t.is((await saveAnswer(on, token, question, 'azul')).status, 200)
  await on.clock.pass(86_400 + 60)
  const later = await on.login(username)
  for (const question of [2, 3, 4]) t.is((await saveAnswer(on, later, question, 'azul')).status, 200)
  t.is((await enterByAnswers(on, username, 'azul')).status, 200)
  const answer = await deleteAnswers(later, { password }, on)
  t.deepEqual([answer.status, answer.text], [200, ''])
  t.is((await on.request('GET', '/users/me', { token: later })).status, 200)
  // No sign-up has the text any more.
  const api = await openSignedIn(t, on)
  t.is(await reasonOf(api.linkQuestion({ text: securityquestion, question: '#1' })), 'RECORD_NOT_FOUND')
  await on.clock.pass(86_400 + 60)
  for (const questions of [
    [1, 2],
    [3, 4],
  ])
    refused(t, await enterByAnswers(on, username, 'azul', { questions }), 404, 'ANSWER_NOT_FOUND')
})

test('the owner gets an e-mail and an event of a deletion, and none where there was nothing to delete', async t => {
  const email = `ana.${randomUUID()}@example.org`
  const { token } = await service.signUp('ROLE_CLIENT', { email })
  t.is((await deleteAnswers(token)).status, 200)
  await saveAnswer(service, token, 1, 'azul')
  await mailbox.nextEmail(email)
  const headers = { 'accept-language': 'en' }
  const path = '/users/me/answers/delete'
  t.is((await service.request('POST', path, { token, body: { password }, headers })).status, 200)
  const { subject, text } = await mailbox.nextEmail(email)
  t.is(subject, 'You removed your answers to security questions')
  t.regex(text ?? '', /were removed, with the password/)
  const events = await service.registry.audit.list({
    subjectId: idOf(token),
    action: 'user.delete-own-answers',
    limit: 9,
  })
  t.deepEqual(
    events.map(({ outcome, actor_id }) => [outcome, actor_id]),
    [['ok', idOf(token)]],
  )
})

test('without the right password nothing is deleted', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  for (const question of [1, 2]) await saveAnswer(service, token, question, 'azul')
  const missing = await deleteAnswers(token, {})
  refused(t, missing, 400, 'MISSING_PARAMETER')
  t.deepEqual(wrongFields(missing), ['password'])
  refused(t, await deleteAnswers(token, { password: 7 }), 400, 'MALFORMED_REQUEST')
  refused(t, await deleteAnswers(token, { password: 'wrong password 1' }), 404, 'INVALID_CREDENTIALS')
  t.is((await enterByAnswers(service, username, 'azul')).status, 200)
})
