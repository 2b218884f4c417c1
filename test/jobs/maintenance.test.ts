/** Maintenance deletes expired rows, keeps all others, and delays no caller. */
import { randomUUID } from 'node:crypto'
import { readdir, readFile, utimes } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import bcrypt from 'bcrypt'
import { ImportKind } from '../../proto/gen/auth/v1/administration_pb.js'
import { sql } from '../../server/database/sql.js'
import { startMaintenance } from '../../server/jobs/maintenance.js'
import { startWrapping } from '../../server/jobs/wrapping.js'
import type { Models } from '../../server/models/index.js'
import { createLog } from '../../server/observability/log.js'
import { startMail } from '../../server/outbox/compose.js'
import { createHashing } from '../../server/passwords/index.js'
import { openLocal } from '../_helpers/administration.js'
import { done } from '../_helpers/backups.js'
import { runCli } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'
import { addUser, changeTokens, endsOrWaits, openModels, waits } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { startTestService } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const log = createLog('silent')
const never = { first: 2 ** 31 - 1, interval: 2 ** 31 - 1 }

test('a maintenance run keeps e-mails of another registry in the same folder, whose users have other ids', async t => {
  const [models, other] = [await openModels(t), await openModels(t)]
  const dataDir = await temporaryFolder(t)
  const userId = await addUser(models, 'ana', 'ROLE_ADMIN', 'ana@example.org')
  const parameters = { userId, at: '2026-11-21T12:00:00Z', address: '192.0.2.1' }
  await models.emails.add({ kind: 'password-changed', stage: 'requested', parameters }, 'en')
  await sendAll(models, dataDir)
  await maintenance(t, other, never, { dataDir }).round()
  t.is((await readdir(join(dataDir, 'mail'))).length, 1)
})

/** Writes all queued e-mails to the folder. */
async function sendAll(models: Models, dataDir: string): Promise<void> {
  const settings = {
    mailFrom: 'auth@localhost',
    issuer: undefined,
    dataDir,
    recoveryEmail: 'registered',
    limitFactor: 1,
    timeZone: 'UTC',
    smtpUrl: undefined,
  } as const
  const sender = startMail(models, settings, log, Date.now)
  await waitForValue(async () => (await texts(models, 'SELECT id::text AS text FROM emails')).length, 0)
  await sender.close()
}

/** Maintenance that runs on demand. */
function maintenance(
  t: { teardown(work: () => Promise<void>): void },
  models: Models,
  limits: Parameters<typeof startMaintenance>[3] = never,
  settings: { dataDir?: string; unactivatedRetention?: number } = {},
) {
  const all = { tokenTtl: 3600, auditRetention: 86_400, unactivatedRetention: undefined, dataDir: '/nonexistent' }
  const started = startMaintenance(models, { ...all, ...settings }, log, limits)
  t.teardown(() => started.stop())
  return started
}

async function texts({ database }: Models, query: string): Promise<string[]> {
  const [rows] = await database.sequelize.query(query)
  return (rows as { text: string }[]).map(({ text }) => text)
}

const rotate = ({ database, signingKeys }: Models) =>
  database.transact(t => signingKeys.rotate({ force: true, lead: 0, tokenTtl: 3600 }, t))

