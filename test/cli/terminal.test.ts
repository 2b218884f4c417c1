/** `auth-admin` at a terminal: it asks for what is missing, hides passwords, and ends on Ctrl-C. */
import test from 'ava'
import { keys, openTerminal, runCli } from '../_helpers/cli.js'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const terminal = (...args: string[]) => openTerminal(service.env, args)
const json = async (...args: string[]) => JSON.parse((await runCli(service.env, [...args, '--json'])).stdout)

test('organizations add asks for every detail, and again for one that is wrong', async t => {
  const { shows, type, ended, screen } = terminal('organizations', 'add', '--phone', '7')
  await shows('Name')
  type(keys.enter)
  await shows('This is needed')
  type(`Perguntada${keys.enter}`)
  await shows('E-mail')
  type(`nobody${keys.enter}`)
  await shows('no valid e-mail')
  type(`@example.org${keys.enter}`)
  for (const detail of ['Postal', 'INEP', 'Login', 'responsible']) {
    await shows(detail)
    type(keys.enter)
  }
  await shows('E school')
  type(`x${keys.enter}`)
  await shows('Give E, D, N or O')
  type(`\x7fd${keys.enter}`)
  await shows('web site')
  type(keys.enter)
  t.is(await ended, 0, screen())
  const { id: _, activationkey: key, creation_date: _day, ...rest } = await json('organizations', 'show', 'Perguntada')
  t.deepEqual(rest, { active: 'true', name: 'Perguntada', email: 'nobody@example.org', phone: '7', type: 'D' })
  t.true(screen().includes(key))
})

test('organizations edit offers the present details; Backspace empties one', async t => {
  await service.organization({ name: 'Editada', email: 'velho@example.org' })
  const { shows, type, ended, screen } = terminal('organizations', 'edit', 'Editada')
  await shows('Editada')
  type(keys.enter)
  await shows('velho@example.org')
  type(`\x7f${keys.enter}`)
  await shows('Postal')
  type(`Rua B${keys.enter}`)
  for (const detail of ['INEP', 'Login', 'Telephone', 'responsible', 'E school', 'web site']) {
    await shows(detail)
    type(keys.enter)
  }
  t.is(await ended, 0, screen())
  const { name, address, email } = await json('organizations', 'show', 'Editada')
  t.deepEqual({ name, address, email }, { name: 'Editada', address: 'Rua B', email: undefined })
})

test('users activate offers the organizations to choose from', async t => {
  await service.organization({ name: 'AA primeira' })
  const { id } = await service.organization({ name: 'AB segunda' })
  const { username } = await service.signUp('ROLE_INSTITUTION')
  const { shows, type, ended, screen } = terminal('users', 'activate')
  await shows('Which user')
  type(`${username}${keys.enter}`)
  await shows('AB segunda')
  type(keys.down)
  await shows('❯ AB segunda')
  type(keys.enter)
  t.is(await ended, 0, screen())
  t.is((await json('users', 'show', username)).partnerOrganization.id, id)
})

test('set-password asks twice, again when the two differ or break the rules, and never shows what is typed', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const { shows, type, ended, screen } = terminal('users', 'set-password', username)
  await shows('New password')
  type(`curta${keys.enter}`)
  await shows('Use at least')
  type(`${keys.clearLine}quatro girafas azuis${keys.enter}`)
  await shows('The same again')
  type(`cinco girafas azuis${keys.enter}`)
  await shows('The two differ')
  await shows('New password')
  type(`seis girafas azuis${keys.enter}`)
  await shows('The same again')
  type(`seis girafas azuis${keys.enter}`)
  t.is(await ended, 0, screen())
  t.notRegex(screen(), /girafas|curta/)
  t.is((await service.login(username, 'seis girafas azuis')).split('.').length, 3)
})

test('Ctrl-C at a question changes nothing and is no error', async t => {
  const { shows, type, ended, screen } = terminal('questions', 'add')
  await shows('The question')
  type(`Meia pergunta${keys.ctrlC}`)
  t.is(await ended, 130)
  t.notRegex(screen(), /error| {4}at /i)
  const all: { question: string }[] = await json('questions', 'list')
  t.false(all.some(({ question }) => question.startsWith('Meia')))
})

test('a command with --json asks nothing, even at a terminal', async t => {
  const { ended, screen } = terminal('organizations', 'add', '--json')
  t.is(await ended, 2)
  t.regex(screen(), /^error: [^\n]*--name[^\n]*\n$/)
})
