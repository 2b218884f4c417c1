/** Every field of every published resource: present with its type and value, or omitted. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { openSignedIn } from '../_helpers/administration.js'
import { profileValues } from '../_helpers/fields.js'
import { suspend } from '../_helpers/models.js'
import { password, type SignedUp, serviceForFile, startTestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const service = serviceForFile()
const uuid = /^[\da-f]{8}-[\da-f]{4}-[1-8][\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/
const bases = [
  ['', '1.0.2'],
  ['/1.0.0', '1.0.0'],
  ['/1.0.2', '1.0.2'],
] as const

let admin: string
let organization: { id: number; activationkey: string; email: string }
let full: SignedUp
let minimal: SignedUp
test.before(async () => {
  admin = await service.adminToken()
  organization = await service.organization({ name: 'Escola Estadual Machado de Assis', email: 'escola@example.org' })
  const details = {
    address: 'Rua das Laranjeiras, 1',
    creationDate: '2019-03-05',
    inepCode: '33000001',
    login: 'machado',
    phone: '(21)2555-0100',
    responsible: 'Dona Inês',
    type: 'E',
    website: 'https://escola.example.org',
  }
  await service.registry.organizations.edit(organization.id, details)
  full = await service.signUp('ROLE_INSTITUTION', {
    username: '(21)98888-7777',
    ...profileValues,
    securityquestion: 'Em que cidade sua mãe nasceu?',
    securityanswer: 'Paraty',
    email: 'capitu@example.org',
  })
  const query = { username: full.username, activationkey: organization.activationkey }
  await service.request('POST', '/users/activate', { token: full.token, query })
  minimal = await service.signUp('ROLE_CLIENT')
})

/** The organization as a revision shows it, with its activation key or without. */
function partnerOrganization(revision: string, withKey: boolean) {
  return {
    id: organization.id,
    active: 'true',
    address: 'Rua das Laranjeiras, 1',
    creation_date: '2019-03-05',
    inep_code: '33000001',
    login: 'machado',
    name: 'Escola Estadual Machado de Assis',
    phone: '(21)2555-0100',
    responsible: 'Dona Inês',
    type: 'E',
    website: 'https://escola.example.org',
    ...(revision === '1.0.0' && { email: 'escola@example.org' }),
    ...(revision === '1.0.2' && withKey && { activationkey: organization.activationkey }),
  }
}

