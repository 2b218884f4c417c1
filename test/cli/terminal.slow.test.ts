/** `auth-admin` at a terminal: it asks for what is missing, hides passwords, and ends on Ctrl-C. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import { keys, openTerminal, runCli, type Terminal } from '../_helpers/cli.js'
import { serviceForFile } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { waitFor } from '../_helpers/wait.js'

const service = serviceForFile()
const terminal = (...args: string[]) => openTerminal(service.env, args)
const json = async (...args: string[]) => JSON.parse((await runCli(service.env, [...args, '--json'])).stdout)

test('`organizations create` asks for every field, and again for an invalid one', async t => {
  const { shows, type, ended, screen } = terminal('organizations', 'create', '--phone', '7')
  await shows('Name')
  type(keys.enter)
  await shows('Required')
  type(`Perguntada${keys.enter}`)
  await shows('E-mail')
  type(`contact${keys.enter}`)
  await shows('Not a valid e-mail')
  type(`@example.org${keys.enter}`)
  for (const detail of ['Postal', 'INEP', 'Login', 'responsible']) {
    await shows(detail)
    type(keys.enter)
  }
  await shows('E school')
  type(`D${keys.enter}`)
  await shows('website')
  type(keys.enter)
  t.is(await ended, 0, screen())
  const {
    id: _,
    activationkey: key,
    creation_date: _day,
    etag: _etag,
    members: _members,
    ...rest
  } = await json('organizations', 'show', 'Perguntada')
  t.deepEqual(rest, { active: 'true', name: 'Perguntada', email: 'contact@example.org', phone: '7', type: 'D' })
  t.true(screen().includes(key))
})

/** Waits until the current question on the screen contains, or doesn't contain, a text. */
const stands = ({ screen }: Terminal, question: string, text: RegExp, there = true) =>
  waitFor(() => text.test(screen().slice(screen().lastIndexOf(question))) === there, screen)

test('an invalid input is reported below the line while it is typed, until it is corrected', async t => {
  const form = ['--username', 'digitada', '--role', 'ROLE_CLIENT', '--city', 'Campinas', '--state', 'SP']
  await runCli(service.env, ['users', 'create', ...form])
  const opened = terminal('users', 'edit', 'digitada')
  const { shows, type, ended, screen } = opened
  const says = (question: string, text: RegExp) => stands(opened, question, text)
  const isQuiet = (question: string) => stands(opened, question, /> /, false)
  for (const [question, wrong, sentence, rest] of [
    ['Sign-in name', '\x7f', /Required/, 'digitada'],
    ['Display name', '\x7f', /Required/, 'Digitada'],
    ['Code of', 'Ab\x7f', /2 characters/, 'M'],
    ['City or town', `B${'b'.repeat(255)}`, /at most 255/, '\x7f'],
    ['E-mail address', 'ana', /Not a valid e-mail/, '@example.org'],
    ['Date of birth', '31/02/1990', /a day of the calendar/, `${keys.clearLine}01/02/1990`],
    ['M, F or N', 'X', /M, F or N\./, '\x7fF'],
    ['E school', 'Z', /E, D, N or O\./, '\x7fD'],
  ] as const) {
    await shows(question)
    type(wrong)
    await says(question, sentence)
    type(rest)
    await isQuiet(question)
    type(keys.enter)
  }
  await shows('Name of the institution')
  type(keys.enter)
  t.is(await ended, 0, screen())
  t.like(await json('users', 'show', 'digitada'), {
    nickname: 'Digitada',
    state: 'AM',
    city: `B${'b'.repeat(254)}`,
    email: 'ana@example.org',
    gender: 'F',
    institutiontype: 'D',
  })
})

