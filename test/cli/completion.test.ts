/** Completion: real shells are given what is typed, and offer what may follow, names of users included. */
import { spawn } from 'node:child_process'
import { access, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import test, { type ExecutionContext } from 'ava'
import { write } from '../../server/settings.js'
import { spawnCli } from '../_helpers/cli.js'
import { password, serviceForFile } from '../_helpers/service.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const program = fileURLToPath(new URL('../../cli/main.js', import.meta.url))

/** What `auth-admin __complete` offers for words as a shell has them. */
async function offers(env: Record<string, string>, ...words: string[]): Promise<string[]> {
  const { code, stdout } = await spawnCli(env, ['__complete', '--', ...words])
  if (code !== 0) throw new Error(`ended with ${code}`)
  return stdout.split('\n').filter(Boolean)
}

async function emptyFolder(t: ExecutionContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'auth-completion-'))
  t.teardown(() => rm(folder, { recursive: true, force: true }))
  return folder
}

/** The environment of somebody who is signed in at the service. */
async function signedIn(t: ExecutionContext) {
  const config = await emptyFolder(t)
  const env = { XDG_CONFIG_HOME: config, AUTH_DATA_DIR: join(config, 'none') }
  const url = `http://${write(service.service.addresses.admin!)}`
  const args = ['login', url, '--context', 'here', '--username', 'admin', '--password-file', '-']
  const { code, stderr } = await spawnCli(env, args, password)
  t.is(code, 0, stderr)
  return env
}

/** What bash has on its command line after Tab. */
async function tabInBash(env: Record<string, string>, line: string, folder: string): Promise<string[]> {
  const { stdout: script } = await spawnCli(env, ['completion', 'bash'])
  await writeFile(join(folder, 'completion.bash'), script)
  const wrapper = `#!/bin/sh\nexec '${process.execPath}' '${program}' "$@"\n`
  await writeFile(join(folder, 'auth-admin'), wrapper, { mode: 0o755 })
  const words = line.split(' ')
  const text = `. ./completion.bash
COMP_WORDS=(${words.map(word => `'${word.replaceAll("'", `'\\''`)}'`).join(' ')}); COMP_CWORD=${words.length - 1}
_auth_admin; printf '%s\\n' "\${COMPREPLY[@]}"`
  const child = spawn('bash', ['--norc', '-c', text], {
    cwd: folder,
    env: { ...env, PATH: `${folder}:${process.env.PATH}` },
  })
  let out = ''
  child.stdout.setEncoding('utf8').on('data', part => {
    out += part
  })
  await new Promise(resolve => child.once('close', resolve))
  return out.split('\n').filter(Boolean)
}

test('commands, options and choices are offered by what is typed of them', async t => {
  const env = { AUTH_DATA_DIR: await emptyFolder(t) }
  t.deepEqual(await offers(env, 'organ'), ['organizations'])
  t.true((await offers(env, 'users', '')).includes('show'))
  t.deepEqual(await offers(env, 'users', 'list', '--rol'), ['--role'])
  t.deepEqual(await offers(env, 'users', 'list', '--role', 'ROLE_A'), ['ROLE_ADMIN'])
  t.true((await offers(env, 'users', 'list', '--')).includes('--local'))
  t.deepEqual(await offers(env, 'completion', ''), ['bash', 'zsh', 'fish'])
  t.false((await offers(env, '')).includes('__complete'))
})

test('names of users and organizations come from the server where somebody is signed in', async t => {
  const env = await signedIn(t)
  const { username } = await service.signUp('ROLE_CLIENT')
  await service.organization({ name: 'Completa do Sul' })
  t.deepEqual(await offers(env, 'users', 'show', username.slice(0, 8)), [username])
  t.deepEqual(await offers(env, 'users', 'show', `'${username.slice(0, 8)}`), [username])
  t.deepEqual(await offers(env, 'organizations', 'show', 'completa d'), ['Completa do Sul'])
  t.deepEqual(await offers(env, 'users', 'list', '--organization', 'Compl'), ['Completa do Sul'])
  t.deepEqual(await offers(env, 'users', 'show', '--context', 'h'), ['here'])
})

test('nothing is started for a name: without a session there are none', async t => {
  const folder = await emptyFolder(t)
  t.deepEqual(await offers({ AUTH_DATA_DIR: folder, XDG_CONFIG_HOME: folder }, 'users', 'show', 'a'), [])
  t.deepEqual(await readdir(folder), [])
})

test('bash quotes what it offers and evaluates nothing that is typed', async t => {
  const env = await signedIn(t)
  const folder = await emptyFolder(t)
  const { username } = await service.signUp('ROLE_CLIENT')
  const typed = username.slice(0, 8)
  t.deepEqual(await tabInBash(env, `auth-admin users show ${typed}`, folder), [
    username.replace(/[() ]/g, sign => `\\${sign}`),
  ])
  await tabInBash(env, 'auth-admin users show $(touch$IFS./evaluated)', folder)
  await tabInBash(env, 'auth-admin users show `touch$IFS./evaluated`', folder)
  await t.throwsAsync(access(join(folder, 'evaluated')))
})