test('a maintenance run deletes expired rows, and nothing else', async t => {
  const models = await openModels(t)
  const user = await addUser(models, 'ana')
  const [old, kept, newer] = [await rotate(models), await rotate(models), await rotate(models)]
  await models.database.sequelize.query(`
    INSERT INTO attempts VALUES ('lapsed', 1, now() - interval '1 second'), ('good', 1, now() + interval '1 minute');
    INSERT INTO buckets VALUES ('lapsed', 300, now() - interval '181 minutes'), ('good', 300, now() - interval '179 minutes');
    INSERT INTO email_quotas VALUES ('lapsed', ARRAY[now() - interval '25 hours']),
      ('good', ARRAY[now() - interval '25 hours', now() - interval '23 hours']);
    INSERT INTO known_addresses VALUES (${user}, 'lapsed', now() - interval '31 days'),
      (${user}, 'good', now() - interval '29 days');
    INSERT INTO mailed_keys (user_id, purpose, key_digest, expires_at)
      VALUES (${user}, 'recovery', '', now() - interval '1 second'), (${user}, 'activation', '', now() + interval '1 minute');
    INSERT INTO former_usernames VALUES ('lapsed', '', ${user}, now() - interval '1 second'),
      ('good', '', ${user}, now() + interval '1 minute');
    INSERT INTO processes VALUES ('lapsed', '', '', '', '', '', now() - interval '61 minutes'),
      ('good', '', '', '', '', '', now() - interval '59 minutes');
    UPDATE signing_keys SET verifies_until = now() - interval '1 second' WHERE kid = '${old}';
    UPDATE signing_keys SET verifies_until = now() + interval '1 minute' WHERE kid = '${kept}';
    INSERT INTO sealing_keys VALUES ('lapsed', '', now() - interval '492 days'), ('good', '', now() - interval '402 days'),
      ('next', '', now() - interval '312 days');
    INSERT INTO id_token_keys VALUES ('lapsed', '{}', '', now() - interval '91 days'), ('good', '{}', '', now() - interval '23 hours');
    INSERT INTO id_token_keys SELECT 'former', '{}', '', now() - interval '25 hours';
    INSERT INTO refreshed_sessions (user_id, id, newest, ended, ends_at) VALUES (${user}, 'lapsed', 1, false, now() - interval '25 hours'),
      (${user}, 'good', 1, false, now() - interval '23 hours');
    INSERT INTO emails (kind, parameters, locale, created_at, next_attempt_at) VALUES
      ('lapsed', '{}', 'en', now() - interval '8 days', NULL), ('good', '{}', 'en', now() - interval '6 days', NULL),
      ('waiting', '{}', 'en', now() - interval '8 days', now() + interval '1 hour');
    INSERT INTO imports (kind, state, source_digest, dry_run, all_or_nothing, change_accounts, keep_ids, actor, updated_at) VALUES
      ('users', 'finished', 'lapsed', false, false, '{}', false, '', now() - interval '31 days'),
      ('users', 'finished', 'good', false, false, '{}', false, '', now() - interval '29 days')`)
  await maintenance(t, models).round()
  for (const table of ['attempts', 'buckets', 'email_quotas']) {
    t.deepEqual(await texts(models, `SELECT convert_from(subject, 'UTF8') AS text FROM ${table}`), ['good'], table)
  }
  t.deepEqual(await texts(models, `SELECT convert_from(address, 'UTF8') AS text FROM known_addresses`), ['good'])
  t.deepEqual(await texts(models, 'SELECT username_key AS text FROM former_usernames'), ['good'])
  t.deepEqual(await texts(models, 'SELECT id AS text FROM processes'), ['good'])
  t.deepEqual(await texts(models, 'SELECT purpose AS text FROM mailed_keys'), ['activation'])
  const keys = await texts(models, 'SELECT kid AS text FROM signing_keys ORDER BY signs_at')
  t.deepEqual(keys, [kept, newer])
  t.deepEqual(await texts(models, 'SELECT id AS text FROM refreshed_sessions'), ['good'])
  t.deepEqual(await texts(models, 'SELECT kid AS text FROM id_token_keys ORDER BY signs_at'), ['former', 'good'])
  const sealing = await texts(models, 'SELECT id AS text FROM sealing_keys ORDER BY created_at')
  t.deepEqual(sealing, ['good', 'next'])
  t.deepEqual(await texts(models, 'SELECT kind AS text FROM emails ORDER BY id'), ['good', 'waiting'])
  t.deepEqual(await texts(models, 'SELECT source_digest AS text FROM imports'), ['good'])
  // Another one gets its rows above.
  const pruned = Object.keys(models).filter(name => 'prune' in models[name as keyof Models])
  t.deepEqual(pruned.sort(), [
    ...[
      'attempts',
      'buckets',
      'emailQuotas',
      'emails',
      'formerUsernames',
      'idTokenKeys',
      'imports',
      'mailedKeys',
      'processes',
    ],
    ...['refreshedSessions', 'sealingKeys', 'signingKeys'],
  ])
})

