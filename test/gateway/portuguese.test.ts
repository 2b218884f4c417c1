/** Problem documents in the language of `Accept-Language`. */
import { readdir, readFile } from 'node:fs/promises'
import test from 'ava'
import { toPortuguese } from '../../gateway/portuguese.js'
import { refused } from '../_helpers/problem.js'
import { password, serviceForFile, signUpForm } from '../_helpers/service.js'

const service = serviceForFile()
const portuguese = { headers: { 'accept-language': 'pt-BR,pt;q=0.9,en;q=0.5' } }

test('a refusal is in Portuguese where the client prefers it, with the same reason and title', async t => {
  const path = `/users/login?username=nobody&password=${password}`
  const english = await service.request('POST', path)
  const answer = await service.request('POST', path, portuguese)
  refused(t, answer, 404, 'INVALID_CREDENTIALS')
  t.is(answer.headers.get('content-language'), 'pt-BR')
  t.is(answer.json.detail, 'Nome de usuário ou senha inválidos.')
  t.is(answer.json.title, english.json.title)
  t.is(english.headers.get('content-language'), 'en')
  t.is(english.json.detail, 'Invalid username or password.')
})

test('messages of wrong fields are in Portuguese, values included', async t => {
  const body = {
    username: 'login',
    nickname: '',
    password: 'short',
    state: 'SPX',
    city: 'a\nb',
    gender: 'X',
    roles: [],
  }
  const answer = await service.request('POST', '/users/signup', {
    ...portuguese,
    body: { ...body, termsofusage: 'no' },
  })
  refused(t, answer, 422, 'INVALID_SIGN_UP')
  const messages = Object.fromEntries(
    answer.json.errors.map(({ field, message }: { field: string; message: string }) => [field, message]),
  )
  t.like(messages, {
    username: 'Escolha outro nome de usuário: este é reservado.',
    nickname: 'Preencha este campo.',
    password: 'Use pelo menos 8 caracteres.',
    state: 'Informe a sigla do estado, exatamente 2 caracteres.',
    city: 'Retire quebras de linha e outros caracteres de controle.',
    gender: 'Deixe vazio, ou use M, F ou N.',
    termsofusage: 'deve ser true ou false',
    roles: 'Informe exatamente um destes valores: ROLE_ADMIN, ROLE_INSTITUTION, ROLE_CLIENT.',
  })
})

test('a taken nickname is refused in Portuguese, with the free one', async t => {
  const { nickname } = await service.signUp('ROLE_CLIENT')
  const answer = await service.request('POST', '/users/signup', { ...portuguese, body: signUpForm({ nickname }) })
  t.regex(answer.json.errors[0].message, /^Escolha outro apelido: este já está em uso; .+ está livre\.$/)
})

test('refusals of the gateway itself are in Portuguese', async t => {
  for (const [method, path, detail] of [
    ['GET', '/nowhere', 'O caminho não existe.'],
    ['GET', '/users/login', 'Métodos permitidos: POST, OPTIONS.'],
    ['POST', '/users/login', 'Informe username e password.'],
  ] as const) {
    t.is((await service.request(method, path, portuguese)).json.detail, detail, path)
  }
})

for (const [header, locale] of [
  [undefined, 'en'],
  ['', 'en'],
  ['*', 'en'],
  ['fr', 'en'],
  ['pt', 'pt-BR'],
  ['PT-pt', 'pt-BR'],
  ['en-US,pt;q=0.9', 'en'],
  ['en;q=0.5, pt-BR;q=0.6', 'pt-BR'],
  ['pt;q=0', 'en'],
] as const) {
  test(`Accept-Language ${header} selects ${locale}`, async t => {
    const headers: Record<string, string> = header === undefined ? {} : { 'accept-language': header }
    t.is((await service.request('GET', '/users/me', { headers })).headers.get('content-language'), locale)
  })
}

/** Sentences that problem documents don’t have, or not in this form. */
const exempt = [
  'The one-time code is wrong.',
  'This one-time code was already used. The next one comes in a or b s.',
  'The row of this RPC doesn’t list the event a or b.',
  'Type a or b to confirm.',
  // Answers to requests whose headers can't be read.
  'The headers have more than a or b bytes.',
  'The request took too long to arrive.',
  'This is not an HTTP request.',
  // Translated for each of the two names; a test above has one.
  'Choose another a or b: this one a or b.',
]

test('every sentence that a problem document can have is translated', async t => {
  const rooms = ['users', 'forgotpasswords', 'access', 'requests', 'rules', 'passwords'].map(room => `server/${room}`)
  const sentences: string[] = []
  for (const folder of [...rooms, 'gateway']) {
    // The gateway has further texts, in pages and metrics.
    const before = folder === 'gateway' ? /new HttpError\(\s*'\w+',\s*/ : /(?<=[\s(,:])/
    const sentence = new RegExp(`${before.source}(['\`])([A-Z][^'\`\\n]*\\.)\\1`, 'g')
    for (const name of (await readdir(folder)).filter(each => each.endsWith('.ts'))) {
      const found = (await readFile(`${folder}/${name}`, 'utf8')).matchAll(sentence)
      sentences.push(...[...found].map(([, , text = '']) => text.replace(/\$\{[^}]*\}/g, 'a or b')))
    }
  }
  t.true(sentences.length > 80)
  t.deepEqual(
    sentences.filter(each => !exempt.includes(each) && toPortuguese(each) === each),
    [],
  )
})
