/** `auth-admin questions`: questions change, and answers survive every change. */
import test from 'ava'
import { documentsOf, keys, openTerminal } from '../_helpers/cli.js'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const { run: questions, json } = documentsOf(service, 'questions')

test('create, list, retire, offer and edit print the contract’s fields of a question', async t => {
  const { id, etag, ...added } = await json('create', '--question', 'Qual é a cor do mar?')
  t.deepEqual(added, { question: 'Qual é a cor do mar?', active: 1, status: 'offered' })
  t.like(await json('retire', String(id)), { id, question: 'Qual é a cor do mar?', active: 0 })
  t.deepEqual(await json('offer', 'qual e a COR do mar?'), {
    id,
    question: 'Qual é a cor do mar?',
    active: 1,
    status: 'offered',
    etag,
  })
  const edited = await json('edit', `#${id}`, '--question', 'Qual era?')
  t.like(edited, { id, question: 'Qual era?', active: 1 })
  t.not(edited.etag, etag)
  const { questions: all } = await json('list')
  t.deepEqual(
    all.find((row: { id: number }) => row.id === id),
    edited,
  )
  t.false((await json('list', '--retired')).questions.some((row: { id: number }) => row.id === id))
  t.true((await json('list', '--offered')).questions.some((row: { id: number }) => row.id === id))
  const served = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  t.deepEqual([...Object.keys(served.json[0]), 'status', 'etag'].sort(), Object.keys(all[0]).sort())
})

test('show prints one question, and order puts questions first', async t => {
  const { id } = await json('create', '--question', 'Primeira de todas?')
  const { questions: all } = await json('list')
  t.deepEqual(
    await json('show', 'PRIMEIRA de todas?'),
    all.find((row: { id: number }) => row.id === id),
  )
  t.regex((await questions('show', String(id))).stdout, /^question +Primeira de todas\?\nstatus +offered$/m)
  const ids = async () => (await json('list')).questions.map(({ id }: { id: number }) => id)
  const ordered = await json('order', `#${id}`, '2')
  t.true(ordered.changed)
  t.deepEqual((await ids()).slice(0, 2), [id, 2])
  const again = await questions('order', String(id), '#2')
  t.regex(again.stdout, new RegExp(`^The order of the questions is already ${id}, 2, `))
})

test('create and edit refuse a text that exists in another case or with other accents', async t => {
  const { id } = await json('create', '--question', 'Única pergunta?')
  const { id: other } = await json('create', '--question', 'Outra pergunta?')
  for (const args of [
    ['create', '--question', 'unica  PERGUNTA?'],
    ['edit', String(other), '--question', 'UNICA pergunta?'],
  ]) {
    const { code, stdout, stderr } = await questions(...args)
    t.is(code, 5)
    t.is(stdout, '')
    t.is(stderr, `error: Question ${id} already has this text.\n`)
  }
})

test('custom questions of sign-ups are listed, and link makes their answers count', async t => {
  const { id } = await json('create', '--question', 'Nome do primeiro navio?')
  const sail = { securityquestion: 'Qual foi o navio?', securityanswer: 'Bounty' }
  const { username, token } = await service.signUp('ROLE_CLIENT', sail)
  await service.signUp('ROLE_CLIENT', { ...sail, securityquestion: 'qual FOI o navio?' })
  const { questions: unmatched } = await json('unmatched', 'list')
  t.is(unmatched.find(({ question }: { question: string }) => /navio/.test(question)).users, 2)
  t.regex((await questions('unmatched', 'list')).stdout, /^2 +[Qq]ual/m)
  t.like(await json('link', 'QUAL foi o navio?', String(id), '--yes'), { id, linked: 2 })
  t.deepEqual((await json('unmatched', 'list')).questions, [])
  t.is((await questions('link', 'Qual foi o navio?', '999', '--yes')).code, 3)
  t.is((await questions('link', 'Qual foi o avião?', String(id), '--yes')).code, 3)

  const saved = { forgotpasswordquestionsid: 4, answer: 'outra' }
  await service.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body: saved })
  const body = [saved, { forgotpasswordquestionsid: id, answer: 'BOUNTY' }]
  const path = '/forgotpasswords/loginbyusernameandanswers'
  t.is((await service.request('POST', path, { query: { username }, body })).status, 200)
})

test('edit at a terminal starts with the current text, and a retired question stays retired', async t => {
  const { id } = await json('create', '--question', 'Que dia é hoje?')
  await json('retire', String(id))
  const { shows, type, ended, screen } = openTerminal(service.env, ['questions', 'edit', String(id)])
  await shows('Que dia é hoje?')
  type(keys.enter)
  t.is(await ended, 0, screen())
  const { questions: all } = await json('list', '--retired')
  t.like(
    all.find((row: { id: number }) => row.id === id),
    { question: 'Que dia é hoje?', active: 0 },
  )
})

test('every command reports an invalid or missing argument in one sentence', async t => {
  const cases: [RegExp, number, ...string[]][] = [
    [/--question/, 2, 'create'],
    [/--question/, 2, 'create', '--question', ' '],
    [/--question/, 2, 'edit', '3'],
    [/id or text/, 2, 'retire'],
    [/no question 999/, 3, 'offer', '999'],
  ]
  for (const [sentence, expected, ...args] of cases) {
    const { code, stdout, stderr } = await questions(...args)
    t.is(code, expected, args.join(' '))
    t.is(stdout, '')
    t.regex(stderr, sentence)
    t.regex(stderr, /^error: [^\n]+\n$/)
  }
})