test('a maintenance run erases every user who was deleted 30 days ago, and no other', async t => {
  const models = await openModels(t)
  const ids: number[] = []
  for (const name of ['ana', 'bia', 'caio', 'davi']) ids.push(await addUser(models, name))
  const [ana, bia, caio, davi] = ids
  await models.database.sequelize.query(`
    UPDATE users SET suspended = true, deleted_at = now() - interval '31 days' WHERE id IN (${ana}, ${bia});
    UPDATE users SET suspended = true, deleted_at = now() - interval '29 days' WHERE id = ${caio}`)
  await maintenance(t, models).round()
  t.deepEqual(await texts(models, 'SELECT id::text AS text FROM users ORDER BY id'), [`${caio}`, `${davi}`])
})

test('each outage of maintenance is logged once', async t => {
  const models = await openModels(t)
  const query = (text: string) => models.database.sequelize.query(text)
  const warnings: string[] = []
  const counting = { ...log, warn: (_: object, message: string) => void warnings.push(message) }
  const settings = { tokenTtl: 3600, auditRetention: 86_400, unactivatedRetention: undefined, dataDir: '/nonexistent' }
  await query('ALTER TABLE buckets RENAME TO away')
  const { stop } = startMaintenance(models, settings, counting as typeof log, { first: 1, interval: 30 })
  t.teardown(stop)
  for (const outage of [1, 2]) {
    await waitFor(() => warnings.length === outage)
    await query('SELECT pg_sleep(0.3)')
    t.is(warnings.length, outage)
    await query(
      `ALTER TABLE away RENAME TO buckets; INSERT INTO buckets VALUES ('lapsed', 1, now() - interval '9 days')`,
    )
    await waitFor(async () => (await texts(models, 'SELECT FROM buckets')).length === 0)
    await query('ALTER TABLE buckets RENAME TO away')
  }
})

test('a maintenance run deletes e-mails from the folder that are older than 30 days or of an erased user', async t => {
  const models = await openModels(t)
  const { database, erasure, users, emails } = models
  const dataDir = await temporaryFolder(t)
  const folder = join(dataDir, 'mail')
  const [ana, bia, old] = [
    await addUser(models, 'ana', 'ROLE_ADMIN', 'ana@example.org'),
    await addUser(models, 'bia', 'ROLE_CLIENT', 'bia@example.org'),
    await addUser(models, 'velha', 'ROLE_CLIENT', 'velha@example.org'),
  ]
  const happened = { at: '2026-11-21T12:00:00Z', address: '192.0.2.1' }
  for (const userId of [ana, bia, old])
    await emails.add({ kind: 'password-changed', stage: 'requested', parameters: { userId, ...happened } }, 'en')
  // One to ana about bia.
  const details = { action: 'user.suspend', actor: 'cli:x@y', at: happened.at, reason: 'x' } as const
  await emails.add(
    { kind: 'administration', stage: 'ready', parameters: { userId: ana, subjectId: bia, ...details } },
    'en',
  )
  await sendAll(models, dataDir)
  /** Files by their content. */
  const files = async () => {
    const all = await Promise.all(
      (await readdir(folder)).map(async name => [await readFile(join(folder, name), 'utf8'), name] as const),
    )
    const find = (...words: string[]) => all.filter(([text]) => words.every(word => text.includes(word)))
    return { count: all.length, find }
  }
  const before = await files()
  t.is(before.count, 4)
  const { round } = maintenance(t, models, never, { dataDir })
  await round()
  t.is((await files()).count, 4)

  const [[, name] = ['', '']] = before.find('velha')
  const path = join(folder, name)
  const day = 86_400
  const age = (days: number) => utimes(path, Date.now() / 1000 - days * day, Date.now() / 1000 - days * day)
  await age(29.9)
  await round()
  t.is((await files()).count, 4)
  await age(30.1)
  await round()
  t.is((await files()).find('velha').length, 0)
  t.is((await files()).count, 3)

  // A deleted user may be restored; an erased one leaves no data.
  await changeTokens(models, bia, transaction => users.delete(bia, transaction))
  await round()
  t.is((await files()).count, 3)
  await database.transact(transaction => erasure.erase(bia, transaction))
  await round()
  const after = await files()
  t.is(after.find('bia').length, 0)
  t.is(after.count, 1)
  t.is(after.find('ana@example.org').length, 1)
})

