/** `auth-admin backup` and `restore`: what is restored and what isn't, always entirely or not at all. */
import { readdir, readFile, stat, unlink, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { contents, done, newIdentity, textOf, writeText } from '../_helpers/backups.js'
import { installedRegistry, keys, openTerminal, runCli, spawnCli, startCli } from '../_helpers/cli.js'
import { ask, freshDatabase, hold } from '../_helpers/database.js'
import { addUser, openModels } from '../_helpers/models.js'
import { password, signUpForm, startTestService } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { idOf } from '../_helpers/tokens.js'
import { nextVersion, runVersion } from '../_helpers/versions.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

/** All tables: those in a backup, and those that are excluded. */
const tables = {
  held: [
    'answers',
    'attempts',
    'audit_checkpoint',
    'audit_events',
    'audit_head',
    'audit_staged',
    'buckets',
    'data_keys',
    'email_quotas',
    'erased_users',
    'former_usernames',
    'import_batches',
    'import_records',
    'imports',
    'known_addresses',
    'organizations',
    'provider_keys',
    'question_aliases',
    'questions',
    'reserved_ids',
    'services',
    'token_issuer',
    'totp_secrets',
    'unmatched_answers',
    'users',
  ],
  // A stolen backup must contain no usable credentials, and a restore must not bring back used ones.
  excludedTables: ['creation_requests', 'emails', 'mailed_keys', 'processes', 'service_keys', 'signing_keys'],
  // The header of a backup contains it.
  ledger: ['migrations'],
}

const otherMasterKey = Buffer.alloc(32, 9).toString('base64')

/** Another empty database, with another master key. */
async function elsewhere(
  t: ExecutionContext,
  from?: string,
): Promise<Record<string, string> & { DATABASE_URL: string }> {
  return { DATABASE_URL: await freshDatabase(t, from ? { from } : {}), AUTH_MASTER_KEY: otherMasterKey }
}

/** A registry with users, a backup of it, and the key of the backup. */
async function backedUp(t: ExecutionContext, count = 1) {
  const folder = await temporaryFolder(t)
  const env = { DATABASE_URL: await freshDatabase(t), AUTH_MASTER_KEY: Buffer.alloc(32, 7).toString('base64') }
  const models = await openModels(t, env.DATABASE_URL)
  await addUser(models, 'ana0', 'ROLE_CLIENT', 'ana0@example.org')
  // The others are copies of that user.
  const columns = 'password_hash, state, city, terms_of_usage, role'
  await ask(
    env.DATABASE_URL,
    `INSERT INTO users (username, username_key, username_skeleton, nickname, nickname_key, nickname_skeleton, ${columns})
      SELECT 'ana' || n, 'ana' || n, 'ana' || n, 'ana' || n, 'ana' || n, 'ana' || n, ${columns}
      FROM users, generate_series(1, ${count - 1}) n`,
  )
  const file = join(folder, 'registry.age')
  const lock = await newIdentity(folder)
  done(await runCli(env, ['backup', file, '--recipient', lock.recipient]))
  return { ...lock, folder, env, models, file }
}

test('after a restore into another database with another master key all users can log in, and no earlier token or mailed key is valid', async t => {
  const folder = await temporaryFolder(t)
  const service = await startTestService(t)
  const organization = await service.organization()
  await service.institution(organization)
  const email = 'bia@example.org'
  const user = await service.signUp('ROLE_CLIENT', { email })
  const answers = [1, 2].map(id => ({ forgotpasswordquestionsid: id, answer: `resposta ${id}` }))
  for (const body of answers)
    t.is(
      (
        await service.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', {
          token: user.token,
          body,
        })
      ).status,
      200,
    )
  await service.login(user.username)
  await service.registry.mailedKeys.replace(idOf(user.token), 'recovery', 'ABCDEFGH')
  await service.registry.emails.add(
    { kind: 'recovery-key', stage: 'ready', parameters: { userId: idOf(user.token), to: 'x' } },
    'en',
  )
  await ask(
    service.env.DATABASE_URL!,
    `INSERT INTO totp_secrets (user_id, secret_sealed) VALUES (1, 'sealed secret of one-time codes')`,
  )
  const before = await contents(service.env.DATABASE_URL!)

  const { recipient, identity, secret } = await newIdentity(folder)
  const file = join(folder, 'registry.age')
  const made = JSON.parse(done(await spawnCli(service.env, ['backup', file, '--recipient', recipient, '--json'])))
  t.deepEqual([made.file, made.rows.users], [file, 3])
  t.deepEqual(
    Object.keys(made.rows).sort(),
    tables.held.map(name => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase())).sort(),
  )
  // A new table must be added to one of the lists.
  t.deepEqual(Object.keys(before).sort(), Object.values(tables).flat().sort())
  t.is((await stat(file)).mode & 0o777, 0o600)
  t.is(JSON.parse((await textOf(file, secret)).split('\n')[1]!).masterKey, service.env.AUTH_MASTER_KEY)

  const there = await elsewhere(t)
  const restored = JSON.parse(done(await runCli(there, ['restore', file, '--identity', identity, '--json'])))
  t.deepEqual([restored.backupTime, restored.rows], [made.backupTime, made.rows])
  const after = await contents(there.DATABASE_URL)
  for (const table of [
    'users',
    'organizations',
    'provider_keys',
    'questions',
    'answers',
    'known_addresses',
    'token_issuer',
    'totp_secrets',
  ])
    t.deepEqual(after[table], before[table], table)
  t.is(before.totp_secrets!.length, 1)
  t.deepEqual([after.mailed_keys, after.emails, after.processes, after.signing_keys!.length], [[], [], [], 1])
  t.true(before.mailed_keys!.length > 0)

  const restoredService = await startTestService(t, there)
  t.is((await service.request('GET', '/users/me', { token: user.token })).status, 200)
  const refusal = await restoredService.request('GET', '/users/me', { token: user.token })
  t.is(refusal.json.reason, 'INVALID_TOKEN')
  const token = await restoredService.login(user.username)
  t.is((await restoredService.request('GET', '/users/me', { token })).json.nickname, user.nickname)
  const partner = await restoredService.signUp('ROLE_INSTITUTION')
  // Ids of users who signed up after the backup aren't reused.
  t.true(idOf(partner.token) > idOf(user.token) + 1000)

  done(await runCli(there, ['audit', 'verify']))
  const { events } = JSON.parse(done(await runCli(there, ['audit', 'list', '--action', 'registry.*', '--json'])))
  const restore = events.find(({ action }: { action: string }) => action === 'registry.restore')
  t.is(restore.object, `backup:${made.backupTime}`)
  t.regex(restore.actor, /^cli:/)
  const { events: taken } = JSON.parse(
    done(await runCli(service.env, ['audit', 'list', '--action', 'registry.backup', '--json'])),
  )
  t.is(taken.length, 1)
})

