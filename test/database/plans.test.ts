/** Statements find their rows by index however many users there are, and every index earns its keep. */
import test from 'ava'
import type { Database } from '../../server/database/connection.js'
import { createLog } from '../../server/log.js'
import { createAttempts } from '../../server/models/attempt.js'
import { createAudit } from '../../server/models/audit.js'
import { openRegistry } from '../../server/models/definemodels.js'
import { createEmails } from '../../server/models/email.js'
import { createMailedKeys } from '../../server/models/mailedkey.js'
import { createOrganizations } from '../../server/models/organization.js'
import { createQuestions } from '../../server/models/question.js'
import { createSignIns } from '../../server/models/signin.js'
import { createUsers } from '../../server/models/user.js'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const rows = 20_000

test.serial.before(async () => {
  const { sequelize } = service.registry.database
  await sequelize.query(`
    INSERT INTO organizations (name, name_key, email, activation_key_digest, activation_key_sealed)
      SELECT 'o' || n, 'o' || n, 'o' || n || '@example.org', sha256(n::text::bytea), '' FROM generate_series(1, ${rows}) n;
    INSERT INTO users (username, username_key, nickname, nickname_key, password_hash, email, state, city,
        terms_of_usage, role, active, organization_id)
      SELECT 'u' || n, 'u' || n, 'n' || n, 'n' || n, '', 'u' || n || '@example.org', 'SP', 'Bauru', true,
        'ROLE_INSTITUTION', true, n FROM generate_series(1, ${rows}) n;
    INSERT INTO provider_keys (user_id, key_digest, key_sealed) SELECT id, sha256(id::text::bytea), '' FROM users;
    INSERT INTO answers (user_id, question_id, answer_hash) SELECT u.id, q.id, '' FROM users u, questions q WHERE q.id < 4;
    INSERT INTO emails (kind, parameters, locale, next_attempt_at)
      SELECT 'password-changed', '{}', 'en', now() + n * interval '1 hour' FROM generate_series(1, ${rows}) n;
    INSERT INTO mailed_keys (user_id, purpose, key_digest, expires_at)
      SELECT id, 'recovery', sha256(id::text::bytea), now() + interval '1 day' FROM users;
    INSERT INTO attempts SELECT sha256(n::text::bytea), 1, now() + interval '1 day' FROM generate_series(1, ${rows}) n;
    INSERT INTO known_addresses (user_id, address) SELECT id, sha256(id::text::bytea) FROM users;
  `)
  await service.registry.database.transact(async t => {
    for (let n = 0; n < 500; n++) {
      const event = { action: 'user.sign-up', outcome: 'ok', actor: 'service', subject_id: n } as const
      await service.registry.audit.append(event, t)
    }
  })
  await sequelize.query('ANALYZE')
})

interface Plan {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly Plans?: Plan[]
}

/** Nodes of the plans that PostgreSQL makes for what a model runs: for the values given, and for any. */
async function plansOf(use: (database: Database) => Promise<unknown>): Promise<Plan[]> {
  const { database } = service.registry
  const nodes: Plan[] = []
  const collect = (plan: Plan) => {
    nodes.push(plan)
    for (const inner of plan.Plans ?? []) collect(inner)
  }
  const explain = async <Row>({ text }: { text: string }, values: readonly unknown[]) => {
    await database.transact(async t => {
      const ask = async (name: string, sql: string, given: readonly unknown[]) =>
        (await database.run<{ 'QUERY PLAN': [{ Plan: Plan }] }>({ name, text: sql }, given, t))[0]!['QUERY PLAN'][0]
          .Plan
      collect(await ask('', `EXPLAIN (FORMAT JSON) ${text}`, values))
      collect(await ask('', `EXPLAIN (GENERIC_PLAN, FORMAT JSON) ${text}`, []))
    })
    return [] as Row[]
  }
  const explaining = {
    ...database,
    transact: work => work(undefined as never),
    run: explain,
    read: explain,
  } as Database
  // What a model makes of no rows is of no interest here.
  await use(explaining).catch(error => {
    if (nodes.length === 0) throw error
  })
  return nodes
}

const key = Buffer.alloc(32)
const none = undefined as never