test('a maintenance run rotates a signing key of 90 days and records it in the audit log; a younger one stays', async t => {
  const models = await openModels(t)
  const first = await rotate(models)
  const { round } = maintenance(t, models)
  const age = (days: number) =>
    models.database.sequelize.query(`UPDATE signing_keys SET signs_at = now() - interval '${days} days'`)
  const kids = async () => (await models.signingKeys.all()).map(({ kid }) => kid)
  await age(89)
  await round()
  t.deepEqual(await kids(), [first!])
  await age(91)
  await round()
  const [second, last] = await kids()
  t.is(last, first)
  // It signs 10 minutes later, once verifiers know it.
  const later = `SELECT (signs_at BETWEEN now() + interval '5 minutes' AND now() + interval '10 minutes')::text AS text`
  t.deepEqual(await texts(models, `${later} FROM signing_keys WHERE kid = '${second}'`), ['true'])
  t.deepEqual(await texts(models, `SELECT action || ' ' || reason || ' ' || object AS text FROM audit_staged`), [
    `signing-key.rotate age signing-key:${second}`,
  ])
})

test('a maintenance run skips a counter that a sign-in is using', async t => {
  const models = await openModels(t)
  const { database } = models
  await database.sequelize.query(
    `INSERT INTO attempts VALUES ('used', 1, now() - interval '1 day'), ('unused', 1, now() - interval '1 day')`,
  )
  await database.transact(async transaction => {
    await database.sequelize.query(`UPDATE attempts SET count = 2 WHERE subject = 'used'`, { transaction })
    t.is(await endsOrWaits(database, maintenance(t, models).round()), 'ends')
  })
  t.deepEqual(await texts(models, `SELECT convert_from(subject, 'UTF8') AS text FROM attempts`), ['used'])
})

test('maintenance runs repeat by themselves, and stopping waits for the current one', async t => {
  const models = await openModels(t)
  const { database } = models
  const lapse = () => database.sequelize.query(`INSERT INTO attempts VALUES ('x', 1, now() - interval '1 day')`)
  const gone = async () => (await texts(models, 'SELECT subject::text AS text FROM attempts')).length === 0
  const { stop } = maintenance(t, models, { first: 1, interval: 50 })
  for (let times = 0; times < 3; times++) {
    await lapse()
    await waitFor(gone)
  }
  let stopping: Promise<void> | undefined
  await database.transact(async transaction => {
    await database.sequelize.query('LOCK TABLE mailed_keys', { transaction })
    await waitFor(() => waits(database))
    stopping = stop()
    t.is(await endsOrWaits(database, stopping), 'waits')
  })
  await stopping
  await lapse()
  await database.sequelize.query('SELECT pg_sleep(0.2)')
  t.false(await gone())
})

test('a service starts a maintenance run soon after its start', async t => {
  const first = await startTestService(t)
  const { sequelize } = first.registry.database
  await sequelize.query(`INSERT INTO attempts VALUES ('lapsed', 1, now() - interval '1 day')`)
  const left = async () => (await sequelize.query(`SELECT FROM attempts WHERE subject = 'lapsed'`))[0].length > 0
  if (await left()) await startTestService(t, { DATABASE_URL: first.env.DATABASE_URL! })
  await waitFor(async () => !(await left()))
  t.pass()
})