test('restored texts equal the originals exactly, even if they contain delimiters of the format', async t => {
  const { env, folder, recipient, identity } = await backedUp(t)
  const odd = ['\\.', '\\N', 'a\tb\nc\\', '"};{', '{"end":true}', '\u{1f9a5} ção', `\n${'x'.repeat(200_000)}\n\\.\n`]
  const client = await hold(t, env.DATABASE_URL)
  await client.query("INSERT INTO token_issuer (issuer, audience) VALUES ('http://a.example', E'ends so\\\\.')")
  for (const [index, text] of odd.entries())
    await client.query('INSERT INTO questions (question, question_key) VALUES ($1, $2)', [text, `${text} ${index}`])
  const before = await contents(env.DATABASE_URL)
  const file = join(folder, 'odd.age')
  done(await runCli(env, ['backup', file, '--recipient', recipient]))
  const there = await elsewhere(t)
  done(await runCli(there, ['restore', file, '--identity', identity]))
  const after = await contents(there.DATABASE_URL)
  for (const table of ['questions', 'token_issuer', 'users']) t.deepEqual(after[table], before[table], table)
  t.true(after.token_issuer![0]!.includes('\\.'))
})

test('a restore keeps reserved ids: a later import creates records with them, but not with the id of an erased user', async t => {
  const { env, folder, recipient, identity } = await backedUp(t)
  const list = async (to: Record<string, string>, noun: string, rows: readonly string[]) => {
    const path = join(folder, 'list.csv')
    await writeFile(path, rows.join('\n'))
    const { stdout } = await runCli(to, [noun, 'import', path, '--keep-ids', '--json'])
    const { created, rejected } = JSON.parse(stdout)
    return { created, rejected }
  }
  const head = 'id,username,state,city,role,termsofusage'
  const user = (id: number) => `${id},kept${id},SP,Bauru,ROLE_CLIENT,1`
  t.deepEqual(await list(env, 'organizations', ['id,name', '2,Dois', '9,Nove']), { created: 2, rejected: 0 })
  t.deepEqual(await list(env, 'users', [head, user(20), user(50)]), { created: 2, rejected: 0 })
  done(await runCli(env, ['users', 'delete', 'kept20', '--yes']))
  done(await runCli(env, ['users', 'erase', 'kept20', '--confirm', 'kept20']))
  const file = join(folder, 'kept.age')
  done(await runCli(env, ['backup', file, '--recipient', recipient]))
  const there = await elsewhere(t)
  done(await runCli(there, ['restore', file, '--identity', identity]))
  t.deepEqual(await list(there, 'organizations', ['id,name', '2,Dois', '8,Oito']), { created: 1, rejected: 0 })
  t.deepEqual(await list(there, 'users', [head, user(20), user(21), user(51)]), { created: 1, rejected: 2 })
  done(await runCli(there, ['organizations', 'create', '--name', 'Nova']))
  const ids = await ask(there.DATABASE_URL, 'SELECT id FROM organizations ORDER BY id')
  t.deepEqual(
    ids.map(({ id }) => id),
    [2, 8, 9, 10],
  )
})

