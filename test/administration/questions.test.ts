/** Questions of administrators: answers survive every change, and custom questions can be linked. */
import test, { type ExecutionContext } from 'ava'
import {
  type AdministrationClient,
  allPages,
  openLocal,
  openSignedIn,
  reasonOf,
  whenFree,
} from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { serviceWithClock, startTestService, type TestService } from '../_helpers/service.js'

/** A new service, with its administrator. */
async function start(t: ExecutionContext) {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  return { service, api: await openSignedIn(t, service) }
}

/** The status of a sign-in by answers to questions. */
async function signIn(service: TestService, username: string, answers: Record<number, string>): Promise<number> {
  const body = Object.entries(answers).map(([id, answer]) => ({ forgotpasswordquestionsid: Number(id), answer }))
  const path = '/forgotpasswords/loginbyusernameandanswers'
  return (await service.request('POST', path, { query: { username }, body })).status
}

async function saveAnswer(service: TestService, token: string, id: number, answer: string): Promise<void> {
  const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
  const saved = await service.request('POST', path, { token, body: { forgotpasswordquestionsid: id, answer } })
  if (saved.status !== 200) throw new Error(saved.text)
}

/** The ids of all questions, read in pages. */
const idsByPage = (api: AdministrationClient, pageSize: number) =>
  allPages(
    pageToken => api.listQuestions({ pageSize, pageToken }),
    page => page.questions.map(({ record }) => record!.id),
  )

test('answers to an application’s custom question count for login once it is linked, also those of later sign-ups', async t => {
  const { service, api } = await start(t)
  const signUp = (securityquestion: string, securityanswer?: string) =>
    service.signUp('ROLE_CLIENT', { securityquestion, securityanswer })
  const ana = await signUp('Nome do seu pet?', 'Rex')
  const bia = await signUp('  NOME do seu Pét? ', 'Totó')
  await signUp('Outra?', 'x')
  // Without an answer there is no question to link.
  await signUp('Sem resposta?')
  for (const { token } of [ana, bia]) await saveAnswer(service, token, 2, 'Recife')
  // Bia has also answered the question itself: that answer stays.
  await saveAnswer(service, bia.token, 1, 'Fofinho')

  const unmatched = async () =>
    (await api.listUnmatchedQuestions({})).questions.map(({ question, users }) => `${question.trim()} ${users}`)
  t.regex((await unmatched()).join(), /^nome do seu p[eé]t\? 2,Outra\? 1$/i)
  t.is(await signIn(service, ana.username, { 1: 'rex', 2: 'recife' }), 404)

  t.is(await reasonOf(api.linkQuestion({ text: 'Nunca dada?', question: '1' })), 'RECORD_NOT_FOUND')
  const checked = await api.linkQuestion({ text: 'nome DO seu pet?', question: '#1', validateOnly: true })
  t.is(checked.linked, 1)
  t.is(await signIn(service, ana.username, { 1: 'rex', 2: 'recife' }), 404)
  const { linked, question } = await api.linkQuestion({ text: 'nome DO seu pet?', question: '#1' })
  t.is(linked, 1)
  t.is(question?.record?.id, 1)
  t.is(await signIn(service, ana.username, { 1: 'REX', 2: 'recife' }), 200)
  t.is(await signIn(service, bia.username, { 1: 'fofinho', 2: 'recife' }), 200)
  t.is(await signIn(service, bia.username, { 1: 'totó', 2: 'recife' }), 422)
  t.deepEqual(await unmatched(), ['Outra? 1'])
  // A repetition is not an error.
  t.is((await api.linkQuestion({ text: 'Nome do seu pet?', question: '1' })).linked, 0)

  const clara = await signUp('nome do seu pet?', 'Mimi')
  await saveAnswer(service, clara.token, 2, 'Olinda')
  t.is(await signIn(service, clara.username, { 1: 'mimi', 2: 'olinda' }), 200)
  t.deepEqual(await unmatched(), ['Outra? 1'])

  // The text of a question takes precedence over a text that is linked to another.
  const { question: own } = await api.createQuestion({ question: 'Nome do seu pet?' })
  const dora = await signUp('nome do seu pet?', 'Lulu')
  await saveAnswer(service, dora.token, 2, 'Natal')
  t.is(await signIn(service, dora.username, { [own!.record!.id!]: 'lulu', 2: 'natal' }), 200)
  const [event] = await service.registry.audit.list({ action: 'question.link', limit: 1 })
  t.is(event?.object, 'question:1')
})