/** Uses of the models, each with the indexes that must lead to its rows. */
const uses: Record<string, [indexes: string[], use: (database: Database) => Promise<unknown>]> = {
  'a user by id': [
    ['users_pkey', 'organizations_pkey', 'provider_keys_user_id_key'],
    d => createUsers(d, masterKey()).byId(9),
  ],
  'a user by username': [['users_username_key_key'], d => createUsers(d, masterKey()).byUsername('u9')],
  'caller and user in one': [['users_pkey', 'users_username_key_key'], d => createUsers(d, masterKey()).both(9, 'u8')],
  'names that are taken': [
    ['users_username_key_key', 'users_nickname_key_key'],
    d => createUsers(d, masterKey()).taken('u9', 'n9'),
  ],
  'free nicknames': [['users_nickname_key_key'], d => createUsers(d, masterKey()).takenNicknames(['n1', 'n2'])],
  'a user to be changed': [['users_username_key_key'], d => createUsers(d, masterKey()).lock('u9', none)],
  'a new password': [
    ['users_pkey', 'mailed_keys_pkey'],
    d => createUsers(d, masterKey()).changePassword(9, '', 0, none),
  ],
  'users of an organization': [
    ['users_organization'],
    d => createUsers(d, masterKey()).list({ organizationId: 9, limit: 10 }),
  ],
  'the start of a sign-in': [
    ['users_username_key_key', 'known_addresses_pkey'],
    d => createSignIns(d, subjects()).begin('u9', '192.0.2.1'),
  ],
  'a sign-in taken back': [
    ['attempts_pkey'],
    d =>
      createSignIns(d, subjects()).undo({
        account: undefined,
        wait: undefined,
        reached: false,
        subjects: [key, key],
      } as never),
  ],
  'the end of a sign-in': [
    ['attempts_pkey', 'users_pkey'],
    d =>
      createSignIns(d, subjects()).succeed(
        { account: { id: 9, passwordHash: '' }, subjects: [key, key] } as never,
        '192.0.2.1',
        { action: 'session.login', outcome: 'ok', actor: 'user' },
      ),
  ],
  'whether an address is known': [['known_addresses_pkey'], d => createSignIns(d, subjects()).knows(9, '192.0.2.1')],
  'an organization by its key': [
    ['organizations_activation_key_digest_key'],
    d => createOrganizations(d, masterKey()).byActivationKey('', none),
  ],
  'an organization by the key of a provider': [
    ['provider_keys_key_digest_key', 'users_pkey', 'organizations_pkey'],
    d => createOrganizations(d, masterKey()).byProviderKey('', none),
  ],
  'an organization by its e-mail address': [
    ['organizations_email'],
    d => createOrganizations(d, masterKey()).byEmail('o9@example.org', { organizationId: null, institutionKey: '' }),
  ],
  'a mailed key that is tried': [['mailed_keys_pkey'], d => createMailedKeys(d, masterKey()).attempt(9, 'recovery')],
  'a mailed key that is spent': [
    ['mailed_keys_pkey'],
    d => createMailedKeys(d, masterKey()).spend(9, 'activation', '', none),
  ],
  'the e-mail that is due': [['emails_due', 'emails_pkey'], d => emails(d).claim(60)],
  'an e-mail that is sent': [['emails_pkey'], d => emails(d).done('9')],
  'answers of a user': [['answers_pkey'], d => createQuestions(d).answers(9)],
  'a count of attempts': [['attempts_pkey'], d => createAttempts(d).read(key)],
  'counts that are forgotten': [['attempts_pkey'], d => createAttempts(d).clear([key])],
  'the record of a user': [['audit_events_subject'], d => createAudit(d).list({ subjectId: 9, limit: 10 })],
  'the newest of the record': [['audit_events_pkey'], d => createAudit(d).list({ limit: 10 })],
}
const masterKey = () => service.registry.masterKey
const subjects = () => service.registry.subjects
const emails = (d: Database) => createEmails(d, subjects(), createAudit(d))

for (const [name, [indexes, use]] of Object.entries(uses)) {
  test(`${name}: found by index among ${rows}`, async t => {
    const nodes = await plansOf(use)
    const scanned = nodes.filter(node => node['Node Type'] === 'Seq Scan').map(node => node['Relation Name'])
    t.deepEqual(scanned, [])
    const used = new Set(nodes.map(node => node['Index Name']))
    for (const index of indexes) t.true(used.has(index), `${index} isn’t among ${[...used].join(', ')}`)
  })
}

/** Indexes that are there for what they forbid, not for what they find. */
const guards = new Set([
  'audit_head_pkey',
  'migrations_pkey',
  'organizations_name_key_key',
  'provider_keys_pkey',
  // So few rows are read as a whole.
  'questions_question_key_key',
  'signing_keys_pkey',
])

test.serial('every index is used by some operation, or guards something', async t => {
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

  // What the administrator's commands do.
  const own = await openRegistry(service.settings, { log: createLog('silent'), connections: 1 })
  const user = (await own.users.byUsername('u9'))!
  await own.users.list({ organizationId: user.organizationId!, limit: 10 })
  await own.audit.list({ subjectId: user.id, limit: 10 })
  await own.audit.list({ limit: 10 })
  await own.questions.offered({ key: 'no such question' })
  await own.close()

  const names = async (text: string) =>
    (await registry.database.run<{ name: string }>({ name: '', text }, [])).map(({ name }) => name)
  const until = async (isDone: () => Promise<boolean>) => {
    for (let tries = 0; tries < 200 && !(await isDone()); tries++) await new Promise(done => setTimeout(done, 50))
  }
  // The e-mails go out.
  await until(
    async () =>
      (await names('SELECT kind AS name FROM emails WHERE attempts = 0 AND next_attempt_at <= now()')).length === 0,
  )
  // A connection hands in its counts when it closes.
  await service.service.stop()
  const unused = async () =>
    (await names('SELECT indexrelname AS name FROM pg_stat_user_indexes WHERE idx_scan = 0 ORDER BY 1')).filter(
      name => !guards.has(name),
    )
  await until(async () => (await unused()).length === 0)
  t.deepEqual(await unused(), [])
})