test('a backup is a consistent snapshot, even if users sign up meanwhile', async t => {
  const folder = await temporaryFolder(t)
  const service = await startTestService(t)
  await service.signUp('ROLE_CLIENT')
  const { recipient, identity } = await newIdentity(folder)
  const file = join(folder, 'registry.age')
  const holder = await hold(t, service.env.DATABASE_URL!)
  // After the users, before the events; no sign-up needs it.
  await holder.query('BEGIN; LOCK TABLE answers IN ACCESS EXCLUSIVE MODE')
  const backup = spawnCli(service.env, ['backup', file, '--recipient', recipient, '--json'])
  const stuck = `SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.relation = 'answers'::regclass AND NOT l.granted AND a.query LIKE 'COPY%'`
  await waitForValue(
    () => ask(service.env.DATABASE_URL!, stuck),
    value => value.length === 1,
  )
  for (let n = 0; n < 3; n++) await service.signUp('ROLE_CLIENT')
  await holder.query('COMMIT')
  const made = JSON.parse(done(await backup))
  t.is(made.rows.users, 2)

  const there = await elsewhere(t)
  done(await runCli(there, ['restore', file, '--identity', identity]))
  const [counts] = await ask(
    there.DATABASE_URL,
    `SELECT (SELECT count(*)::int FROM users WHERE username <> 'admin') AS users,
      (SELECT count(*)::int FROM audit_events WHERE action = 'user.sign-up') AS events`,
  )
  t.deepEqual(counts, { users: 1, events: 1 })
  done(await runCli(there, ['audit', 'verify']))
  t.is((await ask(service.env.DATABASE_URL!, 'SELECT FROM users')).length, 5)
})

test('a backup can’t be read without its key, and neither command prints a secret', async t => {
  const { env, file, folder, models } = await backedUp(t)
  const planted = ['ana0', 'ana0@example.org', env.AUTH_MASTER_KEY, 'Escola Plantada']
  await models.database.transact(transaction => models.organizations.add({ name: planted[3]! }, transaction))
  const words = join(folder, 'passphrase')
  const other = join(folder, 'other.age')
  const ran = await spawnCli(env, ['backup', other, '--passphrase-file', words])
  const passphrase = (await readFile(words, 'utf8')).trim()
  t.regex(ran.stderr, new RegExp(`^${words} is created, with a new passphrase: keep it apart from the backup\\.$`, 'm'))
  t.regex(passphrase, /^([\da-f]{4}-){7}[\da-f]{4}$/)
  t.is((await stat(words)).mode & 0o777, 0o600)
  for (const path of [file, other]) {
    const bytes = await readFile(path, 'latin1')
    for (const text of [...planted, passphrase, 'username_key'])
      for (const form of [
        text,
        Buffer.from(text).toString('base64').replace(/=+$/, ''),
        Buffer.from(text).toString('hex'),
      ])
        t.false(bytes.includes(form), form)
  }
  const there = await elsewhere(t)
  const back = await spawnCli(there, ['restore', other, '--passphrase-file', '-'], `${passphrase}\n`)
  for (const text of [ran, back]) {
    t.is(text.code, 0, text.stderr)
    for (const secret of [passphrase, env.AUTH_MASTER_KEY]) t.false((text.stdout + text.stderr).includes(secret))
  }
  t.is((await ask(there.DATABASE_URL, "SELECT FROM organizations WHERE name = 'Escola Plantada'")).length, 1)
})

