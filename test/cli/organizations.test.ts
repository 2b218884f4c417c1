/** `auth-admin organizations`: the contract's fields, unique names, keys that can be replaced. */
import test from 'ava'
import { runCli } from '../_helpers/cli.js'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const organizations = (...args: string[]) => runCli(service.env, ['organizations', ...args])
const json = async (...args: string[]) => {
  const { code, stdout, stderr } = await organizations(...args, '--json')
  if (code !== 0) throw new Error(stderr)
  return JSON.parse(stdout)
}
const uuid = /^[\da-f]{8}-[\da-f]{4}-4[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/

const flags = {
  name: 'Escola Ímpar',
  email: 'impar@example.org',
  address: 'Rua A, 1',
  inep_code: '12345678',
  login: 'impar',
  phone: '(11)3222-1000',
  responsible: 'Ana Lima',
  type: 'E',
  website: 'https://impar.example.org',
}

test('add, show and list print the contract’s fields of an organization; absent ones are left out', async t => {
  const given = Object.entries(flags).flatMap(([field, value]) => [`--${field.replace('_', '-')}`, value])
  const added = await json('add', ...given)
  const { id, creation_date, activationkey, ...rest } = added
  t.deepEqual(rest, { ...flags, active: 'true' })
  t.regex(activationkey, uuid)
  t.regex(creation_date, /^\d{4}-\d\d-\d\d$/)
  t.deepEqual(await json('show', String(id)), added)
  t.deepEqual(await json('show', ' ESCOLA  ímpar '), added)
  t.deepEqual(
    (await json('list')).find((row: { id: number }) => row.id === id),
    added,
  )

  const bare = await json('add', '--name', 'Nua')
  t.deepEqual(Object.keys(bare).sort(), ['activationkey', 'active', 'creation_date', 'id', 'name'])
})

test('add prints a key that activates users until it is rotated or the organization is deactivated', async t => {
  const { id, activationkey: old } = await json('add', '--name', 'Giratória')
  const first = await service.institution({ activationkey: old })
  t.is(typeof first.providerKey, 'string')
  const { activationkey } = await json('rotate-key', 'giratória')
  t.not(activationkey, old)
  await t.throwsAsync(service.institution({ activationkey: old }), { message: /422/ })
  await service.institution({ activationkey })
  t.is((await json('deactivate', String(id))).active, 'false')
  await t.throwsAsync(service.institution({ activationkey }), { message: /422/ })
  t.is((await json('activate', `#${id}`)).active, 'true')
  await service.institution({ activationkey })
  const repeated = await organizations('activate', String(id))
  t.is(repeated.code, 0)
  t.regex(repeated.stdout, /already/)
})

test('edit changes the details given, clears empty ones, and keeps the rest', async t => {
  const before = await json('add', '--name', 'Mutável', '--phone', '1', '--login', 'm', '--type', 'N')
  const after = await json('edit', 'mutável', '--phone', '', '--responsible', 'Bia', '--type', 'o', '--name', 'Mudada')
  const { phone: _, ...rest } = before
  t.deepEqual(after, { ...rest, name: 'Mudada', responsible: 'Bia', type: 'O' })
  t.deepEqual(await json('show', 'MUDADA'), after)
  t.is((await organizations('show', 'Mutável')).code, 1)
})

test('add and edit refuse a name that exists in another case', async t => {
  await json('add', '--name', 'Única')
  const { id } = await json('add', '--name', 'Outra')
  for (const args of [
    ['add', '--name', 'úNICA '],
    ['edit', String(id), '--name', 'ÚNICA'],
  ]) {
    const { code, stdout, stderr } = await organizations(...args)
    t.is(code, 1)
    t.is(stdout, '')
    t.regex(stderr, /^error: There is an organization with the name .+ already\.\n$/)
  }
})

test('every command names a wrong or missing flag in one sentence', async t => {
  const { id } = await json('add', '--name', 'Sentenças')
  const cases: [RegExp, number, ...string[]][] = [
    [/--name/, 2, 'add'],
    [/--name/, 2, 'add', '--name', '\u200b'],
    [/--email/, 2, 'add', '--name', 'Y', '--email', 'nobody'],
    [/--type/, 2, 'add', '--name', 'Y', '--type', 'X'],
    [/--phone/, 2, 'add', '--name', 'Y', '--phone', 'a\nb'],
    [/--address/, 2, 'add', '--name', 'Y', '--address', 'x'.repeat(256)],
    [/--name/, 2, 'edit', String(id), '--name', ''],
    [/--name, --email/, 2, 'edit', String(id)],
    [/id or name/, 2, 'show'],
    [/no organization 999/, 1, 'show', '999'],
    [/no organization Ninguém/, 1, 'rotate-key', 'Ninguém'],
    [/--colour/, 2, 'add', '--name', 'Y', '--colour', 'red'],
  ]
  for (const [sentence, expected, ...args] of cases) {
    const { code, stdout, stderr } = await organizations(...args)
    t.is(code, expected, args.join(' '))
    t.is(stdout, '')
    t.regex(stderr, sentence)
    t.regex(stderr, /^error: [^\n]+\n$/)
  }
})

test('list fits 80 columns and shows no key', async t => {
  const name = 'Associação dos Moradores do Bairro de Nossa Senhora das Graças e Adjacências'
  const email = `${'muito.comprido.'.repeat(4)}x@example.org`
  const { activationkey } = await json('add', '--name', name, '--phone', '(11)98765-4321', '--email', email)
  const { stdout } = await organizations('list')
  t.true(stdout.split('\n').every(line => line.length <= 80))
  t.false(stdout.includes(activationkey))
})
