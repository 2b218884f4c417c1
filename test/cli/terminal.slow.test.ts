/** `auth-admin` at a terminal: it asks for what is missing, hides passwords, and ends on Ctrl-C. */
import test, { type ExecutionContext } from 'ava'
import { assertRefusals, documentsOf, keys, openTerminal, type Terminal } from '../_helpers/cli.js'
import { serviceForFile } from '../_helpers/service.js'
import { waitFor } from '../_helpers/wait.js'

const service = serviceForFile()
const terminal = (...args: string[]) => openTerminal(service.env, args)
const { json, run } = documentsOf(service)

/** Answers questions in their order: types a text once one is shown, and Enter unless the text ends with a control key. */
async function answer({ shows, type }: Terminal, ...answers: (readonly [question: string, typed?: string])[]) {
  for (const [question, typed = ''] of answers) {
    await shows(question)
    type(typed.endsWith(keys.ctrlC) ? typed : `${typed}${keys.enter}`)
  }
}

/** Runs a command to its end with answers to its questions. Returns the screen. */
async function fill(t: ExecutionContext, command: string, answers: Readonly<Record<string, string>>, code = 0) {
  const opened = terminal(...command.split(' '))
  await answer(opened, ...Object.entries(answers))
  t.is(await opened.ended, code, opened.screen())
  return opened.screen()
}

/** Questions that are left as they are. */
const skip = (...questions: string[]) => Object.fromEntries(questions.map(question => [question, '']))

test('`organizations create` asks for every field, and again for an invalid one', async t => {
  const screen = await fill(t, 'organizations create --phone 7', {
    Name: '',
    Required: 'Perguntada',
    'E-mail': 'contact',
    'Not a valid e-mail': '@example.org',
    ...skip('Postal', 'INEP', 'Login', 'responsible'),
    'E school': 'D',
    ...skip('website'),
  })
  const { activationkey, ...shown } = await json('organizations', 'show', 'Perguntada')
  t.like(shown, { active: 'true', name: 'Perguntada', email: 'contact@example.org', phone: '7', type: 'D' })
  for (const field of ['address', 'inep_code', 'login', 'responsible', 'website']) t.false(field in shown, field)
  t.true(screen.includes(activationkey))
})

test('`organizations create` asks before it registers another organization of a name', async t => {
  const create = 'organizations create --name Dobrada'
  const named = async () => (await json('organizations', 'list', '--text', 'Dobrada')).organizations.length
  await fill(t, create, {})
  await fill(t, create, { 'already. Register another one?': 'n' }, 1)
  t.is(await named(), 1)
  await fill(t, create, { 'already. Register another one?': 'y' })
  t.is(await named(), 2)
})

/** Waits until the current question on the screen contains, or doesn't contain, a text. */
const stands = ({ screen }: Terminal, question: string, text: RegExp, there = true) =>
  waitFor(() => text.test(screen().slice(screen().lastIndexOf(question))) === there, screen)

test('an invalid input is reported below the line while it is typed, until it is corrected', async t => {
  const form = ['--username', 'digitada', '--role', 'ROLE_CLIENT', '--city', 'Campinas', '--state', 'SP']
  await run('users', 'create', ...form)
  const opened = terminal('users', 'edit', 'digitada')
  const { shows, type, ended, screen } = opened
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
    await stands(opened, question, sentence)
    type(rest)
    await stands(opened, question, /> /, false)
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
  await fill(t, 'organizations edit Editada', {
    ...{ Editada: '', 'velho@example.org': '\x7f', Postal: 'Rua B' },
    ...skip('INEP', 'Login', 'Telephone', 'responsible', 'E school', 'website', 'issue keys'),
  })
  const { name, address, email } = await json('organizations', 'show', 'Editada')
  t.deepEqual({ name, address, email }, { name: 'Editada', address: 'Rua B', email: undefined })
})

test('`users activate` offers a choice of organizations', async t => {
  await service.organization({ name: 'AA primeira' })
  const { id } = await service.organization({ name: 'AB segunda' })
  const { username } = await service.signUp('ROLE_INSTITUTION')
  const opened = terminal('users', 'activate')
  await answer(opened, ['Which user', username])
  await opened.shows('Which organization')
  opened.type('segu')
  await answer(opened, ['❯ AB segunda'])
  t.is(await opened.ended, 0, opened.screen())
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
  const opened = terminal('users', 'create', '--state', 'SP', '--active')
  await answer(opened, ['Username', 'perguntada'])
  await opened.shows('❯ ROLE_CLIENT')
  opened.type(keys.down)
  await answer(
    opened,
    ...([['❯ ROLE_INSTITUTION'], ['Display name'], ['City or town'], ['Required', 'Campinas']] as const),
    ...([
      ['E-mail address', 'contact'],
      ['Not a valid e-mail', '@example.org'],
    ] as const),
    ...([['Date of birth'], ['M, F or N'], ['E school'], ['Name of the institution']] as const),
  )
  await opened.shows('Which organization')
  opened.type('impar')
  await answer(opened, ['❯ Procurada Ímpar'])
  t.is(await opened.ended, 0, opened.screen())
  const user = await json('users', 'show', 'perguntada')
  t.like(user, { city: 'Campinas', state: 'SP', email: 'contact@example.org', active: 1, role: 'ROLE_INSTITUTION' })
  t.is(user.partnerOrganization.id, id)
})

