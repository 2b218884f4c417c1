/** Completion in real shells: commands, options, and names of users. */
import { spawnSync } from 'node:child_process'
import { readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { spawn as spawnTerminal } from '@lydell/node-pty'
import test, { type ExecutionContext } from 'ava'
import { remoteUser, runCli } from '../_helpers/cli.js'
import { serviceForFile } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { waitFor } from '../_helpers/wait.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const program = fileURLToPath(new URL('../../cli/main.js', import.meta.url))

/** The offers of `auth-admin __complete` for the words of a shell. */
async function offers(env: Record<string, string>, ...words: string[]): Promise<string[]> {
  const { code, stdout } = await runCli(env, ['__complete', '--', ...words])
  if (code !== 0) throw new Error(`ended with ${code}`)
  return stdout.split('\n').filter(Boolean)
}

/** The environment of a user who is signed in at the service. */
async function signedIn(t: ExecutionContext) {
  const { env, login } = await remoteUser(t, service)
  const { code, stderr } = await login('--context', 'here')
  t.is(code, 0, stderr)
  return env
}

/** Shells, each with how it loads the script and shows that it is ready. */
const shells = {
  bash: {
    args: ['--norc', '--noprofile', '-i'],
    script: 'auth-admin.bash',
    start: "PS1='re''ady> '; . ./auth-admin.bash",
  },
  zsh: {
    args: ['-f', '-i'],
    script: '_auth-admin',
    // Its Tab key also runs a typed substitution, for any command; this binding only completes.
    start: "PROMPT='re''ady> '; bindkey '^I' complete-word; fpath=($PWD $fpath); autoload -U compinit; compinit -u -D",
  },
  fish: {
    args: ['--no-config', '-i'],
    script: 'auth-admin.fish',
    start: "function fish_prompt; echo -n 're''ady> '; end; . ./auth-admin.fish",
  },
} as const
type Shell = keyof typeof shells

/**
 * Types at a shell in a terminal, then Tab and, if the command should run, Enter. Returns the arguments of the command. The
 * shell's folder has no file `evaluated`, which typed or offered text would create if it were evaluated.
 */
async function tab(t: ExecutionContext, shell: Shell, env: Record<string, string>, typed: string, runs = true) {
  const folder = await temporaryFolder(t)
  const { args, script, start } = shells[shell]
  await writeFile(join(folder, script), (await runCli(env, ['completion', shell])).stdout)
  const answer = `'${process.execPath}' '${program}' "$@" | tee names; mv names offered`
  const note = `printf '%s\\0' "$@" >noted; mv noted ran`
  const wrapper = `#!/bin/sh\nif [ "$1" = __complete ]; then ${answer}; else ${note}; fi\n`
  await writeFile(join(folder, 'auth-admin'), wrapper, { mode: 0o755 })
  const terminal = spawnTerminal(shell, [...args], {
    cols: 200,
    cwd: folder,
    env: { ...env, HOME: folder, LANG: 'C.UTF-8', TERM: 'xterm-256color', PATH: `${folder}:${process.env.PATH}` },
  })
  const ended = new Promise(resolve => terminal.onExit(resolve))
  t.teardown(() => {
    terminal.kill('SIGKILL')
    return ended
  })
  let screen = ''
  terminal.onData(data => {
    screen += data
  })
  const read = (file: string) => readFile(join(folder, file), 'utf8').catch(() => undefined)
  terminal.write(`${start}\r`)
  await waitFor(
    () => screen.includes('ready> '),
    () => screen,
  )
  terminal.write(typed)
  for (let offered = ''; offered === ''; ) {
    terminal.write('\t')
    offered = await waitFor(
      () => read('offered'),
      () => screen,
    )
    await rm(join(folder, 'offered'))
    // A busy machine may take longer than the time limit of completion.
    if (!runs) break
  }
  if (runs) terminal.write('\r')
  const ran = runs
    ? await waitFor(
        () => read('ran'),
        () => screen,
      )
    : ''
  t.is(await read('evaluated'), undefined, typed)
  return ran.split('\0').slice(0, -1)
}

test('commands, options and choices are completed from their beginning', async t => {
  const env = { AUTH_DATA_DIR: await temporaryFolder(t) }
  t.deepEqual(await offers(env, 'organ'), ['organizations'])
  t.true((await offers(env, 'users', '')).includes('show'))
  t.deepEqual(await offers(env, 'users', 'list', '--rol'), ['--role'])
  t.deepEqual(await offers(env, 'users', 'list', '--role', 'ROLE_A'), ['ROLE_ADMIN'])
  t.true((await offers(env, 'users', 'list', '--')).includes('--local'))
  t.deepEqual(await offers(env, 'completion', ''), ['bash', 'zsh', 'fish'])
  t.false((await offers(env, '')).includes('__complete'))
})

test('names of users and organizations are completed by the server of the current session', async t => {
  const env = await signedIn(t)
  const { username } = await service.signUp('ROLE_CLIENT')
  await service.organization({ name: 'Completa do Sul' })
  t.deepEqual(await offers(env, 'users', 'show', username.slice(0, 8)), [username])
  t.deepEqual(await offers(env, 'users', 'show', `'${username.slice(0, 8)}`), [username])
  t.deepEqual(await offers(env, 'organizations', 'show', 'completa d'), ['Completa do Sul'])
  t.deepEqual(await offers(env, 'users', 'list', '--organization', 'Compl'), ['Completa do Sul'])
  t.deepEqual(await offers(env, 'users', 'show', '--context', 'h'), ['here'])
})

test('completion starts no service: without a session it offers no names', async t => {
  const folder = await temporaryFolder(t)
  t.deepEqual(await offers({ AUTH_DATA_DIR: folder, XDG_CONFIG_HOME: folder }, 'users', 'show', 'a'), [])
  t.deepEqual(await readdir(folder), [])
})

for (const shell of Object.keys(shells) as Shell[]) {
  const missing = spawnSync(shell, ['-c', 'true']).error !== undefined
  const title = `${shell} quotes what it offers, and evaluates nothing that is typed or offered`
  const inShell = missing ? test.skip : test
  inShell(missing ? `${title} (missing: ${shell})` : title, async t => {
    const env = await signedIn(t)
    const odd = `odd${shell} '"\`touch evaluated\`$(touch evaluated);*~&\\`
    const address = `${shell}@example.org`
    const form = ['--role', 'ROLE_CLIENT', '--state', 'SP', '--city', 'Bauru']
    const scheme = `${shell}:a=b`
    for (const username of [odd, address, scheme]) {
      const { code, stderr } = await runCli(service.env, ['users', 'create', '--username', username, ...form])
      t.is(code, 0, stderr)
    }
    const users = 'auth-admin users show'
    const becomes = async (typed: string, name: string) =>
      t.deepEqual(await tab(t, shell, env, `${users} ${typed}`), ['users', 'show', name], typed)
    for (const open of ['', "'", '"']) await becomes(`${open}odd${shell}`, odd)
    await becomes(`${shell}@ex`, address)
    await becomes(`${shell}:a`, scheme)
    for (const open of ['', "'"]) await tab(t, shell, env, `${users} ${open}$(touch evaluated)${open}`, false)
  })
}