test('a link replaces no answer that counts, not even one that another is to replace', async t => {
  const service = await serviceWithClock(t)
  const fields = { securityquestion: 'Nome do seu pet?', securityanswer: 'Rex' }
  const { username, token } = await service.signUp('ROLE_CLIENT', fields)
  await saveAnswer(service, token, 1, 'Fofinho')
  await saveAnswer(service, token, 2, 'Recife')
  await service.clock.pass(25 * 3600)
  // Counts a day later.
  await saveAnswer(service, await service.login(username), 1, 'Mimi')
  const local = await openLocal(t, service)
  t.is((await local.linkQuestion({ text: 'Nome do seu pet?', question: '1' })).linked, 0)
  t.is(await signIn(service, username, { 1: 'fofinho', 2: 'recife' }), 200)
})

test('linking a custom question makes the answers of all its users count, however many they are', async t => {
  const { service, api } = await start(t)
  for (let from = 0; from < 21_000; from += 3_000)
    await ask(
      service.env.DATABASE_URL!,
      `INSERT INTO users (username, username_key, username_skeleton, nickname, nickname_key, nickname_skeleton,
          password_hash, state, city, terms_of_usage, role)
        SELECT n, n, n, n, n, n, '', 'SP', 'Bauru', true, 'ROLE_CLIENT' FROM generate_series(${from} + 1, ${from} + 3000) n`,
    )
  await ask(
    service.env.DATABASE_URL!,
    `INSERT INTO unmatched_answers SELECT id, 'Pet?', 'pet?', 'x' FROM users WHERE role = 'ROLE_CLIENT'`,
  )
  t.is((await api.linkQuestion({ text: 'PET?', question: '1' })).linked, 21_000)
  t.deepEqual((await api.listUnmatchedQuestions({})).questions, [])
})

test('custom questions without a link are listed in pages, the most used first', async t => {
  const { service, api } = await start(t)
  for (const text of ['b?', 'c?', 'c?', 'a?'])
    await service.signUp('ROLE_CLIENT', { securityquestion: text, securityanswer: 'x' })
  const found = await allPages(
    pageToken => api.listUnmatchedQuestions({ pageSize: 1, pageToken }),
    page => page.questions.map(({ question, users }) => `${question} ${users}`),
  )
  t.deepEqual(found, ['c? 2', 'a? 1', 'b? 1'])
})

test('adding, changing, retiring and offering a question respects the etag, and a repetition reports no change', async t => {
  const { service, api } = await start(t)
  const { question } = await api.createQuestion({ question: ' Cor preferida? ' })
  const { id } = question!.record!
  t.is(question!.record!.question, 'Cor preferida?')
  t.is(await reasonOf(api.createQuestion({ question: 'COR preferida?' })), 'NAME_TAKEN')
  for (const wrong of ['', ' ', 'a\nb', 'x'.repeat(256)])
    t.is(await reasonOf(api.createQuestion({ question: wrong })), 'INVALID_ARGUMENT')

  const retired = await api.retireQuestion({ question: `#${id}`, etag: question!.etag })
  t.true(retired.changed)
  t.is(await reasonOf(api.offerQuestion({ question: `#${id}`, etag: question!.etag })), 'STALE_ETAG')
  t.false((await api.retireQuestion({ question: 'cor preferida?' })).changed)
  t.true((await api.offerQuestion({ question: `#${id}`, validateOnly: true })).changed)
  t.true((await api.offerQuestion({ question: `#${id}` })).changed)
  t.true((await api.updateQuestion({ question: `#${id}`, text: 'Cor?' })).changed)
  t.false((await api.updateQuestion({ question: `#${id}`, text: 'Cor?' })).changed)
  t.is(await reasonOf(api.updateQuestion({ question: `#${id}`, text: 'Em que cidade sua mãe nasceu?' })), 'NAME_TAKEN')
  t.is(await reasonOf(api.retireQuestion({ question: '#999' })), 'RECORD_NOT_FOUND')

  t.deepEqual(await idsByPage(api, 4), [1, 2, 3, 4, 5, 6, 7, 8, id!])
  await api.retireQuestion({ question: '3' })
  t.like((await api.listQuestions({ offered: false })).questions, { length: 1, 0: { record: { id: 3 } } })
  const events = await service.registry.audit.list({ action: 'question.*', limit: 20 })
  t.deepEqual(
    events.filter(({ actor }) => actor === 'user').map(({ action, actor_id }) => [action, actor_id]),
    ['add', 'retire', 'restore', 'edit', 'retire'].map(verb => [`question.${verb}`, 1]),
  )
})