for (const [base, revision] of bases) {
  for (const path of ['/users/me', `/users/${encodeURIComponent('(21)98888-7777')}`]) {
    test(`GET ${base}${path} shows every field of an active ROLE_INSTITUTION, and nothing else`, async t => {
      const { json, text } = await service.request('GET', base + path, { token: full.token })
      const { providerActivationKey, ...rest } = json
      t.deepEqual(rest, {
        id: idOf(full.token),
        username: '(21)98888-7777',
        ...profileValues,
        securityquestion: 'Em que cidade sua mãe nasceu?',
        termsofusage: true,
        active: 1,
        role: 'ROLE_INSTITUTION',
        partnerOrganization: partnerOrganization(revision, true),
      })
      const { id, activationkey, ...more } = providerActivationKey
      t.true(Number.isInteger(id))
      t.regex(activationkey, uuid)
      t.deepEqual(more, { usersid: idOf(full.token) })
      t.notRegex(text, /Paraty|cavalo|hmac1|\$2b/)
    })
  }

  test(`GET ${base}/users/me leaves out what was not given, but not active: 0`, async t => {
    const { json } = await service.request('GET', `${base}/users/me`, { token: minimal.token })
    t.deepEqual(json, {
      id: idOf(minimal.token),
      username: minimal.username,
      nickname: minimal.nickname,
      state: 'SP',
      city: 'São Paulo',
      termsofusage: true,
      active: 0,
      role: 'ROLE_CLIENT',
    })
  })

  test(`GET ${base}/users/me shows a ROLE_CLIENT its organization without the activation key`, async t => {
    const provider = await service.institution(organization)
    const { username, token } = await service.signUp('ROLE_CLIENT')
    await service.request('POST', '/users/activate', {
      token,
      query: { username, activationkey: provider.providerKey },
    })
    const { json } = await service.request('GET', `${base}/users/me`, { token })
    t.deepEqual(json.partnerOrganization, partnerOrganization(revision, false))
    t.false('providerActivationKey' in json)
  })

  test(`GET ${base}/users/me leaves out what an organization did not give`, async t => {
    const { id, activationkey, email } = await service.organization({ name: `Sem dados ${base}` })
    const { token } = await service.institution({ activationkey })
    const { json } = await service.request('GET', `${base}/users/me`, { token })
    const { creation_date, ...rest } = json.partnerOrganization
    t.regex(creation_date, /^\d{4}-\d\d-\d\d$/)
    t.deepEqual(rest, {
      id,
      active: 'true',
      name: `Sem dados ${base}`,
      ...(revision === '1.0.0' ? { email } : { activationkey }),
    })
  })

  test(`GET ${base}/forgotpasswords/findallforgotpasswordquestions shows number, text and state of each`, async t => {
    const { json } = await service.request('GET', `${base}/forgotpasswords/findallforgotpasswordquestions`)
    t.true(json.length >= 2)
    for (const { id, question, active, ...more } of json) {
      t.true(Number.isInteger(id))
      t.is(typeof question, 'string')
      t.true(active === 0 || active === 1)
      t.deepEqual(more, {})
    }
    const ids = json.map(({ id }: { id: number }) => id)
    t.deepEqual(
      ids,
      ids.toSorted((a: number, b: number) => a - b),
    )
  })

  test(`POST ${base}/users/signup takes every published field`, async t => {
    const body = {
      ...profileValues,
      username: `Bentinho${base}`,
      nickname: `Casmurro${base}`,
      password,
      securityquestion: 'Qual era a cor do bonde?',
      securityanswer: 'verde',
      termsofusage: true,
      roles: ['ROLE_CLIENT'],
    }
    const { text: token } = await service.request('POST', `${base}/users/signup`, { body })
    const { json } = await service.request('GET', `${base}/users/me`, { token })
    const { password: _, securityanswer, roles, ...shown } = body
    t.deepEqual(json, { ...shown, id: idOf(token), active: 0, role: 'ROLE_CLIENT' })
  })

  test(`POST ${base}/forgotpasswords/saveforgotpasswordquestionsusersanswers takes every published field`, async t => {
    const { token } = await service.signUp('ROLE_CLIENT')
    const [question] = (await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')).json
    const path = `${base}/forgotpasswords/saveforgotpasswordquestionsusersanswers`
    const numbers = { id: 1, forgotpasswordquestionsid: question.id, usersid: idOf(token) }
    t.is((await service.request('POST', path, { token, body: { ...numbers, answer: 'verde' } })).status, 200)
    const strings = Object.fromEntries(Object.entries(numbers).map(([name, value]) => [name, String(value)]))
    t.is((await service.request('POST', path, { token, body: { ...strings, answer: 'verde' } })).status, 200)
  })
}

test('an inactive organization reads "false"', async t => {
  const { id, activationkey } = await service.organization()
  const { token } = await service.institution({ activationkey })
  await service.registry.organizations.setActive(id, false)
  t.is((await service.request('GET', '/users/me', { token })).json.partnerOrganization.active, 'false')
})

test('a retired question stays in the list and reads 0', async t => {
  const text = `Pergunta ${randomUUID()}`
  const { id } = await service.registry.questions.add({ question: text, questionKey: text })
  await service.registry.questions.setActive(id, false)
  const { json } = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  t.is(json.find(({ question }: { question: string }) => question === text).active, 0)
})

test('administrators see all keys; an institution those of its organization, and not the provider key of others', async t => {
  const colleague = await service.institution(organization)
  const client = await service.signUp('ROLE_CLIENT')
  const query = { username: client.username, activationkey: colleague.providerKey }
  await service.request('POST', '/users/activate', { token: client.token, query })
  const show = async ({ username }: SignedUp, token: string) =>
    (await service.request('GET', `/users/${encodeURIComponent(username)}`, { token })).json
  t.regex((await show(full, admin)).providerActivationKey.activationkey, uuid)
  t.false('providerActivationKey' in (await show(full, colleague.token)))
  for (const user of [full, client])
    for (const token of [admin, colleague.token])
      t.is((await show(user, token)).partnerOrganization.activationkey, organization.activationkey)
})

test('a ROLE_INSTITUTION that was suspended reads 0', async t => {
  const { username, token } = await service.institution(organization)
  await suspend(service.registry, idOf(token))
  const { json } = await service.request('GET', `/users/${encodeURIComponent(username)}`, { token: admin })
  t.is(json.active, 0)
})

test('a user who signed up through one revision exists in the other, with the same token', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  for (const base of ['', '/1.0.0', '/1.0.2']) {
    t.is((await service.request('GET', `${base}/users/me`, { token })).json.username, username)
    t.is((await service.request('POST', `${base}/users/login`, { query: { username, password } })).status, 200)
  }
})

test('a text that a user or an organization has is as long as its `maxLength`, in records and columns, and no longer', async t => {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const api = await openSignedIn(t, service)
  const { User, SignUpRequest, Profile, PartnerOrganization } = (await service.request('GET', '/openapi/1.0.0.json'))
    .json.components.schemas
  const longest = ({ properties }: { properties: Record<string, { maxLength?: number }> }) =>
    Object.entries(properties).flatMap(([name, { maxLength }]) => (maxLength ? [[name, maxLength] as const] : []))
  const { token } = await service.signUp('ROLE_CLIENT')
  const taken = async (name: string, text: string) => {
    const { status, json } = await service.request('PATCH', '/users/me', { token, body: { record: { [name]: text } } })
    return status === 200 && json[name] === text
  }
  t.deepEqual(longest(User), longest(Profile))
  t.deepEqual(longest(SignUpRequest), longest(Profile))
  // Characters of 4 bytes.
  for (const [name, length] of longest(Profile))
    t.deepEqual(
      [await taken(name, '🐢'.repeat(length)), await taken(name, '🐢'.repeat(length + 1))],
      [true, false],
      name,
    )
  const { id } = await service.organization()
  const changed = async (name: string, text: string) => {
    const inForm = name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase())
    const change = { organization: `#${id}`, form: { [inForm]: text }, updateMask: { paths: [name] } }
    const { organization } = await api.updateOrganization(change).catch(() => ({ organization: undefined }))
    return (organization?.record as Record<string, unknown> | undefined)?.[inForm] === text
  }
  for (const [name, length] of longest(PartnerOrganization)) {
    const one = name === 'inep_code' ? '1' : '🐢'
    t.deepEqual(
      [await changed(name, one.repeat(length)), await changed(name, one.repeat(length + 1))],
      [true, false],
      name,
    )
  }
  t.true(longest(Profile).length > 2 && longest(PartnerOrganization).length > 5)
})
