/** Completion in real shells: commands, options, and contexts. */
import { spawnSync } from 'node:child_process'
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { spawn as spawnTerminal } from '@lydell/node-pty'
import test, { type ExecutionContext } from 'ava'
import { program, runCli } from '../_helpers/cli.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { testWith } from '../_helpers/tools.js'
import { waitFor } from '../_helpers/wait.js'

/** Asserts that `auth-admin __complete` offers these, for the words of a shell. */
async function offers(t: ExecutionContext, env: Record<string, string>, cases: Record<string, string[]>) {
  for (const [words, offered] of Object.entries(cases)) {
    const { code, stdout } = await runCli(env, ['__complete', '--', ...words.split('/')])
    t.deepEqual([code, stdout.split('\n').filter(Boolean)], [0, offered], words)
  }
}

/** The environment of a user with these contexts. */
async function withContexts(t: ExecutionContext, ...names: string[]) {
  const XDG_CONFIG_HOME = await temporaryFolder(t)
  const contexts = Object.fromEntries(
    names.map(name => [name, { url: 'https://auth.example:50052', tokenFile: '/none' }]),
  )
  await mkdir(join(XDG_CONFIG_HOME, 'auth-admin'))
  await writeFile(join(XDG_CONFIG_HOME, 'auth-admin', 'contexts.json'), JSON.stringify({ contexts }))
  return { XDG_CONFIG_HOME }
}

/** Shells, each with its script, how it loads the script and shows that it is ready, and how it starts. */
const shells = {
  bash: ['auth-admin.bash', "PS1='re''ady> '; . ./auth-admin.bash", '--norc', '--noprofile', '-i'],
  // Its Tab key also runs a typed substitution, for any command; this binding only completes.
  zsh: [
    '_auth-admin',
    "PROMPT='re''ady> '; bindkey '^I' complete-word; fpath=($PWD $fpath); autoload -U compinit; compinit -u -D",
    ...['-f', '-i'],
  ],
  fish: ['auth-admin.fish', "function fish_prompt; echo -n 're''ady> '; end; . ./auth-admin.fish", '--no-config', '-i'],
} as const
type Shell = keyof typeof shells

/**
 * Types at a shell in a terminal, then Tab and, if the command should run, Enter. Returns the arguments of the command. The
 * shell's folder has no file `evaluated`, which typed or offered text would create if it were evaluated.
 */
async function tab(t: ExecutionContext, shell: Shell, env: Record<string, string>, typed: string, runs = true) {
  const folder = await temporaryFolder(t)
  const [script, start, ...args] = shells[shell]
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
  const seen = (file: string) =>
    waitFor(
      () => read(file),
      () => screen,
    )
  await waitFor(
    () => screen.includes('ready> '),
    () => screen,
  )
  terminal.write(typed)
  for (let offered = ''; offered === ''; ) {
    terminal.write('\t')
    offered = await seen('offered')
    await rm(join(folder, 'offered'))
    // A busy machine may take longer than the time limit of completion.
    if (!runs) break
  }
  if (runs) terminal.write('\r')
  const ran = runs ? await seen('ran') : ''
  t.is(await read('evaluated'), undefined, typed)
  return ran.split('\0').slice(0, -1)
}

test('commands, options and choices are completed from their beginning, without a service and without names', async t => {
  const folder = await temporaryFolder(t)
  await offers(
    t,
    { AUTH_DATA_DIR: folder, XDG_CONFIG_HOME: folder },
    {
      organ: ['organizations'],
      'users/sho': ['show'],
      'users/list/--rol': ['--role'],
      'users/list/--loc': ['--local'],
      'users/list/--role/ROLE_A': ['ROLE_ADMIN'],
      'completion/': ['bash', 'zsh', 'fish'],
      __: [],
      'users/show/a': [],
    },
  )
  t.deepEqual(await readdir(folder), [])
})

test('contexts are completed, without those that a shell would have to quote', async t => {
  const env = await withContexts(t, 'prod', 'auth.example.org:50052', '$(touch evaluated)')
  await offers(t, env, {
    'users/show/--context/p': ['prod'],
    'contexts/': ['prod', 'auth.example.org:50052'],
  })
})

for (const shell of Object.keys(shells) as Shell[]) {
  const isThere = spawnSync(shell, ['-c', 'true']).error === undefined
  testWith(shell, isThere)(`${shell} completes, and evaluates nothing that is typed`, async t => {
    const env = await withContexts(t, 'auth.example.org:50052')
    for (const [typed, becomes] of [
      ['auth-admin organi', ['organizations']],
      ['auth-admin users lis', ['users', 'list']],
      ['auth-admin users list --ro', ['users', 'list', '--role']],
      ['auth-admin contexts auth.ex', ['contexts', 'auth.example.org:50052']],
      ['auth-admin contexts auth.example.org:50', ['contexts', 'auth.example.org:50052']],
    ] as const)
      t.deepEqual(await tab(t, shell, env, typed), becomes, typed)
    for (const open of ['', "'"])
      await tab(t, shell, env, `auth-admin users show ${open}$(touch evaluated)${open}`, false)
  })
}
