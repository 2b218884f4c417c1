/** Statements find their rows by index with any number of users, and every index is used. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { openDatabase } from '../../server/database/database.js'
import { type Statement, sql } from '../../server/database/sql.js'
import { defineModels, type Models, openRegistry } from '../../server/models/index.js'
import { createLog } from '../../server/observability/log.js'
import { appendMany } from '../_helpers/models.js'
import { password, serviceForFile } from '../_helpers/service.js'
import { waitFor } from '../_helpers/wait.js'

// With another issuer it installs the registry itself, because only the installation uses some indexes.
const service = serviceForFile(() => ({ AUTH_ISSUER: 'http://plans.test' }))
const rows = 20_000

test.serial.before(async () => {
  const { runUnlimited } = service.registry.database
  const statements = `
    INSERT INTO organizations (name, name_key, email, activation_key_digest, activation_key_sealed)
      SELECT 'o' || n, 'o' || n, 'o' || n || '@example.org', sha256(n::text::bytea), '' FROM generate_series(1, ${rows}) n;
    INSERT INTO users (username, username_key, username_skeleton, nickname, nickname_key, nickname_skeleton,
        password_hash, email, state, city, institution, terms_of_usage, role, active, organization_id)
      SELECT 'u' || n, 'u' || n, 'u' || n, 'n' || n, 'n' || n, 'n' || n, '', 'u' || n || '@example.org', 'SP', 'Bauru',
        CASE WHEN n % 8 = 0 THEN 'Liceu' END, true, 'ROLE_INSTITUTION', true, n FROM generate_series(1, ${rows}) n;
    INSERT INTO users (username, username_key, username_skeleton, nickname, nickname_key, nickname_skeleton,
        password_hash, state, city, terms_of_usage, role, organization_id, created_at, unactivated_seen_at)
      SELECT 'w' || n, 'w' || n, 'w' || n, 'w' || n, 'w' || n, 'w' || n, '', 'CE', 'Crato', true, 'ROLE_INSTITUTION', 1,
        now() + n * interval '1 day', now() - n * interval '1 minute' FROM generate_series(1, ${rows / 4}) n;
    INSERT INTO former_usernames SELECT 'f' || id, 'f' || id, id, now() + id * interval '1 minute' FROM users;
    INSERT INTO provider_keys (user_id, key_digest, key_sealed) SELECT id, sha256(id::text::bytea), '' FROM users;
    INSERT INTO answers (user_id, question_id, answer_hash) SELECT u.id, q.id, '' FROM users u, questions q WHERE q.id < 4;
    INSERT INTO emails (kind, parameters, locale, next_attempt_at)
      SELECT 'password-changed', '{}', 'en', now() + n * interval '1 hour' FROM generate_series(1, ${rows}) n;
    INSERT INTO mailed_keys (user_id, purpose, key_digest, expires_at)
      SELECT id, 'recovery', sha256(id::text::bytea), now() + interval '1 day' FROM users;
    INSERT INTO sent_emails (id, kind, user_id, created_at, attempts, answer)
      SELECT -id, 'password-changed', id, now(), 1, '250 OK' FROM users;
    INSERT INTO attempts (subject, account, count, window_ends)
      SELECT sha256(n::text::bytea), sha256((n / 2)::text::bytea), 1, now() + interval '1 day' FROM generate_series(1, ${rows}) n;
    INSERT INTO known_addresses (user_id, address) SELECT id, sha256(id::text::bytea) FROM users;
    INSERT INTO refreshed_sessions (user_id, id, newest, ended, ends_at) SELECT id, 's', 1, false, now() + interval '9 days' FROM users;
    INSERT INTO services (name, scopes) SELECT 's' || n, '{users.read}' FROM generate_series(1, ${rows}) n;
    INSERT INTO service_keys (service_id, beginning, digest, expires_at)
      SELECT id, '', sha256(id::text::bytea), now() + interval '1 day' FROM services;
    INSERT INTO email_quotas SELECT sha256(n::text::bytea), ARRAY[now()] FROM generate_series(1, ${rows}) n;
    INSERT INTO buckets SELECT sha256(n::text::bytea), 1, now() FROM generate_series(1, ${rows}) n;
    INSERT INTO unmatched_answers SELECT id, 'q' || id, 'q' || id, '' FROM users;
    INSERT INTO question_aliases SELECT 'q' || id, 1 FROM users;
    INSERT INTO imports (kind, source_digest, dry_run, all_or_nothing, change_accounts, keep_ids, actor)
      SELECT 'users', n::text, false, false, '{}', false, 'user' FROM generate_series(1, ${rows}) n;
    INSERT INTO spent_ids SELECT 'users', n FROM generate_series(1, ${rows}) n;
    INSERT INTO import_batches (import_id, first_row, row_count, answer) SELECT id, 0, 1, '' FROM imports;
    INSERT INTO import_records SELECT id, sha256(id::text::bytea), 1 FROM imports
  `
  for (const statement of statements.split(';')) await runUnlimited(sql.text(statement))
  // Plans are for sealed events.
  const event = { action: 'user.sign-up', outcome: 'ok', actor: 'service' } as const
  await appendMany(
    service.registry,
    Array.from({ length: 500 }, (_, n) => [
      { ...event, subject_id: n, actor_id: n + 1 },
      { ...event, action: 'user.import' as const, object: `import:${n} created:${n}-${n + 20}` },
    ]).flat(),
  )
  await runUnlimited(sql`ANALYZE`)
})

interface Plan {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly 'Index Cond'?: string
  readonly 'Conflict Arbiter Indexes'?: readonly string[]
  readonly 'Actual Rows'?: number
  readonly 'Rows Removed by Filter'?: number
  readonly Plans?: Plan[]
}

/** Nodes of the plans of PostgreSQL for the statements of a model, written by hand or by Sequelize. */
async function plansOf(use: (models: Models) => Promise<unknown>, runs = false): Promise<Plan[]> {
  const { database, dataKeys } = service.registry
  const nodes: Plan[] = []
  const collect = (plan: Plan) => {
    nodes.push(plan)
    for (const inner of plan.Plans ?? []) collect(inner)
  }
  const explain = async <Row>({ name = '', text, values }: Statement) => {
    await database.transact(async t => {
      const ask = async (options: string, given: readonly unknown[]) =>
        (
          await database.run<{ 'QUERY PLAN': [{ Plan: Plan }] }>(
            { text: `EXPLAIN (${options}FORMAT JSON) ${text}`, values: given },
            t,
          )
        )[0]!['QUERY PLAN'][0].Plan
      // For the values given, and for any; without a name it is planned each time.
      collect(await ask(runs ? 'ANALYZE, ' : '', values))
      if (name !== '') collect(await ask('GENERIC_PLAN, ', []))
    })
    return [] as Row[]
  }
  const own = openDatabase(service.env.DATABASE_URL!, 1)
  own.sequelize.query = (async (sql: string | { query: string; bind?: unknown[] }, options: { bind?: unknown[] }) => {
    const { query, bind = [] } = typeof sql === 'string' ? { query: sql, ...options } : sql
    return explain({ name: query, text: query, values: bind })
  }) as never
  const statements = { run: explain, read: explain, runUnlimited: explain }
  const models = defineModels({ ...own, transact: work => work(none), ...statements }, dataKeys)
  // The result of a model without rows doesn't matter here.
  await use(models).catch(error => {
    if (nodes.length === 0) throw error
  })
  await own.close()
  return nodes
}