test('`users create` with a username asks only for missing required fields', async t => {
  const answers = { 'Code of the federative unit': 'SP', 'City or town': 'Campinas' }
  const screen = await fill(t, 'users create --username resumida --role ROLE_CLIENT', answers)
  t.notRegex(screen, /E-mail address|optional/)
  t.like(await json('users', 'show', 'resumida'), { city: 'Campinas', state: 'SP' })
})

test('`services create` asks for the scopes', async t => {
  await fill(t, 'services create perguntado', { 'What may it do?': ` ${keys.down} ` })
  t.deepEqual(
    (await json('services', 'list')).services.find(({ name }: { name: string }) => name === 'perguntado').scopes,
    ['users.read', 'tokens.verify'],
  )
})

test('a missing reason is asked for before a password; without a terminal the command is refused', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const setting = terminal('users', 'set-password', username)
  await setting.shows('Reason, for the audit log:')
  t.notRegex(setting.screen(), /New password/)
  setting.type(`ligou${keys.enter}`)
  await answer(setting, ['New password', 'sete girafas azuis'], ['Repeat the password', 'sete girafas azuis'])
  t.is(await setting.ended, 0, setting.screen())
  const { events } = await json('audit', 'list', '--action', 'user.set-password', '--user', username)
  t.is(events[0].reason, 'ligou')

  const role = terminal('users', 'set-role', username, 'ROLE_ADMIN')
  await answer(role, ['Reason, for the audit log:', 'ajuda'], ['to confirm:', username])
  t.is(await role.ended, 0, role.screen())
  await run('users', 'set-role', username, 'ROLE_CLIENT', '--confirm', username, '--reason', 'fim')
  await assertRefusals(t, run, [
    [/Pass --reason\./, 2, 'users', 'set-password', username, '--password-file', '/dev/null'],
    [/pass the scopes with --may/, 2, 'services', 'create', 'calado'],
  ])
})

test('obstacles to a change are reported before its confirmation', async t => {
  const { id, activationkey } = await service.organization({ name: 'Com gente' })
  await service.institution({ activationkey })
  for (const [sentence, ...args] of [
    ['has 1 members', 'organizations', 'delete', String(id)],
    ['last active administrator', 'users', 'suspend', 'admin', '--reason', 'teste'],
    ['last active administrator', 'users', 'delete', 'admin', '--reason', 'teste'],
    ['no organization Nenhuma', 'organizations', 'deactivate', 'Nenhuma'],
    ['no organization Nenhuma', 'organizations', 'rotate-key', 'Nenhuma'],
    ['No sign-up has the question Qual mar?', 'questions', 'link', 'Qual mar?', '1'],
    ['There is no e-mail 999', 'api', 'DiscardEmail', '{"id": 999}'],
    ['There is no service nenhum', 'api', 'DeleteServiceKey', '{"name": "nenhum", "id": 1}'],
  ] as const) {
    const { ended, screen } = terminal(...args)
    t.not(await ended, 0)
    t.notRegex(screen(), /to confirm|y\/N/)
    t.true(screen().includes(sentence), screen())
  }
})

test('a command that affects users states its effect and asks first, and exits with 1 if declined', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  for (const [command, sentence] of Object.entries({
    [`suspend ${username}`]: 'can no longer sign in',
    [`revoke-tokens ${username}`]: 'has to sign in again',
    [`delete ${username}`]: 'erased 30 days from now',
    [`set-role ${username} ROLE_INSTITUTION`]: 'becomes a ROLE_INSTITUTION',
  }))
    await fill(t, `users ${command}`, { [sentence]: 'n' }, 1)
  t.like(await json('users', 'show', username), { suspended: false, role: 'ROLE_CLIENT' })
  for (const answer of ['y', 'YES', 's', 'Sim']) {
    await fill(t, `users suspend ${username}`, { 'Suspend it?': answer })
    t.true((await json('users', 'show', username)).suspended, answer)
    await json('api', 'ResumeUser', JSON.stringify({ user: username }), '--yes')
  }
  await fill(t, `users delete ${username} --yes`, {})
})

test('an irreversible command asks for the name as confirmation', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const wrong = terminal('users', 'erase', username)
  await wrong.shows('permanently erases')
  await answer(wrong, ['to confirm:', 'outro'])
  t.is(await wrong.ended, 1)
  const right = terminal('users', 'erase', username)
  await right.shows('to confirm:')
  right.type(username.slice(0, 3))
  await right.shows('Doesn’t match yet')
  right.type(`${username.slice(3)}${keys.enter}`)
  t.is(await right.ended, 0, right.screen())
  t.is((await run('users', 'show', username)).code, 3)
})

test('Ctrl-C at a question changes nothing and is no error', async t => {
  const screen = await fill(t, 'questions create', { 'Question:': `Meia pergunta${keys.ctrlC}` }, 130)
  t.notRegex(screen, /error| {4}at /i)
  const { questions } = await json('questions', 'list')
  t.false(questions.some(({ question }: { question: string }) => question.startsWith('Meia')))
})

test('a command with --json asks nothing, even at a terminal', async t => {
  const { ended, screen } = terminal('organizations', 'create', '--json')
  t.is(await ended, 2)
  // The last output of a terminal can arrive after the exit.
  const document = await waitFor(() => screen().includes('\n}') && screen().slice(screen().indexOf('{')), screen)
  t.regex(screen(), /^error: [^\n]*pass its name[^\n]*\n\{/)
  t.like(JSON.parse(document), { error: { exitCode: 2 } })
})