test('restore changes nothing and creates no database if the backup is truncated or altered, or the key is wrong', async t => {
  const { file, folder, identity, secret, recipient } = await backedUp(t, 2500)
  const there = await elsewhere(t)
  done(await runCli({ ...there, AUTH_ADMIN_PASSWORD: password }, ['install']))
  const before = await contents(there.DATABASE_URL)
  const whole = await readFile(file)
  t.true(whole.length > 3 * 65_536, `several of age’s chunks: ${whole.length}`)
  const text = await textOf(file, secret)

  const tried: [what: string, bytes: Buffer | string, says: RegExp][] = []
  const header = whole.indexOf('\n--- ') + 48
  const chunk = 65_536 + 16
  for (const length of [
    0,
    10,
    100,
    header,
    header + 16,
    header + 16 + chunk,
    header + 16 + 2 * chunk,
    whole.length - 1,
  ])
    tried.push([`cut off at ${length}`, whole.subarray(0, length), /damaged|not a backup/])
  for (const at of [30, 60, 130, header + 5, header + 100, header + 16 + chunk + 9, whole.length - 1]) {
    const altered = Buffer.from(whole)
    altered[at]! ^= 1
    tried.push([`bit at ${at}`, altered, /damaged|doesn’t open|not a backup/])
  }
  // The encryption is valid, its text isn't.
  const ends = [...text.matchAll(/\n\\\.\n/g)].map(({ index }) => index + 4)
  for (const length of [
    5,
    text.indexOf('\n') + 1,
    text.indexOf('{"table"') + 9,
    ends[0]! + 2,
    ends.at(-1)!,
    text.length - 1,
  ])
    tried.push([`text cut off at ${length}`, text.slice(0, length), /damaged|not a backup/])
  tried.push(['a row less', text.replace(/\n\d+\tana7\t.*/, ''), /damaged/])
  tried.push(['trailing data', `${text}more\n`, /damaged/])
  tried.push(['a row twice', text.replace(/(\n\d+\tana7\t.*)/, '$1$1').replace('"users":2500', '"users":2501'), /./])
  tried.push(['a table of another name', text.replaceAll('"users"', '"migrations"'), /damaged/])
  tried.push([
    'a column that executes',
    text.replace('"columns":["id"', '"columns":["id) FROM STDIN; DROP TABLE users;--"'),
    /damaged/,
  ])
  t.is(tried.filter(([, bytes]) => bytes === text).length, 0)

  const broken = join(folder, 'broken.age')
  const nowhere = await temporaryFolder(t)
  for (const [what, bytes, says] of tried) {
    if (typeof bytes === 'string') await writeText(broken, bytes, recipient)
    else await writeFile(broken, bytes)
    const args = ['restore', broken, '--identity', identity, '--replace', '--yes', '--json']
    const { code, stdout, stderr } = await runCli(there, args)
    t.is(code, 1, what)
    t.regex(stderr, /^error: [^\n]+\n$/, what)
    t.regex(JSON.parse(stdout).error.message, says, what)
    t.deepEqual(await contents(there.DATABASE_URL), before, what)
  }
  const { identity: wrong } = await newIdentity(folder)
  const notMine = await runCli(there, ['restore', file, '--identity', wrong, '--replace', '--yes'])
  t.deepEqual([notMine.code, notMine.stderr], [1, 'error: The identity doesn’t open the backup.\n'])
  await writeFile(broken, whole.subarray(0, -1))
  const embedded = await runCli({ AUTH_DATA_DIR: nowhere }, ['restore', broken, '--identity', identity])
  t.is(embedded.code, 1)
  t.deepEqual(await readdir(nowhere), [])
  t.deepEqual(await contents(there.DATABASE_URL), before)
  // The undamaged backup still works.
  done(await runCli(there, ['restore', file, '--identity', identity, '--replace', '--yes']))
  t.is((await ask(there.DATABASE_URL, 'SELECT FROM users')).length, 2500)
})

test('a wrong or missing passphrase, or a file that isn’t a backup, gives a one-sentence error and changes nothing', async t => {
  const { env, folder } = await backedUp(t)
  const file = join(folder, 'words.age')
  const words = join(folder, 'words')
  await writeFile(words, 'correct horse battery staple\n')
  done(await runCli(env, ['backup', file, '--passphrase-file', words]))
  t.is(await readFile(words, 'utf8'), 'correct horse battery staple\n', 'a passphrase that exists is used')
  const there = await elsewhere(t)
  const before = await contents(there.DATABASE_URL)
  const wrong = await runCli(there, ['restore', file, '--passphrase-file', '-'], 'correct horse battery stable')
  t.deepEqual([wrong.code, wrong.stderr], [1, 'error: The passphrase doesn’t open the backup.\n'])
  const other = await elsewhere(t)
  const right = ['restore', file, '--passphrase-file', '-', '--json']
  t.is(JSON.parse(done(await runCli(other, right, 'correct horse battery staple'))).rows.users, 1)
  const none = await runCli(there, ['restore', file])
  t.is(none.code, 2)
  t.regex(none.stderr, /--passphrase-file/)
  t.regex(
    (await runCli(there, ['restore', words, '--passphrase-file', words])).stderr,
    /^error: The file is not a backup/,
  )
  t.regex((await runCli(there, ['restore', '/none', '--passphrase-file', words])).stderr, /can’t be read \(ENOENT\)/)
  t.deepEqual(await contents(there.DATABASE_URL), before)
  await writeFile(words, 'short')
  t.regex((await runCli(env, ['backup', join(folder, 'x.age'), '--passphrase-file', words])).stderr, /too short/)
  t.false((await readdir(folder)).includes('x.age'))
})

