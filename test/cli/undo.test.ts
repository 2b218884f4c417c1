/** A mistaken import: `imports undo` removes what it created, `users delete` deletes several users, and the audit log shows both. */
import { writeFile } from 'node:fs/promises'
import test from 'ava'
import { runCli } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'
import { folderForFile } from '../_helpers/files.js'
import { password, serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const cli = (...args: string[]) => runCli(service.env, args)
const sql = (text: string) => ask(service.env.DATABASE_URL!, text)

const { at } = folderForFile()

/** Imports users with a password, and returns the import and their ids. */
async function imported(...names: string[]): Promise<{ id: number; ids: number[] }> {
  const path = at(`${names[0]}.csv`)
  const rows = names.map(name => `${name},SP,Bauru,ROLE_CLIENT,${password},false`)
  await writeFile(path, `username,state,city,role,password,termsofusage\n${rows.join('\n')}\n`)
  const { stdout } = await cli('users', 'import', path, '--json')
  const found = await sql(`SELECT id FROM users WHERE username IN ('${names.join("','")}') ORDER BY id`)
  return { id: JSON.parse(stdout).id, ids: found.map(({ id }) => Number(id)) }
}

const left = async (ids: readonly number[]) =>
  (await sql(`SELECT id FROM users WHERE id IN (${ids.join(',')}) ORDER BY id`)).map(({ id }) => id)

test.serial(
  'an undo removes what the import created, says what stays and why, and ends with 6 if something does',
  async t => {
    const { id, ids } = await imported('undo-a', 'undo-b', 'undo-c')
    await service.login('undo-b')
    const unconfirmed = await cli('imports', 'undo', `${id}`)
    t.deepEqual([unconfirmed.code, unconfirmed.stdout], [2, ''])
    t.is(
      unconfirmed.stderr,
      `error: This permanently removes 2 users that import ${id} created. 1 stay, because something has touched them since. To confirm, pass --confirm ${id}.\n`,
    )
    t.is((await cli('imports', 'undo', `${id}`, '--confirm', `${id + 1}`)).code, 2)
    t.deepEqual(await left(ids), ids)

    const { code, stdout, stderr } = await cli('imports', 'undo', `${id}`, '--confirm', `${id}`)
    t.deepEqual([code, stderr], [6, ''])
    const [kept, summary] = stdout.trimEnd().split('\n')
    t.regex(kept!, new RegExp(`^${ids[1]} \\(undo-b\\) stays: signed in, \\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ$`))
    t.is(summary, `Import ${id} is undone in part: 2 users removed, 1 kept.`)
    t.deepEqual(await left(ids), [ids[1]])

    const nothing = await cli('imports', 'undo', `${id}`)
    t.deepEqual([nothing.code, nothing.stdout], [6, `Import ${id} left nothing to remove. 1 users stay.\n`])
    const again = await cli('imports', 'undo', `${id}`, '--confirm', `${id}`, '--json')
    t.is(again.code, 6)
    const { kept: stays, ...counts } = JSON.parse(again.stdout)
    t.deepEqual(counts, { id, kind: 'users', removed: 0, gone: 2 })
    t.is(stays.length, 1)
    t.like(stays[0], { id: ids[1], name: 'undo-b' })
    t.regex(stays[0].why, /^signed in, /)
    t.regex((await cli('imports', 'show', `${id}`)).stdout, /^undoTime +\d{4}-/m)
  },
)

test.serial(
  'an undo of everything ends with 0, also of organizations and as JSON, and the file can be imported again',
  async t => {
    const path = at('schools.csv')
    await writeFile(path, 'name,inep_code\nEscola Um,11111111\nEscola Dois,22222222\n')
    const { id } = JSON.parse((await cli('organizations', 'import', path, '--json')).stdout)
    const { code, stdout } = await cli('imports', 'undo', `${id}`, '--confirm', `${id}`, '--json')
    t.is(code, 0)
    t.deepEqual(JSON.parse(stdout), { id, kind: 'organizations', kept: [], removed: 2, gone: 0 })
    const again = await cli('organizations', 'import', path, '--json')
    t.like(JSON.parse(again.stdout), { created: 2, rejected: 0 })
    const undone = await cli(
      'imports',
      'undo',
      `${JSON.parse(again.stdout).id}`,
      '--confirm',
      `${JSON.parse(again.stdout).id}`,
    )
    t.is(undone.stdout, `Import ${JSON.parse(again.stdout).id} is undone: 2 organizations removed, 0 kept.\n`)
  },
)

test.serial('`users delete` deletes several users, and ends with 6 if one of them can’t be deleted', async t => {
  const { ids } = await imported('several-a', 'several-b', 'several-c')
  t.is((await cli('users', 'delete', 'several-a', `${ids[1]}`)).code, 2)
  const some = await cli('users', 'delete', 'several-a', `#${ids[1]}`, '--yes')
  t.deepEqual(some, {
    code: 0,
    stdout: `User ${ids[0]} (several-a) is deleted.\nUser ${ids[1]} (several-b) is deleted.\n`,
    stderr: '',
  })
  const part = await cli(
    'users',
    'delete',
    'several-a',
    'nobody',
    'admin',
    'several-c',
    '--yes',
    '--json',
    '--reason',
    'test',
  )
  t.is(part.code, 6)
  const { users, failed } = JSON.parse(part.stdout)
  t.deepEqual(
    users.map(({ id }: { id: number }) => id),
    [ids[0], ids[2]],
  )
  t.deepEqual(
    failed.map(({ user, reason, exitCode }: Record<string, unknown>) => [user, reason, exitCode]),
    [
      ['nobody', 'USER_NOT_FOUND', 3],
      ['admin', 'LAST_ADMINISTRATOR', 5],
    ],
  )
  t.regex(part.stderr, /^warning: nobody: There is no user nobody\..*\nwarning: admin: .*\n$/)
  t.is((await cli('users', 'delete', 'nobody', 'no-one', '--yes')).code, 3)
})

test.serial('`users delete --from-import` deletes all users that the import created, for 30 days', async t => {
  const { id, ids } = await imported('from-a', 'from-b', 'from-c')
  await service.login('from-b')
  await cli('users', 'erase', 'from-c', '--confirm', 'from-c')
  t.is((await cli('users', 'delete', '--from-import', `${id}`)).code, 2)
  t.is((await cli('users', 'delete', 'from-a', '--from-import', `${id}`, '--yes')).code, 2)
  t.is((await cli('users', 'delete', '--from-import', `${id}`, '--id', '7')).code, 2)
  const { code, stdout } = await cli('users', 'delete', '--from-import', `${id}`, '--yes', '--json')
  t.deepEqual([code, JSON.parse(stdout)], [0, { id, deleted: 2, already: 0, failed: [] }])
  t.is(
    (await cli('users', 'delete', '--from-import', `${id}`, '--yes')).stdout,
    `Users of import ${id} that are deleted: 0, and 2 already.\n`,
  )
  t.is((await cli('users', 'undelete', 'from-b')).code, 0)
  t.is((await sql(`SELECT count(*)::int AS n FROM users WHERE id = ${ids[0]} AND deleted_at IS NOT NULL`))[0]!.n, 1)
})
