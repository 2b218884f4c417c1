/** Files with secrets or personal data that commands write: nobody else can read them, or have them written elsewhere. */
import { spawnSync } from 'node:child_process'
import { chmod, chown, lstat, mkdir, readdir, readFile, stat, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import { installedRegistry, program, runCli } from '../_helpers/cli.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

const list = 'id,name\n999999,Escola\n'

/** Commands that write a file, and what is in it. */
const commands: Record<string, { args: (file: string, list: string) => string[]; holds: string; code: number }> = {
  'users export': { args: file => ['users', 'export', file], holds: 'admin', code: 0 },
  'users export --with-secrets': {
    args: file => ['users', 'export', file, '--with-secrets'],
    holds: 'password_hash',
    code: 0,
  },
  'organizations export': { args: file => ['organizations', 'export', file], holds: 'email', code: 0 },
  'organizations import --report': {
    args: (file, list) => ['organizations', 'import', list, '--report', file, '--dry-run'],
    holds: 'error_reason',
    code: 6,
  },
}

for (const [what, { args, holds, code }] of Object.entries(commands)) {
  test(`${what}: the file is its owner’s only, also where one was that others can read`, async t => {
    const env = await installedRegistry(t)
    const path = await temporaryFolder(t)
    await writeFile(join(path, 'list.csv'), list)
    const fresh = join(path, 'fresh.csv')
    const open = join(path, 'open.csv')
    await writeFile(open, 'former content')
    await chmod(open, 0o644)
    const reader = await readFile(open)
    for (const file of [fresh, open]) {
      const ran = await runCli(env, args(file, join(path, 'list.csv')))
      t.is(ran.code, code, ran.stderr)
      t.is((await stat(file)).mode & 0o777, 0o600)
      t.true((await readFile(file, 'utf8')).includes(holds))
    }
    t.is(String(reader), 'former content')
    t.deepEqual((await readdir(path)).sort(), ['fresh.csv', 'list.csv', 'open.csv'], 'nothing else is left')
  })

  test(`${what}: a link, a folder and a file of another user are refused and stay as they are`, async t => {
    const env = await installedRegistry(t)
    const path = await temporaryFolder(t)
    await writeFile(join(path, 'list.csv'), list)
    const target = join(path, 'target')
    await writeFile(target, 'former content')
    await symlink(target, join(path, 'link.csv'))
    await symlink(join(path, 'nothing'), join(path, 'dangling.csv'))
    await mkdir(join(path, 'folder.csv'))
    const refused: [name: string, says: RegExp][] = [
      ['link.csv', /link\.csv is a symbolic link.*name the file itself\./],
      ['dangling.csv', /dangling\.csv is a symbolic link/],
      ['folder.csv', /folder\.csv exists and is not a regular file: choose another file\./],
    ]
    if (process.getuid?.() === 0) {
      await writeFile(join(path, 'theirs.csv'), 'former content')
      await chown(join(path, 'theirs.csv'), 12345, 12345)
      refused.push(['theirs.csv', /theirs\.csv belongs to another user: choose another file/])
    }
    const before = (await readdir(path)).sort()
    for (const [name, says] of refused) {
      const { code, stderr } = await runCli(env, args(join(path, name), join(path, 'list.csv')))
      t.is(code, 1, stderr)
      t.regex(stderr, says)
    }
    t.deepEqual((await readdir(path)).sort(), before)
    t.is(await readFile(target, 'utf8'), 'former content')
    t.true((await lstat(join(path, 'link.csv'))).isSymbolicLink())
  })
}

test('an export to /dev/stdout or a descriptor of the shell is written there', async t => {
  if (process.platform === 'win32') return t.pass()
  const env = await installedRegistry(t)
  for (const target of ['/dev/stdout', '/dev/fd/3']) {
    const command = `"$0" "$1" users export ${target} --format csv --with-secrets 3>&1 | cat`
    const { stdout, stderr } = spawnSync('sh', ['-c', command, process.execPath, program], {
      env: { PATH: process.env.PATH, HOME: process.env.HOME, ...env },
      encoding: 'utf8',
    })
    t.regex(stdout, /^id,username.*password_hash/, stderr)
  }
})

test('an export that fails leaves the former file', async t => {
  const env = await installedRegistry(t)
  const path = await temporaryFolder(t)
  const file = join(path, 'users.csv')
  await writeFile(file, 'former content')
  const command = `ulimit -f 0 && exec "$0" "$1" users export "$2" --with-secrets`
  const { status, stderr } = spawnSync('sh', ['-c', `trap '' XFSZ; ${command}`, process.execPath, program, file], {
    env: { PATH: process.env.PATH, HOME: process.env.HOME, ...env },
    encoding: 'utf8',
  })
  t.is(status, 1, stderr)
  t.regex(stderr, /EFBIG/)
  t.is(await readFile(file, 'utf8'), 'former content')
  t.deepEqual(await readdir(path), ['users.csv'])
})

test('a backup and a new passphrase are their owner’s only, and no link is followed', async t => {
  const env = await installedRegistry(t)
  const path = await temporaryFolder(t)
  const [file, words] = [join(path, 'registry.age'), join(path, 'words')]
  await symlink(join(path, 'elsewhere'), join(path, 'link'))
  const refused = await runCli(env, ['backup', file, '--passphrase-file', join(path, 'link')])
  t.is(refused.code, 1)
  t.regex(refused.stderr, /link is a symbolic link/)
  const other = await runCli(env, ['backup', join(path, 'link'), '--passphrase-file', words])
  t.is(other.code, 1)
  t.regex(other.stderr, /link is a symbolic link/)
  const { code, stderr } = await runCli(env, ['backup', file, '--passphrase-file', words])
  t.is(code, 0, stderr)
  for (const each of [file, words]) t.is((await stat(each)).mode & 0o777, 0o600)
  t.deepEqual((await readdir(path)).sort(), ['link', 'registry.age', 'words'])
})