test('`organizations edit` offers the current values, and Backspace clears one', async t => {
  await service.organization({ name: 'Editada', email: 'velho@example.org' })
  const { shows, type, ended, screen } = terminal('organizations', 'edit', 'Editada')
  await shows('Editada')
  type(keys.enter)
  await shows('velho@example.org')
  type(`\x7f${keys.enter}`)
  await shows('Postal')
  type(`Rua B${keys.enter}`)
  for (const detail of ['INEP', 'Login', 'Telephone', 'responsible', 'E school', 'website']) {
    await shows(detail)
    type(keys.enter)
  }
  t.is(await ended, 0, screen())
  const { name, address, email } = await json('organizations', 'show', 'Editada')
  t.deepEqual({ name, address, email }, { name: 'Editada', address: 'Rua B', email: undefined })
})

test('`users activate` offers a choice of organizations', async t => {
  await service.organization({ name: 'AA primeira' })
  const { id } = await service.organization({ name: 'AB segunda' })
  const { username } = await service.signUp('ROLE_INSTITUTION')
  const { shows, type, ended, screen } = terminal('users', 'activate')
  await shows('Which user')
  type(`${username}${keys.enter}`)
  await shows('Which organization')
  type('segu')
  await shows('❯ AB segunda')
  type(keys.enter)
  t.is(await ended, 0, screen())
  t.is((await json('users', 'show', username)).partnerOrganization.id, id)
})

test('a new password is asked for twice, checked while it is typed, and never shown', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const opened = terminal('users', 'set-password', username, '--reason', 'teste')
  const { shows, type, ended, screen } = opened
  await shows('New password')
  type(`curta${keys.ctrlT}`)
  await shows('Use at least 8')
  type(`${keys.clearLine}quatro girafas azuis${keys.enter}`)
  await shows('Repeat the password')
  type(`cinco girafas azuis${keys.enter}`)
  await shows('They don’t match')
  await shows('New password')
  type('curta demais não')
  await stands(opened, 'New password', /> /, false)
  type(keys.enter)
  await shows('Repeat the password')
  type('curta demais')
  await shows('Doesn’t match yet')
  type(` não${keys.ctrlT}`)
  await stands(opened, 'Repeat the password', /> /, false)
  type(keys.enter)
  t.is(await ended, 0, screen())
  t.notRegex(screen(), /girafas|curta|demais|\*/)
  t.is((await json('audit', 'list', '--action', 'user.set-password', '--user', username)).events.length, 1)
  t.is((await service.login(username, 'curta demais não')).split('.').length, 3)
})

test('`users create` asks for missing fields, again for invalid ones, and searches the organization by words', async t => {
  const { id } = await service.organization({ name: 'Procurada Ímpar' })
  const { shows, type, ended, screen } = terminal('users', 'create', '--state', 'SP', '--active')
  await shows('Username')
  type(`perguntada${keys.enter}`)
  await shows('Which role')
  type(keys.down)
  await shows('❯ ROLE_INSTITUTION')
  type(keys.enter)
  await shows('Display name')
  type(keys.enter)
  await shows('City or town')
  type(keys.enter)
  await shows('Required')
  type(`Campinas${keys.enter}`)
  await shows('E-mail address')
  type(`contact${keys.enter}`)
  await shows('Not a valid e-mail')
  type(`@example.org${keys.enter}`)
  for (const detail of ['Date of birth', 'M, F or N', 'E school', 'Name of the institution']) {
    await shows(detail)
    type(keys.enter)
  }
  await shows('Which organization')
  type('impar')
  await shows('❯ Procurada Ímpar')
  type(keys.enter)
  t.is(await ended, 0, screen())
  const user = await json('users', 'show', 'perguntada')
  t.like(user, { city: 'Campinas', state: 'SP', email: 'contact@example.org', active: 1, role: 'ROLE_INSTITUTION' })
  t.is(user.partnerOrganization.id, id)
})

