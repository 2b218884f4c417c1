/** A field whose name has two words is added to a copy of the source, as CONTRIBUTING.md says, and followed through its uses. */
import { execFileSync } from 'node:child_process'
import { cpSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import test from 'ava'
import { createRequest, password } from '../_helpers/service.js'
import { serviceEnv, spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

const root = fileURLToPath(new URL('../../../', import.meta.url))
const bin = join(root, 'node_modules/.bin')

/** Adds a text to a file after the first match. */
function add(file: string, after: string, text: string): void {
  const before = readFileSync(file, 'utf8')
  if (!before.includes(after)) throw new Error(`${file} has no ${after}`)
  writeFileSync(
    file,
    before.replace(after, () => after + text),
  )
}

/** Makes a copy of the source with the field `preferred_language`, and builds it. */
function build(copy: string): void {
  for (const part of [
    'proto',
    'server',
    'gateway',
    'cli',
    'deploy/build',
    'docs',
    'buf.yaml',
    'package.json',
    'tsconfig.json',
  ])
    cpSync(join(root, part), join(copy, part), { recursive: true })
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'))
  const definition = '\n  // A language (RFC 5646).\n  optional string preferred_language = 99;'
  add(join(copy, 'proto/auth/v1/records.proto'), 'message User {', definition)
  add(join(copy, 'proto/auth/v1/users.proto'), 'message SignUpRequest {', definition)
  add(join(copy, 'proto/auth/v1/users.proto'), 'message Profile {', definition)
  add(join(copy, 'proto/auth/v1/administration.proto'), 'message UserForm {', definition)
  const check = `text => (text === 'xx' ? fault('UNKNOWN_VALUE', 'Give another language.') : undefined)`
  const rule = `\n  preferredLanguage: { attribute: 'preferredLanguage', about: 'language (RFC 5646)', check: ${check} },`
  add(join(copy, 'server/rules/profile.ts'), 'const rules = {', rule)
  const migration = '-- expand\nALTER TABLE users ADD preferred_language text;\n'
  writeFileSync(join(copy, 'server/database/migrations/9999-preferred-language.sql'), migration)
  const env = { ...process.env, PATH: `${bin}${delimiter}${process.env.PATH}` }
  const run = (command: string, ...options: string[]) => execFileSync(command, options, { cwd: copy, env })
  run('buf', 'generate', '--template', 'proto/buf.gen.yaml')
  run('npm', 'run', 'build')
}

test('a field of two words is accepted, shown, changed, refused and exported under its name in each format', async t => {
  const copy = await temporaryFolder(t)
  build(copy)
  const env = await serviceEnv(t, { DATABASE_URL: '' })
  const { http } = await spawnService(t, env, { program: join(copy, 'dist/server/main.js') })
  const request = createRequest(http, 'none')
  const admin = (...words: string[]) => {
    const how = { cwd: copy, env: { PATH: process.env.PATH, ...env, AUTH_REASON: 'a test' }, encoding: 'utf8' } as const
    return execFileSync(process.execPath, ['dist/cli/main.js', ...words, '--local', '--json'], how)
  }

  const form = { username: 'ana', nickname: 'ana', password, state: 'CE', city: 'Crato', termsofusage: true }
  const signUp = (preferredLanguage: string) =>
    request('POST', '/users/signup', { body: { ...form, roles: ['ROLE_CLIENT'], preferredLanguage } })
  const refused = await signUp('xx')
  t.is(refused.status, 422)
  const wrong = { reason: 'UNKNOWN_VALUE', message: 'Give another language.' }
  t.deepEqual(refused.json.errors, [{ field: 'preferredLanguage', ...wrong }])
  const signedUp = await signUp('pt-BR')
  t.is(signedUp.status, 200)
  const token = signedUp.text
  const shown = async () => (await request('GET', '/users/me', { token })).json.preferredLanguage
  t.is(await shown(), 'pt-BR')

  const patch = (body: object) => request('PATCH', '/users/me', { token, body })
  t.is((await patch({ record: { preferredLanguage: 'en' }, updateMask: 'preferredLanguage' })).status, 200)
  t.is(await shown(), 'en')
  const { json } = await patch({ record: { preferredLanguage: 'xx' } })
  t.deepEqual(json.errors, [{ field: 'record.preferredLanguage', ...wrong }])

  admin('users', 'edit', 'ana', '--preferred-language', 'de')
  t.is(await shown(), 'de')
  const update = { user: 'ana', form: { preferred_language: 'fr' }, update_mask: 'preferredLanguage' }
  admin('api', 'UpdateUser', JSON.stringify(update), '--yes')
  t.is(await shown(), 'fr')

  const list = join(copy, 'users.csv')
  admin('users', 'export', list)
  const text = readFileSync(list, 'utf8')
  t.true(text.startsWith('id,username,preferred_language,'))
  writeFileSync(list, text.replace(',fr,', ',it,'))
  admin('users', 'import', list)
  t.is(await shown(), 'it')
})