test('restore into a registry with users needs `--replace` and a confirmation', async t => {
  const { file, identity } = await backedUp(t)
  const there = await installedRegistry(t)
  const before = await contents(there.DATABASE_URL)
  const restore = (...more: string[]) => runCli(there, ['restore', file, '--identity', identity, ...more])
  const refusal = await restore('--yes')
  t.is(refusal.code, 1)
  t.regex(refusal.stderr, /^error: The existing registry has 1 user: [^\n]*--replace\.\n$/)
  const unsure = await restore('--replace')
  t.is(unsure.code, 2)
  t.regex(unsure.stderr, /--yes/)
  t.deepEqual(await contents(there.DATABASE_URL), before)
  const foreign = await freshDatabase(t, { from: 'template0' })
  await ask(foreign, 'CREATE TABLE users (name text)')
  const args = ['restore', file, '--identity', identity, '--replace', '--yes']
  t.regex((await runCli({ ...there, DATABASE_URL: foreign }, args)).stderr, /tables of another program/)
  t.deepEqual(await contents(foreign), { users: [] })
  done(await restore('--replace', '--yes'))
  t.deepEqual(await ask(there.DATABASE_URL, 'SELECT username FROM users'), [{ username: 'ana0' }])
  done(await runCli(there, ['audit', 'verify']))
})

test('restore refuses a database in use, and doesn’t affect its users', async t => {
  const { file, identity } = await backedUp(t)
  const service = await startTestService(t)
  const user = await service.signUp('ROLE_CLIENT')
  const args = ['restore', file, '--identity', identity, '--replace', '--yes']
  const { code, stderr } = await runCli(service.env, args)
  t.is(code, 1)
  t.regex(stderr, /^error: The database is in use \(connections: \d+\): stop the service[^\n]*\n$/)
  t.is((await service.request('GET', '/users/me', { token: user.token })).status, 200)
})

test('a newer version restores and migrates a backup, and this version refuses a backup of a newer one', async t => {
  const { env, folder, file, recipient, identity } = await backedUp(t)
  const next = await nextVersion(t, '-- expand\nALTER TABLE users ADD COLUMN extra text;')
  for (const from of ['template0', undefined]) {
    const there = await elsewhere(t, from)
    done(await runVersion(next, there, ['restore', file, '--identity', identity]))
    t.deepEqual(await ask(there.DATABASE_URL, 'SELECT username, extra FROM users'), [{ username: 'ana0', extra: null }])
    t.deepEqual(JSON.parse(done(await runVersion(next, there, ['migrate', 'status', '--json']))).pending, [])
    done(await runCli(there, ['audit', 'verify']))
  }

  done(await runVersion(next, env, ['migrate']))
  const newer = join(folder, 'newer.age')
  done(await runVersion(next, env, ['backup', newer, '--recipient', recipient]))
  const there = await elsewhere(t)
  const before = await contents(there.DATABASE_URL)
  const restored = await runCli(there, ['restore', newer, '--identity', identity])
  t.deepEqual(
    [restored.code, restored.stderr],
    [1, 'error: The backup is of a newer version (9999-next.sql): restore it with that version.\n'],
  )
  t.deepEqual(await contents(there.DATABASE_URL), before)
  // Neither a restore into a newer database, nor a backup of it.
  const into = await runCli(env, ['restore', file, '--identity', identity, '--replace', '--yes'])
  t.regex(into.stderr, /^error: The database is of a newer version[^\n]*\n$/)
  const from = await runCli(env, ['backup', join(folder, 'x.age'), '--recipient', recipient])
  t.regex(from.stderr, /^error: The database is of a newer version[^\n]*\n$/)
  t.false((await readdir(folder)).includes('x.age'))
})

