/** `auth-admin backup` and `restore`: what is restored and what isn't, always entirely or not at all. */
import { mkdir, readdir, readFile, stat, symlink, unlink, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { contents, done, newIdentity, textOf, writeText } from '../_helpers/backups.js'
import {
  assertRefusals,
  documentsOf,
  installedRegistry,
  keys,
  openTerminal,
  runCli,
  spawnCli,
  startCli,
  uncounted,
} from '../_helpers/cli.js'
import { ask, freshDatabase, hold } from '../_helpers/database.js'
import { addUser, openModels } from '../_helpers/models.js'
import { createRequest, password, signUpForm, startTestService } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { idOf } from '../_helpers/tokens.js'
import { nextVersion, runVersion } from '../_helpers/versions.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

/** All tables: those in a backup, and those that are excluded. */
const tables = {
  held: `answers attempts audit_checkpoint audit_events audit_head audit_staged buckets data_keys email_quotas
    former_usernames import_batches import_records imports known_addresses organizations provider_keys question_aliases
    questions reserved_ids services spent_ids token_issuer totp_secrets unmatched_answers users`.split(/\s+/),
  // A stolen backup must contain no usable credentials, and a restore must not bring back used ones.
  excluded: [
    'clock',
    'emails',
    'id_token_keys',
    'mailed_keys',
    'processes',
    'refreshed_sessions',
    'service_keys',
    'sealing_keys',
    'sent_emails',
    'signing_keys',
  ],
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

/** Runs `restore` with this standard input; without its first line, which names the database. */
const restoring =
  (env: Record<string, string>, input = '', start = runCli) =>
  async (...args: string[]) => {
    const { stdout, ...run } = await start(env, ['restore', ...args], input)
    return { ...run, stdout: stdout.replace(/^Restoring into .*\n/, '') }
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
  const { registry, request, env } = service
  const [answers, id] = ['/forgotpasswords/saveforgotpasswordquestionsusersanswers', idOf(user.token)]
  for (const forgotpasswordquestionsid of [1, 2]) {
    const body = { forgotpasswordquestionsid, answer: 'resposta' }
    t.is((await request('POST', answers, { token: user.token, body })).status, 200)
  }
  await service.login(user.username)
  await registry.mailedKeys.replace(id, 'recovery', 'ABCDEFGH')
  await registry.emails.add({ kind: 'recovery-key', stage: 'ready', parameters: { userId: id, to: 'x' } }, 'en')
  await ask(env.DATABASE_URL!, `INSERT INTO totp_secrets (user_id, secret_sealed) VALUES (1, 'sealed secret')`)
  const before = await contents(env.DATABASE_URL!)

  const { recipient, identity, secret } = await newIdentity(folder)
  const file = join(folder, 'registry.age')
  const made = JSON.parse(done(await spawnCli(env, ['backup', file, '--recipient', recipient, '--json'])))
  t.deepEqual([made.file, made.rows.users], [file, 3])
  const held = tables.held.map(name => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase()))
  t.deepEqual(Object.keys(made.rows).sort(), held.sort())
  // A new table must be added to one of the lists.
  t.deepEqual(Object.keys(before).sort(), Object.values(tables).flat().sort())
  t.is((await stat(file)).mode & 0o777, 0o600)
  t.is(JSON.parse((await textOf(file, secret)).split('\n')[1]!).masterKey, env.AUTH_MASTER_KEY)

  const there = await elsewhere(t)
  const restored = JSON.parse(done(await runCli(there, ['restore', file, '--identity', identity, '--json'])))
  t.deepEqual([restored.backupTime, restored.rows], [made.backupTime, made.rows])
  const after = await contents(there.DATABASE_URL)
  for (const table of ['users', 'organizations', 'provider_keys', 'questions', 'answers', 'known_addresses'])
    t.deepEqual(after[table], before[table], table)
  for (const table of ['token_issuer', 'totp_secrets']) t.deepEqual(after[table], before[table], table)
  t.is(before.totp_secrets!.length, 1)
  t.deepEqual(
    [after.mailed_keys, after.emails, after.processes, after.sealing_keys, after.signing_keys!.length],
    [[], [], [], [], 1],
  )
  t.true(before.mailed_keys!.length > 0)

  const again = await startTestService(t, there)
  const me = ({ request }: typeof service, token: string) => request('GET', '/users/me', { token })
  t.is((await me(service, user.token)).status, 200)
  t.is((await me(again, user.token)).json.reason, 'INVALID_TOKEN')
  t.is((await me(again, await again.login(user.username))).json.nickname, user.nickname)
  // Ids of users who signed up after the backup aren't reused.
  t.true(idOf((await again.signUp('ROLE_INSTITUTION')).token) > id + 1000)

  done(await runCli(there, ['audit', 'verify']))
  const event = async (of: Record<string, string>, action: string) =>
    (await documentsOf({ env: of }, 'audit').json('list', '--action', action)).events
  const [restore] = await event(there, 'registry.restore')
  t.is(restore.object, `backup:${made.backupTime}`)
  t.regex(restore.actor, /^cli:/)
  t.is((await event(env, 'registry.backup')).length, 1)
})