test('`users create` with a username asks only for missing required fields', async t => {
  const { shows, type, ended, screen } = terminal('users', 'create', '--username', 'resumida', '--role', 'ROLE_CLIENT')
  await shows('Code of the federative unit')
  type(`SP${keys.enter}`)
  await shows('City or town')
  type(`Campinas${keys.enter}`)
  t.is(await ended, 0, screen())
  t.notRegex(screen(), /E-mail address|optional/)
  t.like(await json('users', 'show', 'resumida'), { city: 'Campinas', state: 'SP' })
})

test('`services create` asks for the scopes', async t => {
  const { shows, type, ended, screen } = terminal('services', 'create', 'perguntado')
  await shows('What may it do?')
  await shows('clients.forward')
  type(` ${keys.down} ${keys.enter}`)
  t.is(await ended, 0, screen())
  t.deepEqual((await json('services', 'show', 'perguntado')).scopes, ['users.read', 'tokens.verify'])
  const { code, stderr } = await runCli(service.env, ['services', 'create', 'calado'])
  t.is(code, 2)
  t.regex(stderr, /pass the scopes with --may/)
})

test('a missing reason is asked for before a password; without a terminal the command is refused', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const setting = terminal('users', 'set-password', username)
  await setting.shows('Reason, for the audit log:')
  t.notRegex(setting.screen(), /New password/)
  setting.type(`ligou${keys.enter}`)
  await setting.shows('New password')
  setting.type(`sete girafas azuis${keys.enter}`)
  await setting.shows('Repeat the password')
  setting.type(`sete girafas azuis${keys.enter}`)
  t.is(await setting.ended, 0, setting.screen())
  const { events } = await json('audit', 'list', '--action', 'user.set-password', '--user', username)
  t.is(events[0].reason, 'ligou')

  const role = terminal('users', 'set-role', username, 'ROLE_ADMIN')
  await role.shows('Reason, for the audit log:')
  role.type(`ajuda${keys.enter}`)
  await role.shows('to confirm:')
  role.type(`${username}${keys.enter}`)
  t.is(await role.ended, 0, role.screen())
  await runCli(service.env, ['users', 'set-role', username, 'ROLE_CLIENT', '--confirm', username, '--reason', 'fim'])
  const piped = await runCli(service.env, ['users', 'set-password', username, '--password-file', '-'], 'oito girafas')
  t.is(piped.code, 2)
  t.regex(piped.stderr, /Pass --reason\./)
})

test('obstacles to a change are reported before its confirmation', async t => {
  const { id, activationkey } = await service.organization({ name: 'Com gente' })
  await service.institution({ activationkey })
  for (const [sentence, ...args] of [
    ['has 1 members', 'organizations', 'delete', String(id)],
    ['There is no key none', 'keys', 'retire', 'none', '--now'],
    ['last active administrator', 'users', 'suspend', 'admin', '--reason', 'teste'],
    ['last active administrator', 'users', 'delete', 'admin', '--reason', 'teste'],
    ['no organization Nenhuma', 'users', 'set-organization', 'admin', 'Nenhuma', '--reason', 'teste'],
    ['no organization Nenhuma', 'organizations', 'deactivate', 'Nenhuma'],
    ['no organization Nenhuma', 'organizations', 'rotate-key', 'Nenhuma'],
    ['No sign-up has the question Qual mar?', 'questions', 'link', 'Qual mar?', '1'],
    ['There is no e-mail 999', 'mail', 'delete', '999'],
    ['There is no service nenhum', 'services', 'keys', 'delete', 'nenhum', '1'],
  ] as const) {
    const { ended, screen } = terminal(...args)
    t.not(await ended, 0)
    t.notRegex(screen(), /to confirm|y\/N/)
    t.true(screen().includes(sentence), screen())
  }
})