test('an activation key expires 72 hours after it is mailed', async t => {
  const service = await startTestService(t)
  const { mailedKeys, database } = service.registry
  const organization = await service.organization()
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const activationkey = randomUUID()
  const mail = () => mailedKeys.replace(idOf(token), 'activation', activationkey, { organizationId: organization.id })
  const activate = () => service.request('POST', '/users/activate', { token, query: { username, activationkey } })
  await mail()
  await database.sequelize.query(`UPDATE mailed_keys SET expires_at = expires_at - interval '72 hours'`)
  refused(t, await activate(), 422, 'ACTIVATION_REFUSED')
  await mail()
  await database.sequelize.query(`UPDATE mailed_keys SET expires_at = expires_at - interval '71 hours 59 minutes'`)
  t.is((await activate()).text, username)
})

// Imported answers work before and after they are hashed, and two replicas hash them at once.

test('imported answers work before and after idle threads of two replicas have hashed them', async t => {
  const service = await startTestService(t)
  const { registry, settings, request } = service
  const { database } = registry
  const hashing = createHashing(registry, settings, { now: Date.now })
  t.teardown(() => hashing.pool.close())
  const { passwords } = hashing
  const users = await Promise.all(Array.from({ length: 30 }, () => service.signUp('ROLE_CLIENT')))
  const answer = (question: number) => ({ forgotpasswordquestionsid: question, answer: `Resposta ${question}` })
  await database.transact(async transaction => {
    for (const { token } of users)
      for (const question of [1, 2])
        await database.run(
          sql`INSERT INTO answers (user_id, question_id, answer_hash) VALUES (${idOf(token)}, ${question}, ${passwords.key(` resposta  ${question}`)})`,
          transaction,
        )
  })
  const recover = async ({ username }: { username: string }, ...answers: object[]) =>
    (await request('POST', '/forgotpasswords/loginbyusernameandanswers', { query: { username }, body: answers })).status
  const wrong = { ...answer(2), answer: 'outra' }
  t.deepEqual([await recover(users[0]!, answer(1), answer(2)), await recover(users[0]!, answer(1), wrong)], [200, 422])

  const times = { first: 0, interval: 1e9, afterFailure: 10 }
  const replicas = [0, 1].map(() => startWrapping(registry, passwords, createLog('silent'), times))
  const left = async () =>
    (
      await database.run<{ n: number }>(sql`SELECT count(*)::int AS n FROM answers WHERE answer_hash LIKE 'keyed1:%'`)
    )[0]!.n
  await waitForValue(left, 0)
  for (const stop of replicas) await stop()
  const hashes = await database.run<{ hash: string }>(sql`SELECT answer_hash AS hash FROM answers`)
  t.is(hashes.length, 60)
  t.true(hashes.every(({ hash }) => /^hmac1:\$2b\$04\$/.test(hash)))
  t.deepEqual([await recover(users[1]!, answer(1), answer(2)), await recover(users[1]!, answer(1), wrong)], [200, 422])
})