test('a restore ends the answers that waited when the backup was made, even if their day is over by now', async t => {
  const { env, folder, recipient, identity, secret } = await backedUp(t, 3)
  // They wait until these dates; the last one counted by the time of the backup.
  await ask(
    env.DATABASE_URL,
    `WITH q AS (INSERT INTO questions (question, question_key) VALUES ('Em que rua?', 'em que rua?') RETURNING id)
      INSERT INTO answers (user_id, question_id, answer_hash, next_hash, next_counts_at)
      SELECT u.id, q.id, 'former', 'next', date::timestamptz
      FROM q, (VALUES ('ana0', '2040-05-01'), ('ana1', '2040-05-02'), ('ana2', '2040-04-28')) AS d (name, date)
      JOIN users u ON u.username = d.name`,
  )
  const file = join(folder, 'waiting.age')
  const { backupTime } = JSON.parse(done(await runCli(env, ['backup', file, '--recipient', recipient, '--json'])))
  // As if it was made in a past year, a day before the first answer would count.
  const text = (await textOf(file, secret))
    .replaceAll(backupTime, '2020-04-30T00:00:00.000Z')
    .replaceAll('2040-0', '2020-0')
  await writeText(file, text, recipient)
  const there = await elsewhere(t)
  done(await runCli(there, ['restore', file, '--identity', identity]))
  const kept = await ask(there.DATABASE_URL, 'SELECT answer_hash, next_hash FROM answers ORDER BY user_id')
  const ended = { answer_hash: 'former', next_hash: null }
  t.deepEqual(kept, [ended, ended, { answer_hash: 'former', next_hash: 'next' }])
})

test('restored texts equal the originals exactly, even if they contain delimiters of the format; so do indexes and keys', async t => {
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
  const keys = `SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) AS is FROM pg_constraint
      WHERE connamespace = 'public'::regnamespace
    UNION SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1`
  const [original, restored] = [await client.query(keys), await (await hold(t, there.DATABASE_URL)).query(keys)]
  t.true(original.rows.length > 100)
  t.deepEqual(restored.rows, original.rows)
})

