/** `auth-admin organizations`: the contract's fields, unique names, keys that can be replaced. */
import test from 'ava'
import { documentsOf } from '../_helpers/cli.js'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const { run: organizations, json } = documentsOf(service, 'organizations')
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

test('create, show and list print the contract’s fields of an organization, without absent ones', async t => {
  const given = Object.entries(flags).flatMap(([field, value]) => [`--${field.replace('_', '-')}`, value])
  const added = await json('create', ...given)
  const { id, creation_date, activationkey, etag, members, ...rest } = added
  t.is(members, 0)
  t.regex(etag, /^[\w-]{22}$/)
  t.deepEqual(rest, { ...flags, active: 'true' })
  t.regex(activationkey, uuid)
  t.regex(creation_date, /^\d{4}-\d\d-\d\d$/)
  t.deepEqual(await json('show', String(id)), added)
  t.deepEqual(await json('show', ' ESCOLA  ímpar '), added)
  const listed = (await json('list')).organizations.find((row: { id: number }) => row.id === id)
  // A list shows no keys.
  t.deepEqual({ ...listed, members, activationkey }, added)
  t.is(listed.activationkey, undefined)

  const bare = await json('create', '--name', 'Nua')
  t.deepEqual(Object.keys(bare).sort(), ['activationkey', 'active', 'creation_date', 'etag', 'id', 'members', 'name'])
})

test('edit changes the given fields, clears empty ones, and keeps all others', async t => {
  const before = await json('create', '--name', 'Mutável', '--phone', '1', '--login', 'm', '--type', 'N')
  const after = await json('edit', 'mutável', '--phone', '', '--responsible', 'Bia', '--type', 'o', '--name', 'Mudada')
  const { phone: _, etag, ...rest } = before
  t.deepEqual(after, { ...rest, name: 'Mudada', responsible: 'Bia', type: 'O', etag: after.etag })
  t.not(after.etag, etag)
  t.deepEqual(await json('show', 'MUDADA'), after)
  t.is((await organizations('show', 'Mutável')).code, 3)
})

test('an ambiguous name is refused with the ids of all matches, and each id is accepted', async t => {
  const ids = []
  for (const name of ['Gêmea', 'GÊMEA ']) ids.push((await json('create', '--name', name)).id)
  const { code, stderr } = await organizations('show', 'gêmea')
  t.is(code, 2)
  t.true(stderr.includes(`#${ids[0]}, #${ids[1]}.`), stderr)
  t.is((await json('show', `#${ids[1]}`)).id, ids[1])
})

test('an INEP code is unique and identifies its organization, and ambiguous digits are refused', async t => {
  const { id } = await json('create', '--name', 'Codificada', '--inep-code', '87654321')
  t.is((await json('show', '87654321')).id, id)
  const other = await json('create', '--name', 'Outra codificada')
  for (const args of [
    ['create', '--name', 'Terceira', '--inep-code', '87654321'],
    ['edit', `#${other.id}`, '--inep-code', '87654321'],
  ]) {
    const { code, stderr } = await organizations(...args)
    t.is(code, 5)
    t.true(stderr.includes(`#${id} already has this INEP code`), stderr)
  }
  await json('edit', `#${id}`, '--inep-code', String(other.id))
  const { code, stderr } = await organizations('show', String(other.id))
  t.is(code, 2)
  t.regex(stderr, /Ambiguous/)
})

test('every command reports an invalid or missing flag in one sentence', async t => {
  const { id } = await json('create', '--name', 'Sentenças')
  const cases: [RegExp, number, ...string[]][] = [
    [/--name/, 2, 'create'],
    [/--name/, 2, 'create', '--name', '\u200b'],
    [/--email/, 2, 'create', '--name', 'Y', '--email', 'invalid'],
    [/--phone/, 2, 'create', '--name', 'Y', '--phone', 'a\nb'],
    [/--address/, 2, 'create', '--name', 'Y', '--address', 'x'.repeat(256)],
    [/--name/, 2, 'edit', String(id), '--name', ''],
    [/--name, --email/, 2, 'edit', String(id)],
    [/id or name/, 2, 'show'],
    [/no organization 999/, 3, 'show', '999'],
    [/no organization Ninguém/, 3, 'rotate-key', 'Ninguém', '--yes'],
    [/--colour/, 2, 'create', '--name', 'Y', '--colour', 'red'],
  ]
  for (const [sentence, expected, ...args] of cases) {
    const { code, stdout, stderr } = await organizations(...args)
    t.is(code, expected, args.join(' '))
    t.is(stdout, '')
    t.regex(stderr, sentence)
    t.regex(stderr, /^error: [^\n]+\n$/)
  }
})

test('list finds words by their beginning in any case and accents, and its pages are complete', async t => {
  const names = Array.from({ length: 7 }, (_, index) => `Colégio São Página ${index}`)
  for (const name of names) await json('create', '--name', name)
  const found: string[] = []
  for (let token = ''; ; ) {
    const page = await json('list', '--text', 'sao pagi', '--limit', '3', ...(token ? ['--page-token', token] : []))
    found.push(...page.organizations.map(({ name }: { name: string }) => name))
    token = page.nextPageToken
    if (token === '') break
  }
  t.deepEqual(found, names)
  const { stdout, stderr } = await organizations('list', '--text', 'pagina', '--limit', '2')
  t.is(stdout.trim().split('\n').length, 3)
  t.regex(stderr, /There are more/)
})