test('another baseline of the backup or the database, or another format, is refused with a one-sentence error', async t => {
  const { file, recipient, identity, secret } = await backedUp(t)
  const text = await textOf(file, secret)
  const there = await elsewhere(t)
  const before = await contents(there.DATABASE_URL)
  const digest = /"digest":"[\da-f]{64}"/
  t.regex(text, digest)
  for (const [changed, says] of [
    [
      text.replace(digest, `"digest":"${'0'.repeat(64)}"`),
      'The backup has another baseline than this version (0001-baseline.sql): restore it with the version that made it.',
    ],
    [
      text.replace(digest, '"other":1'),
      'The backup has another baseline than this version (0001-baseline.sql): restore it with the version that made it.',
    ],
    [
      text.replace('backup 1\n', 'backup 2\n'),
      'The backup is in a format that this version doesn’t know: use the version that made it.',
    ],
  ] as const) {
    await writeText(file, changed, recipient)
    const { code, stderr } = await runCli(there, ['restore', file, '--identity', identity])
    t.deepEqual([code, stderr], [1, `error: ${says}\n`])
  }
  t.deepEqual(await contents(there.DATABASE_URL), before)

  await writeText(file, text, recipient)
  await ask(there.DATABASE_URL, `UPDATE migrations SET digest = repeat('0', 64)`)
  const { code, stderr } = await runCli(there, ['restore', file, '--identity', identity])
  t.is(code, 5)
  t.regex(stderr, /^error: The database has another baseline than this version \(0001-baseline\.sql\): [^\n]*\n$/)
})

test('users who were erased since the backup are erased again by their receipts, and no other users are', async t => {
  const folder = await temporaryFolder(t)
  const service = await startTestService(t)
  const planted = { nickname: 'plantada-no-apelido', email: 'plantada@example.org', city: 'Plantada da Serra' }
  const erased = await service.signUp('ROLE_CLIENT', planted)
  const kept = await service.signUp('ROLE_CLIENT')
  const { recipient, identity } = await newIdentity(folder)
  const file = join(folder, 'registry.age')
  done(await runCli(service.env, ['backup', file, '--recipient', recipient]))
  const { erasure, database } = service.registry
  const receipt = await database.transact(transaction => erasure.erase(idOf(erased.token), transaction))
  const receipts = join(folder, 'erasures.jsonl')
  const others = [
    { user: 4_000_000, eraseTime: receipt!.eraseTime },
    // Another user with the same id, of an earlier registry.
    { user: idOf(kept.token), eraseTime: '2020-01-01T00:00:00Z' },
  ]
  await writeFile(receipts, [JSON.stringify(receipt, null, 2), ...others.map(each => JSON.stringify(each))].join('\n'))

  const there = await elsewhere(t)
  const args = ['restore', file, '--identity', identity, '--erasures', receipts, '--json']
  const restored = JSON.parse(done(await runCli(there, args)))
  t.deepEqual(
    restored.erased.map(({ user }: { user: number }) => user),
    [idOf(erased.token)],
  )
  const everything = JSON.stringify(await contents(there.DATABASE_URL))
  for (const text of [erased.username, ...Object.values(planted)]) t.false(everything.includes(text), text)
  done(await runCli(there, ['audit', 'verify']))
  const { events } = JSON.parse(done(await runCli(there, ['audit', 'list', '--action', 'user.erase', '--json'])))
  t.deepEqual(
    events.map(({ subjectId }: { subjectId: number }) => subjectId),
    [idOf(erased.token)],
  )
  const again = await startTestService(t, there)
  t.truthy(await again.login(kept.username))
  await t.throwsAsync(again.login(erased.username), { message: /INVALID_CREDENTIALS/ })

  for (const [text, says] of [
    ['{"user":7}', /document 1 is not a receipt/],
    ['{"user":7', /not a list of JSON/],
  ] as const) {
    await writeFile(receipts, text)
    t.regex((await runCli(there, args)).stderr, says)
  }
})

test('no backup is made if its event can’t be written or a file would be overwritten', async t => {
  const { env, file, folder, recipient } = await backedUp(t)
  const first = await readFile(file)
  const there = await runCli(env, ['backup', file, '--recipient', recipient])
  t.is(there.code, 1)
  t.regex(there.stderr, /exists already/)
  t.deepEqual(await readFile(file), first)
  const names = (await readdir(folder)).sort()
  await ask(env.DATABASE_URL, 'ALTER TABLE audit_staged ADD CONSTRAINT closed CHECK (seq < 0) NOT VALID')
  t.is((await runCli(env, ['backup', join(folder, 'x.age'), '--recipient', recipient])).code, 1)
  const nowhere = await runCli(env, ['backup', join(folder, 'none', 'x.age'), '--recipient', recipient])
  t.regex(nowhere.stderr, /^error: The backup can’t be written \(ENOENT\)/)
  t.deepEqual((await readdir(folder)).sort(), names)
})