test('a restore keeps reserved ids: a later import creates records with them, but not with those of users who were erased', async t => {
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
  // Created and erased after the backup.
  t.deepEqual(await list(env, 'users', [head, user(30)]), { created: 1, rejected: 0 })
  done(await runCli(env, ['users', 'delete', 'kept30', '--yes']))
  const receipts = join(folder, 'erasures.jsonl')
  await writeFile(receipts, done(await runCli(env, ['users', 'erase', 'kept30', '--confirm', 'kept30', '--json'])))
  const there = await elsewhere(t)
  done(await runCli(there, ['restore', file, '--identity', identity, '--erasures', receipts]))
  t.deepEqual(await list(there, 'organizations', ['id,name', '2,Dois', '8,Oito']), { created: 1, rejected: 0 })
  t.deepEqual(await list(there, 'users', [head, user(20), user(21), user(30), user(51)]), { created: 1, rejected: 3 })
  done(await runCli(there, ['organizations', 'create', '--name', 'Nova']))
  const ids = await ask(there.DATABASE_URL, 'SELECT id FROM organizations ORDER BY id')
  t.deepEqual(
    ids.map(({ id }) => id),
    [2, 8, 9, 100_010],
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
      -- A sign-up whose answer was lost is repeated, and then has two events.
      (SELECT count(DISTINCT subject_id)::int FROM audit_events WHERE action = 'user.sign-up') AS events`,
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
  const ran = await spawnCli({ ...env, ...uncounted }, ['backup', other, '--passphrase-file', words])
  const passphrase = (await readFile(words, 'utf8')).trim()
  t.regex(ran.stderr, new RegExp(`^${words} is created, with a new passphrase: keep it apart from the backup\\.$`, 'm'))
  t.regex(passphrase, /^([\da-f]{4}-){7}[\da-f]{4}$/)
  t.is((await stat(words)).mode & 0o777, 0o600)
  for (const path of [file, other]) {
    const bytes = await readFile(path, 'latin1')
    for (const text of [...planted, passphrase, 'username_key'])
      for (const encoding of ['utf8', 'base64', 'hex'] as const)
        t.false(bytes.includes(Buffer.from(text).toString(encoding).replace(/=+$/, '')), `${text} ${encoding}`)
  }
  const there = await elsewhere(t)
  const back = await spawnCli(
    { ...there, ...uncounted },
    ['restore', other, '--passphrase-file', '-'],
    `${passphrase}\n`,
  )
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
  const lengths = [0, 10, 100, header, header + 16, header + 16 + chunk, header + 16 + 2 * chunk, whole.length - 1]
  for (const length of lengths) tried.push([`cut off at ${length}`, whole.subarray(0, length), /damaged|not a backup/])
  for (const at of [30, 60, 130, header + 5, header + 100, header + 16 + chunk + 9, whole.length - 1]) {
    const altered = Buffer.from(whole)
    altered[at]! ^= 1
    tried.push([`bit at ${at}`, altered, /damaged|doesn’t open|not a backup/])
  }
  // The encryption is valid, its text isn't.
  const ends = [...text.matchAll(/\n\\\.\n/g)].map(({ index }) => index + 4)
  const [line, table] = [text.indexOf('\n') + 1, text.indexOf('{"table"') + 9]
  for (const length of [5, line, table, ends[0]! + 2, ends.at(-1)!, text.length - 1])
    tried.push([`text cut off at ${length}`, text.slice(0, length), /damaged|not a backup/])
  const statement = '"columns":["id) FROM STDIN; DROP TABLE users;--"'
  tried.push(
    ['a row less', text.replace(/\n\d+\tana7\t.*/, ''), /damaged/],
    ['trailing data', `${text}more\n`, /damaged/],
    ['a row twice', text.replace(/(\n\d+\tana7\t.*)/, '$1$1').replace('"users":2500', '"users":2501'), /./],
    ['a table of another name', text.replaceAll('"users"', '"migrations"'), /damaged/],
    ['a column that executes', text.replace('"columns":["id"', statement), /damaged/],
  )
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
  done(await spawnCli({ ...env, ...uncounted }, ['backup', file, '--passphrase-file', words]))
  t.is(await readFile(words, 'utf8'), 'correct horse battery staple\n', 'a passphrase that exists is used')
  const there = { ...(await elsewhere(t)), ...uncounted }
  const before = await contents(there.DATABASE_URL)
  await assertRefusals(t, restoring(there, 'correct horse battery stable', spawnCli), [
    [/^error: The passphrase doesn’t open the backup\.\n$/, 1, file, '--passphrase-file', '-'],
    [/--passphrase-file/, 2, file],
    [/^error: The file is not a backup/, 1, words, '--passphrase-file', words],
    [/can’t be read \(ENOENT\)/, 1, '/none', '--passphrase-file', words],
  ])
  t.deepEqual(await contents(there.DATABASE_URL), before)
  const right = await restoring(
    there,
    'correct horse battery staple',
    spawnCli,
  )(...[file, '--passphrase-file', '-', '--json'])
  t.is(JSON.parse(done(right)).rows.users, 1)
  await writeFile(words, 'short')
  t.regex((await runCli(env, ['backup', join(folder, 'x.age'), '--passphrase-file', words])).stderr, /too short/)
  t.false((await readdir(folder)).includes('x.age'))
})

test('restore into a registry with users needs `--replace` and a confirmation', async t => {
  const { file, identity } = await backedUp(t)
  const there = await installedRegistry(t)
  const before = await contents(there.DATABASE_URL)
  const foreign = { ...there, DATABASE_URL: await freshDatabase(t, { from: 'template0' }) }
  await ask(foreign.DATABASE_URL, 'CREATE TABLE users (name text)')
  const into =
    (env: Record<string, string>) =>
    (...more: string[]) =>
      restoring(env)(file, '--identity', identity, ...more)
  await assertRefusals(t, into(there), [
    [/^error: The existing registry has 1 user: [^\n]*--replace\.\n$/, 1, '--yes'],
    [/--yes/, 2, '--replace'],
  ])
  await assertRefusals(t, into(foreign), [[/tables of another program/, 1, '--replace', '--yes']])
  t.deepEqual([await contents(there.DATABASE_URL), await contents(foreign.DATABASE_URL)], [before, { users: [] }])
  done(await into(there)('--replace', '--yes'))
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
  t.regex(stderr, /^error: The database is in use by auth at 127\.0\.0\.1: stop the service[^\n]*\n$/)
  t.is((await service.request('GET', '/users/me', { token: user.token })).status, 200)
})

test('restore counts none of its own connections where the server has no TLS and the URL says nothing of it, and names others', async t => {
  const { file, identity } = await backedUp(t)
  const there = await elsewhere(t)
  const url = new URL(there.DATABASE_URL)
  url.search = ''
  const restore = restoring({ ...there, DATABASE_URL: url.href }, '', spawnCli)
  const args = [file, '--identity', identity, '--replace', '--yes']
  const other = new pg.Client({ connectionString: url.href, application_name: 'reports' })
  await other.connect()
  const refused = await restore(...args)
  await other.end()
  t.deepEqual(
    [refused.code, refused.stderr],
    [
      1,
      'error: The database is in use by reports at 127.0.0.1: stop the service and disconnect all other clients first.\n',
    ],
  )
  done(await restore(...args))
})

test('a restore ends with what is lost: the keys of services, and that users who left since the backup are there again', async t => {
  const { env, folder, file, recipient, identity } = await backedUp(t, 3)
  done(await runCli(env, ['services', 'create', 'grades', '--may', 'users.read', '--local']))
  const later = join(folder, 'later.age')
  done(await runCli(env, ['backup', later, '--recipient', recipient]))
  done(await runCli(env, ['users', 'erase', 'ana1', '--confirm', 'ana1', '--reason', 'asked', '--local']))
  const left = join(folder, 'left.jsonl')
  await writeFile(left, done(await runCli(env, ['audit', 'list', '--all', '--jsonl', '--local'])))

  const there = await elsewhere(t)
  const lines = async (...args: string[]) =>
    done(await restoring(there)(...args))
      .trim()
      .split('\n')
  const plain = await lines(later, '--identity', identity)
  t.true(plain.includes('Users who deleted their accounts since the backup are there again: see --erasures.'))
  t.regex(
    plain.at(-1)!,
    /^All users have to sign in again, and services \(1\) get 401 until each has a new key: `auth-admin services keys add NAME`\.$/,
  )
  const replace = ['--identity', identity, '--replace', '--yes']
  const erased = await lines(later, ...replace, '--erasures', left)
  t.true(erased.includes('1 of 1 erased users were in the backup, and are erased again.'))
  t.deepEqual(await ask(there.DATABASE_URL, `SELECT username FROM users WHERE username = 'ana1'`), [])
  t.is((await lines(file, ...replace)).at(-1), 'All users have to sign in again.')
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
  const says = /of a newer version \(9999-next\.sql\): restore it with that version/
  await assertRefusals(t, restoring(there), [[says, 1, newer, '--identity', identity]])
  t.deepEqual(await contents(there.DATABASE_URL), before)
  // Nor a restore into a newer database.
  const isNewer = /The database is of a newer version/
  await assertRefusals(t, restoring(env), [[isNewer, 5, file, '--identity', identity, '--replace', '--yes']])
})

test('a version started again after the expansion of a newer one makes backups, which the newer one restores', async t => {
  const { env, folder, recipient, identity } = await backedUp(t)
  const expansion = '-- expand\nALTER TABLE users ADD COLUMN extra text;\nCREATE TABLE extras (id int, key text);'
  const next = await nextVersion(t, expansion)
  done(await runVersion(next, env, ['migrate', 'up']))
  await ask(
    env.DATABASE_URL,
    `UPDATE users SET extra = 'kept'; INSERT INTO extras VALUES (1, 'unknown to this version')`,
  )

  const file = join(folder, 'back.age')
  const { code, stderr } = await runCli(env, ['backup', file, '--recipient', recipient])
  t.is(code, 0)
  t.regex(stderr, /newer version \(9999-next\.sql\)/)
  const there = await elsewhere(t, 'template0')
  await assertRefusals(t, restoring(there), [
    [/of a newer version \(9999-next\.sql\)/, 1, file, '--identity', identity],
  ])
  done(await runVersion(next, there, ['restore', file, '--identity', identity]))
  t.deepEqual(await ask(there.DATABASE_URL, 'SELECT username, extra FROM users'), [{ username: 'ana0', extra: 'kept' }])
  t.deepEqual(await ask(there.DATABASE_URL, 'SELECT * FROM extras'), [])
  done(await runCli(there, ['audit', 'verify']))
})

test('another baseline of the backup or the database, or another format, is refused with a one-sentence error', async t => {
  const { file, recipient, identity, secret } = await backedUp(t)
  const text = await textOf(file, secret)
  const there = await elsewhere(t)
  const before = await contents(there.DATABASE_URL)
  const digest = /"digest":"[\da-f]{64}"/
  t.regex(text, digest)
  const otherBaseline =
    /^error: The backup has another baseline than this version \(0001-baseline\.sql\): restore it with the version that made it\.\n$/
  const otherFormat =
    /^error: The backup is in a format that this version doesn’t know: use the version that made it\.\n$/
  const restore = restoring(there)
  for (const [changed, says] of new Map([
    [text.replace(digest, `"digest":"${'0'.repeat(64)}"`), otherBaseline],
    [text.replace(digest, '"other":1'), otherBaseline],
    [text.replace('backup 1\n', 'backup 2\n'), otherFormat],
  ])) {
    await writeText(file, changed, recipient)
    await assertRefusals(t, restore, [[says, 1, file, '--identity', identity]])
  }
  t.deepEqual(await contents(there.DATABASE_URL), before)

  await writeText(file, text, recipient)
  await ask(there.DATABASE_URL, `UPDATE migrations SET digest = repeat('0', 64)`)
  const says = /^error: The database has another baseline than this version \(0001-baseline\.sql[^)]*\): /
  await assertRefusals(t, restore, [[says, 5, file, '--identity', identity]])
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
  const { run, json } = documentsOf({ env: there })
  const only = [idOf(erased.token)]
  t.deepEqual(
    JSON.parse(done(await run(...args))).erased.map(({ user }: { user: number }) => user),
    only,
  )
  const everything = JSON.stringify(await contents(there.DATABASE_URL))
  for (const text of [erased.username, ...Object.values(planted)]) t.false(everything.includes(text), text)
  await json('audit', 'verify')
  const { events } = await json('audit', 'list', '--action', 'user.erase')
  t.deepEqual(
    events.map(({ subjectId }: { subjectId: number }) => subjectId),
    only,
  )
  const again = await startTestService(t, there)
  t.truthy(await again.login(kept.username))
  await t.throwsAsync(again.login(erased.username), { message: /INVALID_CREDENTIALS/ })

  for (const [text, says] of Object.entries({
    '{"user":7}': 'document 1 is neither a receipt',
    '{"user":7': 'not a list of JSON',
  })) {
    await writeFile(receipts, text)
    t.true((await run(...args)).stderr.includes(says))
  }
})

test('no backup is made if its event can’t be written or a file would be overwritten', async t => {
  const { env, file, folder, recipient } = await backedUp(t)
  const first = await readFile(file)
  const backup = (path: string) => runCli(env, ['backup', path, '--recipient', recipient])
  // A link to a folder is that folder; one that leads nowhere is a folder that is missing.
  const [there, nowhere] = [join(folder, 'there'), join(folder, 'nowhere')]
  const linked = await temporaryFolder(t)
  await symlink(linked, there)
  await symlink(join(linked, 'none'), nowhere)
  const names = await readdir(folder)
  await assertRefusals(t, backup, [
    [/exists already/, 1, file],
    [/^error: There is no folder [^\n]*nowhere: create it, /, 1, nowhere],
    [/^error: The backup can’t be written \(ENOENT\)/, 1, join(folder, 'none', 'x.age')],
    [/^error: There is no folder [^\n]*none: create it, /, 1, join(folder, 'none')],
  ])
  t.is((await backup(there)).code, 0)
  t.is((await readdir(linked)).length, 1)
  await ask(env.DATABASE_URL, 'ALTER TABLE audit_staged ADD CONSTRAINT closed CHECK (seq < 0) NOT VALID')
  t.is((await backup(join(folder, 'x.age'))).code, 1)
  t.deepEqual([await readdir(folder), await readFile(file)], [names, first])
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
  const made = JSON.parse(done(await runCli(env, backup)))
  const name = made.file.slice(folder.length + 1)
  t.regex(name, /^registry-\d{4}-\d\d-\d\dT\d{6}Z\.age$/)
  t.true(name >= `registry-${made.backupTime.slice(0, 10)}`)
  done(await runCli(await elsewhere(t), ['restore', made.file, '--identity', identity]))
  t.deepEqual(made.deleted, old.slice(0, 2))
  t.deepEqual((await readdir(folder)).sort(), [...all.filter(each => !made.deleted.includes(each)), name].sort())
  const keep = (...args: string[]) => runCli(env, ['backup', ...args, '--recipient', recipient])
  // What can't be deleted leaves the new backup, and something to do. Another folder, as names have whole seconds.
  const stuck = join(folder, 'stuck')
  await mkdir(join(stuck, old[0]!), { recursive: true })
  const { code, stderr } = await keep(stuck, '--keep', '1')
  t.is(code, 6)
  t.regex(stderr, /The backup is complete, but older ones can’t be deleted/)
  t.is((await readdir(stuck)).length, 2)
  await assertRefusals(t, keep, [
    [/--keep/, 2, file, '--keep', '2'],
    [/--keep/, 2, join(folder, 'none'), '--keep', '2'],
    [/--keep/, 2, folder, '--keep', '0'],
  ])
})

test('an interrupted backup leaves no file, and the next one deletes that of a killed one, but none of a running one', async t => {
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
  const interrupted = await started('interrupted.age')
  interrupted.child.kill('SIGINT')
  t.is(await interrupted.ended, 130)
  t.false((await readdir(folder)).some(name => name.startsWith('interrupted')))
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
  const wrong = `age1${'q'.repeat(58)}`
  await assertRefusals(t, (...args) => runCli({}, args), [
    [/--recipient: (?!.*UNKNOWN).*age public key/, 2, 'backup', 'x.age', '--recipient', 'AGE-SECRET-KEY-1UNKNOWN'],
    [/age public key/, 2, 'backup', 'x.age', '--recipient', wrong],
    [/not both/, 2, 'backup', 'x.age', '--recipient', wrong, '--passphrase-file', 'y'],
    [/Without a terminal/, 2, 'backup', 'x.age'],
    [/not both/, 2, 'restore', 'x.age', '--identity', 'y', '--passphrase-file', 'z'],
  ])
})

test('the embedded database can be backed up while the service runs, and restored only while it doesn’t', async t => {
  const service = await spawnService(t, { DATABASE_URL: '' })
  const env = { AUTH_DATA_DIR: service.dataDir, ...uncounted }
  const form = signUpForm()
  t.is((await createRequest(service.http)('POST', '/users/signup', { body: form })).status, 200)
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

  const there = { AUTH_DATA_DIR: join(folder, 'data'), ...uncounted }
  done(await spawnCli(there, ['restore', file, ...words], passphrase))
  const { users } = await documentsOf({ env: there }, 'users').json('list')
  t.deepEqual(
    users.map(({ username }: { username: string }) => username),
    ['admin', form.username],
  )
  const again = openTerminal(there, ['restore', file, '--replace'])
  for (const [shown, typed] of Object.entries({
    'Restoring into the embedded database in': '',
    'Passphrase of the backup': `${passphrase}${keys.enter}`,
    'has 2 users': keys.enter,
  })) {
    await again.shows(shown)
    again.type(typed)
  }
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