const key = Buffer.alloc(32)
const counter = { subject: key, account: key }
const event = { action: 'session.login', outcome: 'ok', actor: 'user' } as const
/** A placeholder for a transaction. */
const none = { LOCK: { UPDATE: 'UPDATE', NO_KEY_UPDATE: 'NO KEY UPDATE', SHARE: 'SHARE' } } as never

/** Uses of the models, each with the indexes that must lead to its rows. */
const uses: Record<string, [indexes: string[], use: (models: Models) => Promise<unknown>]> = {
  'a user by id': [['users_pkey', 'organizations_pkey', 'provider_keys_user_id_key'], m => m.users.byId(9)],
  'a user by username': [['users_username_key_key'], m => m.users.byUsername('u9')],
  'a caller': [['users_pkey'], m => m.users.findTokenHolder(9, 'kid')],
  'users by ids and usernames': [
    ['users_pkey', 'users_username_key_key', 'organizations_pkey', 'provider_keys_user_id_key'],
    m => m.users.findMany([8, 9], ['u7']),
  ],
  'members of organizations': [['users_organization_id'], m => m.users.membersOfEach([8, 9])],
  'who has a key of a service': [['service_keys_digest_key', 'services_pkey'], m => m.services.holder(key)],
  'a use of a key of a service': [['service_keys_pkey'], m => m.services.touch(9)],
  'keys of services': [['service_keys_service'], m => m.services.keys([8, 9])],
  'services by name': [['services_name_key'], m => m.services.list({ limit: 10 })],
  'a caller who changes itself': [['users_pkey', 'organizations_pkey'], m => m.administeredUsers.lockPair(9, 9, none)],
  'caller and user in one': [
    ['users_pkey', 'users_username_key_key'],
    m => m.users.findTokenHolderAndUser(9, 'kid', 'u8'),
  ],
  'names that are taken': [
    ['users_username_key_key', 'former_usernames_pkey', 'users_nickname_key_key'],
    m => m.users.taken('u9', 'n9'),
  ],
  'names that are reserved for a user': [['former_usernames_user'], m => m.formerUsernames.reserved(9, 'u9', none)],
  'a former username': [['users_pkey', 'former_usernames_pkey'], m => m.formerUsernames.reserve(9, 'x', none)],
  'whose a former username is': [['former_usernames_pkey', 'users_pkey'], m => m.formerUsernames.holder('u9')],
  'counts of failures under a new username': [
    ['known_addresses_pkey', 'attempts_pkey', 'attempts_account'],
    m => m.attempts.rename(9, 'u9', 'x', none),
  ],
  'names that look alike': [
    ['users_username_skeleton', 'users_username_key_key', 'former_usernames_skeleton', 'former_usernames_pkey'],
    m => m.users.nameProblems([{ username: 'u9', nickname: 'n9' }]),
  ],
  'a new password': [
    ['users_pkey', 'attempts_pkey', 'attempts_account'],
    m => m.users.changePassword({ id: 9, usernameKey: 'u9' }, '', { byToken: true }, none),
  ],
  'a new e-mail address': [
    ['users_pkey', 'users_pkey', 'mailed_keys_pkey', 'emails_owner'],
    m => m.users.setEmail({ id: 9, email: null }, null, { address: '192.0.2.1', locale: 'en' }, none),
  ],
  'usernames that look like ids': [['users_username_key_key'], m => m.administeredUsers.namedLikeIds()],
  'e-mails that bring keys': [
    ['emails_owner', 'users_pkey'],
    m => m.emails.discard(9, ['recovery', 'email', 'activation'], none),
  ],
  'users of an organization': [
    ['users_organization_id'],
    m => m.administeredUsers.list({ organizationId: 9, limit: 10 }),
  ],
  'the first users by id': [['users_pkey'], m => m.administeredUsers.list({ limit: 50 })],
  'users behind another': [['users_pkey'], m => m.administeredUsers.list({ afterId: 9_000, limit: 50 })],
  'members of an organization by words': [
    ['users_organization_id'],
    m => m.administeredUsers.list({ organizationId: 9, text: 'u9', byEmail: false, limit: 51 }),
  ],
  'users of a role': [['users_role'], m => m.administeredUsers.list({ role: 'ROLE_CLIENT', limit: 50 })],
  'users that wait for activation': [
    ['users_inactive'],
    m => m.administeredUsers.list({ state: 'inactive', limit: 50 }),
  ],
  'suspended users': [['users_suspended'], m => m.administeredUsers.list({ state: 'suspended', limit: 50 })],
  'deleted users': [['users_deleted'], m => m.administeredUsers.list({ state: 'deleted', limit: 50 })],
  'users of these days': [
    ['users_created'],
    m => m.administeredUsers.list({ createdFrom: new Date(Date.now() + 86_400_000), limit: 50 }),
  ],
  'users with a word': [['users_words'], m => m.administeredUsers.list({ text: 'u900', limit: 50 })],
  'a user to be purged': [['users_deleted'], m => m.administeredUsers.lockForPurge(none)],
  'an account to be erased that was never activated': [
    ['users_unactivated'],
    m => m.administeredUsers.lockLapsed(9, none),
  ],
  'accounts signed up from a network': [
    ['users_inactive', 'audit_events_subject'],
    m => m.administeredUsers.signedUpFrom('192.0.2.0/24', { limit: 9, stretch: 10_000 }),
  ],
  'another administrator': [['users_role'], m => m.administeredUsers.anotherAdministrator(9, none)],
  'the start of a sign-in': [
    ['users_username_key_key', 'known_addresses_pkey', 'attempts_pkey', 'buckets_pkey'],
    m =>
      m.attempts.begin({
        usernameKey: 'u9',
        proof: 'password',
        address: '192.0.2.1',
        device: undefined,
        limits: { max: 10, bucket: { capacity: 300, perSecond: 1 } },
      }),
  ],
  'an attempt taken back': [['attempts_pkey'], m => m.attempts.undo(key)],
  'an attempt that failed': [
    ['attempts_pkey', 'buckets_pkey'],
    m =>
      m.attempts.fail(
        counter,
        { max: 10, seconds: 900, last: event },
        { userId: 9, address: '192.0.2.1', bucket: { capacity: 300, perSecond: 1 } },
      ),
  ],
  'the end of a sign-in': [
    ['attempts_pkey'],
    m => m.attempts.succeed(key, '192.0.2.1', { id: 9, tokenGeneration: 0 }, event),
  ],
  'a renewed hash': [['users_pkey'], m => m.users.renewPassword(9, '', '')],
  'a caller who changes another user': [
    ['users_pkey', 'organizations_pkey'],
    m => m.administeredUsers.lockPair(9, 8, none),
  ],
  'whether a network is known': [['known_addresses_pkey'], m => m.attempts.knownNetwork(9, '192.0.2.1')],
  'accounts that know a network': [
    ['known_addresses_address', 'users_pkey'],
    m => m.attempts.accountsKnowing('192.0.2.1', 5000),
  ],
  'a bucket': [['buckets_pkey'], m => m.buckets.take(key, { capacity: 3, perSecond: 1 })],
  'an organization by its key': [
    ['organizations_activation_key_digest_key'],
    m => m.activationKeys.organizationOf('', none),
  ],
  'an organization by the key of a provider': [
    ['provider_keys_key_digest_key', 'organizations_pkey'],
    m => m.activationKeys.providerOf('', none),
  ],
  'an organization by its e-mail address': [
    ['organizations_email'],
    m => m.organizations.byEmail('o9@example.org', { organizationId: null, institutionKey: '' }),
  ],
  'an organization by its name': [
    ['organizations_name_key', 'organizations_inep_code'],
    m => m.organizations.named('o9', 'o9'),
  ],
  'a mailed key that is tried': [
    ['mailed_keys_pkey'],
    m => m.mailedKeys.attempt({ id: 9, tokenGeneration: 0 }, ['recovery', 'issued'], '', '192.0.2.1'),
  ],
  'users by a proved address': [['users_proved_email'], m => m.users.byProvedAddress('u9@example.org')],
  'a mailed key that is spent': [
    ['mailed_keys_pkey'],
    m => m.mailedKeys.spend({ id: 9, tokenGeneration: 0 }, 'recovery', '', none),
  ],
  'a mailed activation key': [
    ['mailed_keys_pkey', 'organizations_pkey'],
    m => m.mailedKeys.organizationOf(9, '', none),
  ],
  'the e-mail that is due': [['emails_due', 'emails_pkey'], m => m.emails.claim(60, true)],
  'a request that no bucket counts': [
    ['emails_exempt_request'],
    m =>
      m.emails.replaceRequest(
        { usernameKey: 'u9', email: '', address: '', requestId: '', network: '', registered: true },
        'en',
      ),
  ],
  'an e-mail that is sent': [['emails_pkey'], m => m.emails.done('9')],
  'an e-mail that is delayed': [['emails_pkey'], m => m.emails.failed('9', '', 5)],
  'a notice that is held back': [['emails_pkey', 'emails_held_notice'], m => m.emails.hold('9', 5, none)],
  'a count of e-mails': [['email_quotas_pkey'], m => m.emailQuotas.take(key, [{ max: 5, seconds: 3600 }], none)],
  'records that an import changed': [['import_records_pkey'], m => m.imports.touched(9, ['u9'], none)],
  'ids that a new record can have': [
    ['spent_ids_pkey'],
    m => m.imports.ids.free('users', [9], { dryRun: false }, none),
  ],
  'answers of a user': [['answers_pkey'], m => m.answers.of(9)],
  'counts of an account': [['attempts_pkey', 'attempts_account'], m => m.attempts.readAll(key)],
  'counts that are forgotten': [['attempts_pkey', 'attempts_account'], m => m.attempts.clear([key])],
  'the audit log of a user': [
    ['audit_events_subject', 'audit_events_imported'],
    m => m.audit.list({ subjectId: 9, limit: 10 }),
  ],
  'the events of an export': [
    ['audit_events_subject', 'audit_events_actor'],
    m => m.userData.events(9, { before: { id: '900' }, limit: 10 }),
  ],
  'the events that a user lists': [
    ['audit_events_subject', 'audit_events_actor'],
    m => m.userData.ownEvents(9, { before: { id: '900' }, limit: 10 }),
  ],
  'since when a user has answers': [
    ['audit_events_subject', 'answers_pkey', 'unmatched_answers_pkey', 'users_pkey'],
    m => m.userData.answersSince(9),
  ],
  'the previous sign-in': [['audit_events_subject'], m => m.userData.previousSignIn(9, 1_800_000_000)],
  'the data of a user': [
    ['users_pkey', 'organizations_pkey', 'provider_keys_user_id_key', 'answers_pkey', 'emails_owner'],
    m => m.userData.export(9, 'owner'),
  ],
  'the newest of the audit log': [['audit_events_pkey'], m => m.audit.list({ limit: 10 })],
  'the last backup': [['audit_events_backup'], m => m.audit.lastBackup()],
  'what a user did': [['audit_events_actor', 'audit_events_subject'], m => m.audit.list({ actorId: 9, limit: 10 })],
  'a page of the audit log': [
    ['audit_events_pkey'],
    m => m.audit.list({ action: 'user.*', limit: 10 }, { beforeId: 400, fromId: 100 }),
  ],
  'the changes after a link': [
    ['audit_events_changes', 'audit_events_pkey', 'users_pkey'],
    m => m.changeFeed.page({ id: 400, hash: '' }, 50),
  ],
  'where a snapshot of the feed begins': [['audit_events_changes'], m => m.changeFeed.start()],
  'the links after another one': [['audit_events_pkey', 'users_pkey'], m => m.changeFeed.tail({ id: 990, hash: '' })],
  'answers that are linked': [
    ['unmatched_answers_key', 'question_aliases_pkey', 'answers_pkey'],
    m => m.unmatchedAnswers.link('q9', 1, none),
  ],
}