test('every list has the questions in the configured order, then the others, and a new one last', async t => {
  const { service, api } = await start(t)
  const listed = async () => (await api.listQuestions({})).questions.map(({ record }) => record!.id)
  const published = async () =>
    (await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')).json.map(
      ({ id }: { id: number }) => id,
    )
  t.deepEqual(await published(), [1, 2, 3, 4, 5, 6, 7, 8])
  t.true((await api.orderQuestions({ questions: ['#5', '3'], validateOnly: true })).changed)
  t.deepEqual(await listed(), [1, 2, 3, 4, 5, 6, 7, 8])
  const { questions, changed } = await api.orderQuestions({ questions: ['#5', '3'] })
  t.true(changed)
  const order = [5, 3, 1, 2, 4, 6, 7, 8]
  const ids = questions.map(({ record }) => record!.id)
  t.deepEqual(ids, order)
  t.deepEqual([await listed(), await published()], [order, order])
  t.false((await api.orderQuestions({ questions: ['5', '3', '1'] })).changed)
  const { question } = await api.createQuestion({ question: 'Última?' })
  const { id } = question!.record!
  t.deepEqual(await published(), [...order, id])
  await api.orderQuestions({ questions: ['última?', '3'] })
  const next = [id, 3, 5, 1, 2, 4, 6, 7, 8]
  t.deepEqual([await listed(), await published()], [next, next])

  t.deepEqual(await idsByPage(api, 2), next)
  t.is(await reasonOf(api.orderQuestions({})), 'INVALID_ARGUMENT')
  t.is(await reasonOf(api.orderQuestions({ questions: ['1', '#1'] })), 'INVALID_ARGUMENT')
  t.is(await reasonOf(api.orderQuestions({ questions: ['999'] })), 'RECORD_NOT_FOUND')
  const events = await service.registry.audit.list({ action: 'question.order', limit: 9 })
  t.is(events.map(({ reason }) => reason).join(' '), `5,3 ${id},3`)
})

test('concurrent orders each apply to the questions that they name', async t => {
  const { api } = await start(t)
  await Promise.all([2, 3, 4, 5, 6].map(id => whenFree(() => api.orderQuestions({ questions: [`#${id}`] }))))
  const ids = (await api.listQuestions({})).questions.map(({ record }) => record!.id!)
  t.deepEqual(ids.slice(0, 5).sort(), [2, 3, 4, 5, 6])
  t.deepEqual(ids.slice(5), [1, 7, 8])
})

test('a question can be read by id or text, even if it is retired', async t => {
  const { api } = await start(t)
  await api.retireQuestion({ question: '#3' })
  const listed = (await api.listQuestions({ offered: false })).questions[0]!
  for (const question of ['3', '#3', listed.record!.question!.toUpperCase()])
    t.deepEqual((await api.getQuestion({ question })).question, listed)
  t.is(await reasonOf(api.getQuestion({ question: '999' })), 'RECORD_NOT_FOUND')
})