test('a command that affects users states its effect and asks first, and exits with 1 if declined', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  for (const [sentence, ...args] of [
    ['can no longer sign in', 'suspend'],
    ['has to sign in again', 'revoke-tokens'],
    ['erased 30 days from now', 'delete'],
    ['becomes a ROLE_INSTITUTION', 'set-role', 'ROLE_INSTITUTION'],
    ['is moved', 'set-organization', '--none'],
  ] as const) {
    const [verb, ...rest] = args
    const { shows, type, ended, screen } = terminal('users', verb, username, ...rest)
    await shows(sentence)
    type(`n${keys.enter}`)
    t.is(await ended, 1, screen())
  }
  const { activationkey } = await service.organization()
  const institution = await service.institution({ activationkey })
  const rotating = terminal('users', 'rotate-provider-key', institution.username)
  await rotating.shows('stops working at once')
  rotating.type(`n${keys.enter}`)
  t.is(await rotating.ended, 1, rotating.screen())
  t.like(await json('users', 'show', username), { suspended: false, role: 'ROLE_CLIENT' })
  const { shows, type, ended } = terminal('users', 'suspend', username)
  await shows('Suspend it?')
  type(`y${keys.enter}`)
  t.is(await ended, 0)
  t.true((await json('users', 'show', username)).suspended)
  t.is(await terminal('users', 'delete', username, '--yes').ended, 0)
})

test('an irreversible command asks for the name as confirmation', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const wrong = terminal('users', 'erase', username)
  await wrong.shows('permanently erases')
  await wrong.shows('to confirm:')
  wrong.type(`outro${keys.enter}`)
  t.is(await wrong.ended, 1)
  const right = terminal('users', 'erase', username)
  await right.shows('to confirm:')
  right.type(username.slice(0, 3))
  await right.shows('Doesn’t match yet')
  right.type(`${username.slice(3)}${keys.enter}`)
  t.is(await right.ended, 0, right.screen())
  t.is((await runCli(service.env, ['users', 'show', username])).code, 3)
})

test('Ctrl-C at a question changes nothing and is no error', async t => {
  const { shows, type, ended, screen } = terminal('questions', 'create')
  await shows('Question:')
  type(`Meia pergunta${keys.ctrlC}`)
  t.is(await ended, 130)
  t.notRegex(screen(), /error| {4}at /i)
  const { questions: all }: { questions: { question: string }[] } = await json('questions', 'list')
  t.false(all.some(({ question }) => question.startsWith('Meia')))
})

test('a command with --json asks nothing, even at a terminal', async t => {
  const { ended, screen } = terminal('organizations', 'create', '--json')
  t.is(await ended, 2)
  // The last output of a terminal can arrive after the exit.
  const document = await waitFor(() => screen().includes('\n}') && screen().slice(screen().indexOf('{')), screen)
  t.regex(screen(), /^error: [^\n]*--name[^\n]*\n\{/)
  t.like(JSON.parse(document), { error: { exitCode: 2 } })
})

test('`imports undo` counts what it would remove, and asks for the id of the import', async t => {
  const folder = await temporaryFolder(t)
  const file = join(folder, 'schools.csv')
  await writeFile(file, 'name\nEscola Um\nEscola Dois\n')
  const { id } = await json('organizations', 'import', file)
  const { shows, type, ended, screen } = terminal('imports', 'undo', String(id))
  await shows(`This permanently removes 2 organizations that import ${id} created.`)
  type(`${id}${keys.enter}`)
  t.is(await ended, 0, screen())
  t.regex(screen(), /is undone: 2 organizations removed, 0 kept\./)
})

test('`users delete` of several users asks once', async t => {
  for (const username of ['varios-a', 'varios-b'])
    await json('users', 'create', '--username', username, '--role', 'ROLE_CLIENT', '--state', 'SP', '--city', 'Bauru')
  const { shows, type, ended, screen } = terminal('users', 'delete', 'varios-a', 'varios-b')
  await shows('2 users (varios-a, varios-b) can no longer sign in')
  type(`y${keys.enter}`)
  t.is(await ended, 0, screen())
  t.regex(screen(), /\(varios-a\) is deleted\..*\(varios-b\) is deleted\./s)
})