for (const [name, [indexes, use]] of Object.entries(uses)) {
  test(`${name}: found by index among ${rows}`, async t => {
    const nodes = await plansOf(use)
    const scanned = nodes.filter(node => node['Node Type'] === 'Seq Scan').map(node => node['Relation Name'])
    // Few rows: signing keys and questions, one end of the audit log, one-time codes of administrators, the unsealed events of
    // the last moment, and the ids that imports reserved.
    const few = [
      ...['signing_keys', 'totp_secrets', 'questions', 'audit_staged', 'audit_head', 'audit_checkpoint'],
      'reserved_ids',
    ]
    t.deepEqual(
      scanned.filter(name => !few.includes(name ?? '')),
      [],
    )
    const used = new Set(nodes.flatMap(node => [node['Index Name'], ...(node['Conflict Arbiter Indexes'] ?? [])]))
    for (const index of indexes) t.true(used.has(index), `${index} isn’t among ${[...used].join(', ')}`)
  })
}

test('the due e-mail is found without reading e-mails that aren’t due', async t => {
  const nodes = await plansOf(m => m.emails.claim(60, true))
  const conditions = nodes.filter(node => node['Index Name'] === 'emails_due').map(node => node['Index Cond'])
  t.true(conditions.length > 0)
  for (const condition of conditions) t.regex(condition ?? '', /^\(\(priority = [012]\) AND \(next_attempt_at <= /)
})

test('expired addresses are found by index', async t => {
  const nodes = await plansOf(m => m.attempts.prune())
  t.true(nodes.some(node => node['Index Name'] === 'known_addresses_seen'))
})

test(`a search by words finds one user among ${rows}, and the first in order for a word that all have`, async t => {
  const { administeredUsers } = service.registry
  const found = async (text: string, afterId = 0) =>
    (await administeredUsers.list({ text, afterId, limit: 5 })).map(({ username }) => username)
  t.deepEqual(await found('u19999'), ['u19999'])
  t.deepEqual(await found('bauru'), ['u1', 'u2', 'u3', 'u4', 'u5'])
  const { id } = (await administeredUsers.find({ usernameKey: 'u9000' }))!
  t.deepEqual(await found('BAURÚ', id), ['u9001', 'u9002', 'u9003', 'u9004', 'u9005'])
  t.deepEqual(await found('u9 baur', id).then(names => names.length), 5)
})

const day = 86_400_000
const lists: Record<string, Parameters<Models['administeredUsers']['list']>[0]> = {
  'a word that each eighth user has': { text: 'liceu', limit: 51 },
  'members of an organization of thousands by a word that all have': { organizationId: 1, text: 'crato', limit: 51 },
  'users of the last two thousand': { createdFrom: new Date(Date.now() + (rows / 4 - 2000) * day), limit: 51 },
}

for (const [name, filter] of Object.entries(lists)) {
  test(`${name}: found among ${rows} without reading many more`, async t => {
    const nodes = await plansOf(m => m.administeredUsers.list(filter), true)
    const read = nodes
      .filter(node => node['Relation Name'] === 'users')
      .map(node => (node['Actual Rows'] ?? 0) + (node['Rows Removed by Filter'] ?? 0))
    t.true(Math.max(...read) >= 51)
    t.true(Math.max(...read) < 2100, read.join(', '))
  })
}

/** Indexes that exist for a constraint, not for look-ups. */
const guards = new Set([
  'audit_checkpoint_pkey',
  'audit_head_pkey',
  // Few are staged, unless sealing was delayed.
  'audit_staged_subject',
  'data_keys_pkey',
  'emails_exempt_request',
  'emails_held_notice',
  // For changes of the addresses of organizations.
  'mailed_keys_organization',
  'migrations_pkey',
  // Asked once a minute for a blocked address, and above directly.
  'known_addresses_address',
  'organizations_name_key_key',
  'provider_keys_pkey',
  // A table with so few rows is read sequentially.
  'questions_question_key_key',
  'id_token_keys_pkey',
  'sealing_keys_pkey',
  'signing_keys_pkey',
  // For imports that keep ids, which are few.
  'reserved_ids_pkey',
  // For them too, and above directly.
  'spent_ids_pkey',
  // A user has one question at sign-up.
  'unmatched_answers_pkey',
  'totp_secrets_pkey',
])

test.serial('every index serves an operation or a constraint', async t => {
  const { request, signUp, login, registry } = service
  const to = async (method: string, path: string, query: Record<string, string>, more: object = {}) => {
    const { status, text } = await request(method, path, { query, ...more })
    t.is(status, 200, `${path}: ${text}`)
    return text
  }
  const organization = await service.organization()
  const email = 'ana@example.org'
  const provider = await service.institution(organization)
  const { username, nickname, token } = await signUp('ROLE_CLIENT', {
    email,
    securityquestion: '1',
    securityanswer: 'Rex',
  })
  await to('POST', '/users/existsByUsername', { username })
  await to('POST', '/users/existsByNickname', { nickname })
  await to('POST', '/users/activate', { username, activationkey: provider.providerKey }, { token })
  await to(
    'POST',
    '/forgotpasswords/saveforgotpasswordquestionsusersanswers',
    {},
    { token, body: { forgotpasswordquestionsid: 2, answer: 'Assis' } },
  )
  for (const name of [randomUUID(), username]) {
    await to('POST', '/users/me/username', {}, { token, body: { username: name, password } })
  }
  await to('GET', `/users/${encodeURIComponent(username)}`, {}, { token: provider.token })
  const answers = [
    { forgotpasswordquestionsid: 1, answer: 'rex' },
    { forgotpasswordquestionsid: 2, answer: 'assis' },
  ]
  await to('POST', '/forgotpasswords/loginbyusernameandanswers', { username }, { body: answers })
  await to('POST', '/forgotpasswords/sendkeybyemail', { username, email })
  await request('POST', '/forgotpasswords/loginbyusernameandkey', { query: { username, key: '22222222' } })
  await request('POST', '/users/login', { query: { username, password: 'wrong' } })
  await to(
    'POST',
    '/forgotpasswords/passwordupdatebyusername',
    { newPassword: 'tatu-canastra 12' },
    { token: await login(username) },
  )
  const applicant = await signUp('ROLE_INSTITUTION')
  const partner = { username: applicant.username, emailpartner: organization.email }
  await to('POST', '/1.0.0/users/sendadminkeybyemailpartner', partner, { token: applicant.token })

  // Commands of administrators.
  const own = await openRegistry(service.settings, { log: createLog('silent'), connections: 1 })
  await own.dataKeys.load()
  const user = (await own.users.byUsername('u9'))!
  const filters = [
    { organizationId: user.organizationId! },
    { state: 'inactive' },
    { state: 'suspended' },
    { state: 'deleted' },
    { role: 'ROLE_CLIENT' },
    { createdFrom: new Date(Date.now() + 86_400_000) },
    { text: 'u9001' },
  ] as const
  for (const filter of filters) await own.administeredUsers.list({ ...filter, limit: 10 })
  await own.organizations.list({ text: 'o9001', limit: 10 })
  await own.organizations.named('o9001', 'o9001')
  await own.totpSecrets.find(user.id)
  await own.users.byProvedAddress('u9@example.org')
  await own.emails.ofUser(user, { last: true })
  await own.audit.list({ subjectId: user.id, limit: 10 })
  await own.audit.list({ actorId: user.id, limit: 10 })
  await own.audit.list({ limit: 10 })
  await own.audit.lastBackup()
  await own.changeFeed.start()
  await own.database.transact(transaction => own.unmatchedAnswers.link('q9', 1, transaction))
  await own.questions.offered({ key: 'no such question' })
  const { id: serviceId } = (await own.services.find('s9'))!
  const [serviceKey] = await own.services.keys([serviceId])
  await own.services.touch(serviceKey!.id)
  await own.services.holder(key)
  await own.database.transact(t => own.services.remove(serviceId, t))
  await own.formerUsernames.prune()
  const again = {
    kind: 'users',
    dryRun: false,
    allOrNothing: false,
    changeAccounts: [] as string[],
    afterDryRun: null,
    keepIds: false,
  } as const
  const starter = { sourceDigest: '9', actor: 'user', actorId: null, tokenGeneration: null }
  const found = await own.database.transact(t => own.imports.start({ ...again, ...starter }, t))
  await own.imports.find(found.id)
  await own.database.transact(t => own.imports.findBatch(found.id, 0, t))
  await own.database.transact(t => own.imports.touched(found.id, ['u9'], t))
  await own.database.transact(t => own.erasure.erase(user.id, t))
  await own.close()

  const names = async (text: string) =>
    (await registry.database.run<{ name: string }>(sql.text(text))).map(({ name }) => name)
  // The e-mails are sent.
  await waitFor(
    async () =>
      (await names('SELECT kind AS name FROM emails WHERE attempts = 0 AND next_attempt_at <= now()')).length === 0,
  )
  // A connection reports its statistics when it closes.
  await service.service.stop()
  const unused = async () =>
    (await names('SELECT indexrelname AS name FROM pg_stat_user_indexes WHERE idx_scan = 0 ORDER BY 1')).filter(
      name => !guards.has(name),
    )
  await waitFor(async () => (await unused()).length === 0, unused)
  t.pass()
})