test('hashes that version 1.0.0 imported sign in before and after they are sealed, which begins with `migrate up --contract`', async t => {
  const service = await startTestService(t)
  const { registry, settings, env } = service
  const { passwords, pool } = createHashing(registry, settings, { now: Date.now })
  t.teardown(() => pool.close())
  // As in a database of 1.0.0.
  await ask(env.DATABASE_URL!, `DROP INDEX users_bare_hash; DELETE FROM migrations WHERE name LIKE '0009-%'`)
  const bare = [await bcrypt.hash('senha de antes', 4), await bcrypt.hash('outra de antes', 4)]
  const users = await Promise.all(bare.map(() => service.signUp('ROLE_CLIENT')))
  for (const [at, { token }] of users.entries())
    await ask(env.DATABASE_URL!, `UPDATE users SET password_hash = '${bare[at]}' WHERE id = ${idOf(token)}`)
  const api = await openLocal(t, service, { reason: 'teste' })
  const form = { username: randomUUID(), state: 'SP', city: 'Bauru', role: 'ROLE_CLIENT' }
  const { import: begun } = await api.startImport({ kind: ImportKind.USERS, sourceDigest: 'ab'.repeat(32) })
  await api.importBatch({ id: begun!.id, users: [{ form, passwordHash: bare[0]! }] })
  const round = async () => {
    const stop = startWrapping(registry, passwords, log, { first: 0, interval: 1e9, afterFailure: 10 })
    await waitForValue(async () => (await registry.users.bareHashes(1)).length, 0)
    await stop()
  }
  const dump = () => ask(env.DATABASE_URL!, 'SELECT * FROM users ORDER BY id')
  const login = async (username: string, password: string) =>
    (await service.request('POST', '/users/login', { query: { username, password } })).status
  await round()
  const isBare = async () => (await dump()).filter(({ password_hash: hash }) => String(hash).startsWith('$2')).length
  t.is(await isBare(), 3)

  done(await runCli(env, ['migrate', 'up', '--contract']))
  await round()
  t.notRegex(JSON.stringify(await dump()), /"\$2/)
  t.is(await login(users[1]!.username, 'senha de antes'), 404)
  t.is(await login(users[1]!.username, 'outra de antes'), 200)
  t.is(await login(form.username, 'senha de antes'), 200)
  // Another system reads the hash of an export.
  const { secrets } = await api.getUserSecrets({ ids: [idOf(users[0]!.token)] })
  t.is(secrets[0]!.passwordHash, bare[0])
})

test('the hashing of imported answers goes on soon after an error, and after all threads were busy', async t => {
  const models = await openModels(t)
  const [user, { id }] = [await addUser(models, 'ana'), await models.questions.add({ question: '?', questionKey: '?' })]
  await models.database.run(
    sql`INSERT INTO answers (user_id, question_id, answer_hash) VALUES (${user}, ${id}, 'keyed1:x')`,
  )
  const outcomes = [() => Promise.reject(new Error('a fault')), async () => undefined, async () => 'hashed']
  const times = { first: 0, interval: 1e9, afterFailure: 10 }
  t.teardown(startWrapping(models, { wrap: () => outcomes.shift()!(), seal: String }, log, times))
  await waitForValue(() => texts(models, 'SELECT answer_hash AS text FROM answers'), ['hashed'])
  t.is(outcomes.length, 0)
})

test('while the main thread is busy, the hashing of answers rests four times as long as it worked', async t => {
  const models = await openModels(t)
  const begun: number[] = []
  const answers = {
    ...models.answers,
    lastKeyed: async () => (begun.push(performance.now()) > 1 ? 0 : 1),
    keyed: async () => [{ userId: 1, questionId: 1, keyed: 'x' }],
    wrap: async () => {},
  }
  const work = 50
  const wrap = async () => {
    for (const end = performance.now() + work; performance.now() < end; );
    return 'hashed'
  }
  t.teardown(
    startWrapping({ ...models, answers }, { wrap, seal: String }, log, {
      first: 0,
      interval: 1e9,
      afterFailure: 1e9,
    }),
  )
  await waitForValue(() => begun.length, 2)
  t.true(begun[1]! - begun[0]! >= 5 * work - 1, String(begun))
})

test('a sign-in doesn’t wait behind answers that are to be hashed, and a stop ends the round', async t => {
  const { registry, settings } = await startTestService(t)
  const { pool, passwords } = createHashing(registry, { ...settings, bcryptCost: 10 }, { now: Date.now, count: 1 })
  t.teardown(() => pool.close())
  const answer = { userId: 1, questionId: 1, keyed: passwords.key('x')! }
  let hashed = 0
  const answers = {
    ...registry.answers,
    lastKeyed: async () => 1,
    keyed: async () => Array.from({ length: 20 }, () => answer),
    wrap: async () => void hashed++,
  }
  const stop = startWrapping({ ...registry, answers }, passwords, createLog('silent'), {
    first: 0,
    interval: 1e9,
    afterFailure: 1e9,
  })
  await waitForValue(() => hashed > 0, true)
  const waiter = { kind: 'other', networks: [], account: 'a', deadline: Date.now() + 60_000 } as const
  const before = hashed
  await passwords.hash([{ context: 'password', text: 'um cavalo azul' }], waiter)
  // At most the hashes in progress and one that started meanwhile.
  t.true(hashed - before <= 2, String(hashed - before))
  await stop()
  const after = hashed
  await passwords.hash([{ context: 'password', text: 'um cavalo azul' }], waiter)
  t.is(hashed, after)
})