test('an interrupted backup leaves no file', async t => {
  const { env, folder, recipient } = await backedUp(t)
  const holder = await hold(t, env.DATABASE_URL)
  await holder.query('BEGIN; LOCK TABLE users IN ACCESS EXCLUSIVE MODE')
  const names = (await readdir(folder)).sort()
  const child = startCli(env, ['backup', join(folder, 'x.age'), '--recipient', recipient])
  await waitForValue(
    () => readdir(folder),
    value => value.some(name => name.endsWith('.partial')),
  )
  child.kill('SIGINT')
  t.is(await new Promise(resolve => child.once('close', resolve)), 130)
  t.deepEqual((await readdir(folder)).sort(), names)
})

test('a backup in a folder is named by time, and `--keep` deletes the oldest ones once it is complete', async t => {
  const { env, file, folder, recipient, identity } = await backedUp(t)
  const old = ['registry-2025-12-31T235959Z.age', 'registry-2026-01-01T000000Z.age', 'registry-2026-02-01T000000Z.age']
  const others = ['registry-2026-01-01.age', 'notes.txt', 'registry-2026-01-01T000000Z.age.txt', 'registry.age']
  for (const name of [...old, ...others.slice(0, 3)]) await writeFile(join(folder, name), '')
  const all = (await readdir(folder)).sort()
  await ask(env.DATABASE_URL, 'ALTER TABLE audit_staged ADD CONSTRAINT closed CHECK (seq < 0) NOT VALID')
  const backup = ['backup', folder, '--recipient', recipient, '--keep', '2', '--json']
  t.is((await runCli(env, backup)).code, 1)
  t.deepEqual((await readdir(folder)).sort(), all)

  await ask(env.DATABASE_URL, 'ALTER TABLE audit_staged DROP CONSTRAINT closed')
  const before = new Date().toISOString().slice(0, 10)
  const made = JSON.parse(done(await runCli(env, backup)))
  const name = made.file.slice(folder.length + 1)
  t.regex(name, /^registry-\d{4}-\d\d-\d\dT\d{6}Z\.age$/)
  t.true(name >= `registry-${before}`)
  t.is(
    JSON.parse(done(await runCli(await elsewhere(t), ['restore', made.file, '--identity', identity, '--json']))).rows
      .users,
    1,
  )
  t.deepEqual(made.deleted, old.slice(0, 2))
  t.deepEqual((await readdir(folder)).sort(), [...all.filter(each => !made.deleted.includes(each)), name].sort())
  for (const wrong of [
    [file, '--keep', '2'],
    [join(folder, 'none'), '--keep', '2'],
    [folder, '--keep', '0'],
  ]) {
    const { code, stderr } = await runCli(env, ['backup', ...wrong, '--recipient', recipient])
    t.is(code, 2, wrong.join(' '))
    t.regex(stderr, /--keep/)
  }
})

test('a backup deletes partial files of killed backups, and none of a running one', async t => {
  const { env, folder, recipient } = await backedUp(t)
  const other = await backedUp(t)
  const later = () => runCli(other.env, ['backup', folder, '--recipient', recipient])
  const partials = async () => (await readdir(folder)).filter(name => name.endsWith('.partial'))
  const started = async (name: string) => {
    const child = startCli(env, ['backup', join(folder, name), '--recipient', recipient])
    const ended = new Promise(resolve => child.once('close', resolve))
    const partial = await waitFor(async () => (await partials()).find(each => each.startsWith(name)))
    return { child, ended, path: join(folder, partial) }
  }
  const longAgo = new Date(Date.now() - 3_600_000)
  const holder = await hold(t, env.DATABASE_URL)
  await holder.query('BEGIN; LOCK TABLE users IN ACCESS EXCLUSIVE MODE')
  const killed = await started('killed.age')
  killed.child.kill('SIGKILL')
  await killed.ended
  const running = await started('running.age')
  for (const { path } of [killed, running]) await utimes(path, longAgo, longAgo)
  await waitForValue(
    () => stat(running.path),
    value => value.mtimeMs > Date.now() - 60_000,
  )
  done(await later())
  t.deepEqual(
    (await partials()).map(name => join(folder, name)),
    [running.path],
  )
  await holder.query('COMMIT')
  t.is(await running.ended, 0)
  t.true((await readdir(folder)).includes('running.age'))
})

