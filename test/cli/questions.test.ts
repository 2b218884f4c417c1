/** `auth-admin questions`: questions change, and answers outlive every change. */
import test from 'ava'
import { runCli } from '../_helpers/cli.js'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const questions = (...args: string[]) => runCli(service.env, ['questions', ...args])
const json = async (...args: string[]) => {
  const { code, stdout, stderr } = await questions(...args, '--json')
  if (code !== 0) throw new Error(stderr)
  return JSON.parse(stdout)
}

test('add, list, retire, restore and edit print the contract’s fields of a question', async t => {
  const { id, ...added } = await json('add', '--question', 'Qual é a cor do mar?')
  t.deepEqual(added, { question: 'Qual é a cor do mar?', active: 1 })
  t.deepEqual(await json('retire', String(id)), { id, question: 'Qual é a cor do mar?', active: 0 })
  t.deepEqual(await json('restore', 'qual e a COR do mar?'), { id, question: 'Qual é a cor do mar?', active: 1 })
  t.deepEqual(await json('edit', `#${id}`, '--question', 'Qual era?'), { id, question: 'Qual era?', active: 1 })
  const all = await json('list')
  t.deepEqual(
    all.find((row: { id: number }) => row.id === id),
    { id, question: 'Qual era?', active: 1 },
  )
  const served = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  t.deepEqual(Object.keys(served.json[0]).sort(), Object.keys(all[0]).sort())
})

test('edit and retire keep the answers already saved', async t => {
  const ids = [1, 2]
  const { username, token } = await service.signUp('ROLE_CLIENT')
  for (const id of ids) {
    const body = { forgotpasswordquestionsid: id, answer: `resposta ${id}` }
    const saved = await service.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', {
      token,
      body,
    })
    t.is(saved.status, 200)
  }
  await json('edit', '1', '--question', 'Como se chamava o gato?')
  await json('retire', '2')
  const body = ids.map(id => ({ forgotpasswordquestionsid: id, answer: `Resposta ${id}` }))
  const path = '/forgotpasswords/loginbyusernameandanswers'
  t.is((await service.request('POST', path, { query: { username }, body })).status, 200)
})

test('add and edit refuse a text that exists in other case or accents', async t => {
  const { id } = await json('add', '--question', 'Única pergunta?')
  const { id: other } = await json('add', '--question', 'Outra pergunta?')
  for (const args of [
    ['add', '--question', 'unica  PERGUNTA?'],
    ['edit', String(other), '--question', 'UNICA pergunta?'],
  ]) {
    const { code, stdout, stderr } = await questions(...args)
    t.is(code, 1)
    t.is(stdout, '')
    t.is(stderr, `error: Question ${id} has this text already.\n`)
  }
})

test('every command says in one sentence what is wrong or missing', async t => {
  const cases: [RegExp, number, ...string[]][] = [
    [/--question/, 2, 'add'],
    [/--question/, 2, 'add', '--question', ' '],
    [/--question/, 2, 'edit', '3'],
    [/id or text/, 2, 'retire'],
    [/no question 999/, 1, 'restore', '999'],
  ]
  for (const [sentence, expected, ...args] of cases) {
    const { code, stdout, stderr } = await questions(...args)
    t.is(code, expected, args.join(' '))
    t.is(stdout, '')
    t.regex(stderr, sentence)
    t.regex(stderr, /^error: [^\n]+\n$/)
  }
})