test('the systemd unit and the chart start backups with valid arguments', async t => {
  const { env, folder, recipient } = await backedUp(t)
  const fileOf = (name: string) => readFile(new URL(`../../../deploy/${name}`, import.meta.url), 'utf8')
  const unit = /^ExecStart=\S+ dist\/cli\/main\.js (.*)$/m.exec(await fileOf('systemd/auth-backup.service'))![1]!
  const chart = /^ +args:\n(.*)^ +env:/ms.exec(await fileOf('helm/auth-registry/templates/backup.yaml'))![1]!
  const values = { '%S/auth-backups': folder, '/backups': folder, '${RECIPIENT}': recipient, '{{ . }}': recipient }
  for (const text of [unit, chart.replace('- dist/cli/main.js', '').replace(/^ +(?:- |\{\{.*$)/gm, '')]) {
    let line = text.replace('{{ .keep }}', '2')
    for (const [from, to] of Object.entries(values)) line = line.replace(from, to)
    const args = line.trim().split(/\s+/)
    t.true(
      args.some(each => each.startsWith('--keep')),
      line,
    )
    t.regex(done(await runCli(env, args)), /registry-.*Z\.age holds the registry/)
    // The name has a resolution of one second.
    for (const name of await readdir(folder)) if (name.startsWith('registry-')) await unlink(join(folder, name))
  }
})

test('invalid arguments are refused before any work starts', async t => {
  for (const [args, says] of [
    [
      ['backup', 'x.age', '--recipient', 'AGE-SECRET-KEY-1UNKNOWN'],
      /^error: --recipient: (?!.*UNKNOWN).*age public key/,
    ],
    [['backup', 'x.age', '--recipient', `age1${'q'.repeat(58)}`], /age public key/],
    [['backup', 'x.age', '--recipient', `age1${'q'.repeat(58)}`, '--passphrase-file', 'y'], /not both/],
    [['backup', 'x.age', '--json'], /--recipient or --passphrase-file/],
    [['backup', 'x.age'], /Without a terminal/],
    [['restore', 'x.age', '--identity', 'y', '--passphrase-file', 'z'], /not both/],
  ] as const) {
    const { code, stderr } = await runCli({}, args)
    t.is(code, 2, args.join(' '))
    t.regex(stderr, says)
  }
})

test('the embedded database can be backed up while the service runs, and restored only while it doesn’t', async t => {
  const service = await spawnService(t, { DATABASE_URL: '' })
  const env = { AUTH_DATA_DIR: service.dataDir }
  const form = signUpForm()
  const signUp = await fetch(`${service.http}/users/signup`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(form),
  })
  t.is(signUp.status, 200)
  const folder = await temporaryFolder(t)
  const file = join(folder, 'registry.age')
  const backup = openTerminal(env, ['backup', file])
  await backup.shows('Passphrase')
  t.is(await backup.ended, 0, backup.screen())
  const passphrase = /[\da-f]{4}(-[\da-f]{4}){7}/.exec(backup.screen())![0]

  const words = ['--passphrase-file', '-']
  const running = await spawnCli(env, ['restore', file, ...words, '--replace', '--yes'], passphrase)
  t.is(running.code, 1)
  t.regex(running.stderr, /stop the service/)
  t.is((await fetch(`${service.http}/readyz`)).status, 200)

  const there = { AUTH_DATA_DIR: join(folder, 'data') }
  done(await spawnCli(there, ['restore', file, ...words], passphrase))
  const list = JSON.parse(done(await runCli(there, ['users', 'list', '--json'])))
  t.deepEqual(
    list.users.map(({ username }: { username: string }) => username),
    ['admin', form.username],
  )
  const again = openTerminal(there, ['restore', file, '--replace'])
  await again.shows('Restoring into the embedded database in')
  await again.shows('Passphrase of the backup')
  again.type(`${passphrase}${keys.enter}`)
  await again.shows('has 2 users')
  again.type(keys.enter)
  t.is(await again.ended, 1)
  t.regex(again.screen(), /Nothing was done/)
  t.false(again.screen().includes(passphrase))
  const sure = openTerminal(there, ['restore', file, '--replace'])
  await sure.shows('Passphrase of the backup')
  sure.type(`${passphrase}${keys.enter}`)
  await sure.shows('has 2 users')
  sure.type(`y${keys.enter}`)
  t.is(await sure.ended, 0, sure.screen())
  done(await runCli(there, ['audit', 'verify']))
})
