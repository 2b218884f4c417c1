/** Transactions and connections: time limits, pipelined reads, locks, and a change with its event. */

import { randomUUID } from 'node:crypto'
import { setTimeout } from 'node:timers/promises'
import test from 'ava'
import pg from 'pg'
import { openDatabase } from '../../server/database/database.js'
import { sql } from '../../server/database/sql.js'
import type { Models } from '../../server/models/index.js'
import type { Place } from '../../server/models/organization.js'
import { runCli } from '../_helpers/cli.js'
import { anyAddress, from } from '../_helpers/crowd.js'
import { ask, databaseOfRole } from '../_helpers/database.js'
import { addUser, endsOrWaits, openModels } from '../_helpers/models.js'
import { type RequestOptions, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor, within } from '../_helpers/wait.js'

const service = serviceForFile()

/** What packages write to the console: the output of a service is JSON only. */
const written: unknown[] = []
console.warn = (...parts) => void written.push(...parts)

test('PostgreSQL ends a statement, a wait for a lock, an idle transaction and a long one of the service', async t => {
  const url = await databaseOfRole(t)
  const { AUTH_MASTER_KEY = '', AUTH_ADMIN_PASSWORD = '' } = service.env
  t.is((await runCli({ DATABASE_URL: url, AUTH_MASTER_KEY, AUTH_ADMIN_PASSWORD }, ['install'])).code, 0)
  const names = ['statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout']
  const rows = await ask(url, `SELECT current_setting(name) FROM unnest('{${names}}'::text[]) AS name`)
  t.deepEqual(rows.flatMap(Object.values), ['5s', '2s', '5s', '10s'])
})

test('a check for writes that gets its connection too late fails, and closes no connection', async t => {
  const url = service.env.DATABASE_URL!
  const database = openDatabase(url, 1)
  const other = new pg.Client({ connectionString: url })
  await other.connect()
  t.teardown(() => Promise.all([database.close(), other.end()]))
  const backend = async () => (await database.run(sql`SELECT pg_backend_pid() AS pid`))[0]
  const first = await backend()

  let finish = () => {}
  const busy = database.transact(() => new Promise<void>(resolve => (finish = resolve)))
  const writable = database.isWritable()
  await setTimeout(1_500)
  await other.query('BEGIN; LOCK TABLE migrations IN EXCLUSIVE MODE')
  finish()
  await busy
  t.false(await writable)
  await other.query('ROLLBACK')
  t.deepEqual(await backend(), first)
  t.deepEqual([...database.stats().errors], [])
})

test('output of COPY that isn’t read to the end fails its transaction at once, and costs one connection', async t => {
  const database = openDatabase(service.env.DATABASE_URL!, 1)
  t.teardown(() => database.close())
  const abandoned = database.transact(
    async transaction => {
      for await (const _ of database.copyOut('COPY (SELECT generate_series(1, 10000000)) TO STDOUT', transaction))
        return
    },
    { unlimited: true },
  )
  await t.throwsAsync(within(5_000, abandoned), { message: /closed|terminated/ })
  t.true(await database.isWritable())
  t.deepEqual([...database.stats().errors], [])
  t.deepEqual(written, [])
})

// Reads share a few connections without affecting each other.

/** Processes of PostgreSQL in which a reading statement waits for a lock. */
async function held(): Promise<number[]> {
  const text = `SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'SELECT u.id, u.username%'`
  const rows = await service.registry.database.run<{ pid: number }>(sql.text(text))
  return rows.map(({ pid }) => pid)
}

test.serial(
  'each of many concurrent calls gets its own user, and only that with a revoked token is refused',
  async t => {
    const users = await Promise.all(Array.from({ length: 8 }, () => service.signUp('ROLE_CLIENT')))
    const revoked = users[3]!
    t.is((await service.request('POST', '/users/revokemytokens', { token: revoked.token })).status, 200)
    const asked = Array.from({ length: 400 }, (_, index) => users[index % users.length]!)
    const answers = await Promise.all(asked.map(({ token }) => service.request('GET', '/users/me', { token })))
    t.deepEqual(
      answers.map(({ json }) => json.username ?? json.reason),
      asked.map(user => (user === revoked ? 'INVALID_TOKEN' : user.username)),
    )
  },
)

test.serial('queries that wait on a broken connection fail at once, and the next query succeeds', async t => {
  const { request, registry, signUp } = service
  const { token, username } = await signUp('ROLE_CLIENT')
  const waiting = await registry.database.transact(
    async transaction => {
      await registry.database.run(sql`LOCK TABLE users`, transaction)
      // As many as are in progress at one time, each from a separate address: beyond the share of one address, fewer start.
      const asked = Array.from({ length: 30 }, () =>
        request('GET', '/users/me', { token, once: true, headers: from(anyAddress()) }),
      )
      const answers: Awaited<(typeof asked)[number]>[] = []
      for (const each of asked) void each.then(answer => answers.push(answer))
      await waitFor(
        async () => {
          await registry.database.run(sql`SELECT pg_terminate_backend(pid) FROM unnest(${await held()}::int[]) pid`)
          return answers.length === asked.length
        },
        () => answers.length,
      )
      return answers
    },
    { unlimited: true },
  )
  t.deepEqual([...new Set(waiting.map(({ status, json }) => `${status} ${json.reason}`))], ['503 UNAVAILABLE'])
  const after = await Promise.all(Array.from({ length: 40 }, () => request('GET', '/users/me', { token })))
  t.deepEqual([...new Set(after.map(({ json }) => json.username))], [username])
})

// A transaction locks the rows that it depends on until it ends, and skips rows locked by others if possible.

type Transaction = Parameters<Models['organizations']['rotateKey']>[1]

/** An organization, its key, and a provider of it with a provider key. */
async function scene(models: Models) {
  const { administeredUsers, database, dataKeys, organizations, users } = models
  const organization = await database.transact(t => organizations.add({ name: 'Escola' }, t))
  const provider = await addUser(models, 'ana', 'ROLE_INSTITUTION')
  await database.transact(async t =>
    users.activate((await administeredUsers.lock(provider, t))!, organization.id as Place, t),
  )
  const { providerKeySealed } = (await users.byId(provider))!
  return {
    id: organization.id,
    key: organizations.activationKey(organization),
    provider,
    providerKey: dataKeys.open('activation-key', providerKeySealed!),
  }
}

interface Use {
  /** The holder of a key that an activation finds. */
  readonly find: (models: Models, given: Awaited<ReturnType<typeof scene>>, t: Transaction) => Promise<unknown>
  /** The changes that void the key. */
  readonly change: (models: Models, given: Awaited<ReturnType<typeof scene>>, t: Transaction) => Promise<unknown>
}
const uses: Record<string, Use> = {
  'an organization’s key isn’t rotated while it activates a user': {
    find: ({ activationKeys }, { key }, t) => activationKeys.organizationOf(key, t),
    change: ({ organizations }, { id }, t) => organizations.rotateKey(id, t),
  },
  'an organization isn’t deactivated while its key activates a user': {
    find: ({ activationKeys }, { key }, t) => activationKeys.organizationOf(key, t),
    change: ({ organizations }, { id }, t) => organizations.setActive(id, false, t),
  },
  'an organization isn’t deactivated while a key mailed to it activates a user': {
    find: async ({ organizations }, { id }, t) => (await organizations.hold([id], t)).some(({ active }) => active),
    change: ({ organizations }, { id }, t) => organizations.setActive(id, false, t),
  },
  'a provider isn’t suspended while its key activates a user': {
    find: ({ activationKeys }, { providerKey }, t) => activationKeys.providerOf(providerKey, t),
    change: async ({ users, audit }, { provider }, t) => {
      await users.suspend(provider, t)
      await audit.append({ action: 'user.suspend', outcome: 'ok', actor: 'test', subject_id: provider }, t)
    },
  },
}
for (const [name, { find, change }] of Object.entries(uses)) {
  test(name, async t => {
    const models = await openModels(t)
    const given = await scene(models)
    let changed: Promise<unknown> | undefined
    await models.database.transact(async transaction => {
      t.truthy(await find(models, given, transaction))
      changed = models.database.transact(other => change(models, given, other))
      t.is(await endsOrWaits(models.database, changed), 'waits')
    })
    await changed
    t.falsy(await models.database.transact(transaction => find(models, given, transaction)))
  })
}

test('one key activates many users at the same time', async t => {
  const models = await openModels(t)
  const { key } = await scene(models)
  const { database, activationKeys } = models
  await database.transact(async transaction => {
    await activationKeys.organizationOf(key, transaction)
    const other = database.transact(another => activationKeys.organizationOf(key, another))
    t.is(await endsOrWaits(database, other), 'ends')
  })
})

test('an e-mail that another worker is claiming is skipped', async t => {
  const { database, emails } = await openModels(t)
  const parameters = { userId: 1, at: '', address: '' }
  await emails.add({ kind: 'password-changed', stage: 'requested', parameters }, 'en')
  await emails.add({ kind: 'recovery-login', stage: 'requested', parameters }, 'en')
  await database.transact(async transaction => {
    await database.sequelize.query(`SELECT FROM emails WHERE kind = 'password-changed' FOR UPDATE`, { transaction })
    const claimed = emails.claim(60, true)
    t.is(await endsOrWaits(database, claimed), 'ends')
    t.is((await claimed)?.kind, 'recovery-login')
  })
  t.is((await emails.claim(60, true))?.kind, 'password-changed')
  t.is(await emails.claim(60, true), undefined)
})

// A change and its event in the audit log: both or neither.

/** The steps that fail while they are in the table `broken`: writing an event, or the commit of a change. */
const parts = ['event', 'commit'] as const

const run = async (text: string) => (await service.registry.database.sequelize.query(text))[0]

test.serial.before(() =>
  run(`
    CREATE TABLE broken (part text);
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
      BEGIN IF EXISTS (SELECT FROM broken WHERE part = TG_ARGV[0]) THEN RAISE 'broken'; END IF; RETURN NEW; END $$;
    CREATE TRIGGER fail BEFORE INSERT ON audit_staged FOR EACH ROW EXECUTE FUNCTION fail('event');
    CREATE CONSTRAINT TRIGGER fail AFTER INSERT OR UPDATE ON users DEFERRABLE INITIALLY DEFERRED
      FOR EACH ROW EXECUTE FUNCTION fail('commit');
    CREATE CONSTRAINT TRIGGER fail AFTER INSERT OR UPDATE ON answers DEFERRABLE INITIALLY DEFERRED
      FOR EACH ROW EXECUTE FUNCTION fail('commit')`),
)

/** A change: the request that makes it, and a query for its effect. */
interface Change {
  request: [path: string, options: RequestOptions]
  look(): Promise<unknown>
}

const user = ({ token }: SignedUp) => service.registry.users.byId(idOf(token))
const changes: Record<string, () => Promise<Change>> = {
  'a sign-up': async () => {
    const names = { username: randomUUID(), nickname: randomUUID() }
    const body = { ...names, password: 'tatu-canastra 12', state: 'SP', city: 'Bauru', termsofusage: true }
    return {
      request: ['/users/signup', { body: { ...body, roles: ['ROLE_CLIENT'] } }],
      look: () => service.registry.users.byUsername(names.username),
    }
  },
  'an activation': async () => {
    const { activationkey } = await service.organization()
    const signedUp = await service.signUp('ROLE_INSTITUTION')
    const query = { username: signedUp.username, activationkey }
    return { request: ['/users/activate', { token: signedUp.token, query }], look: () => user(signedUp) }
  },
  'an activation by a mailed key': async () => {
    const { id } = await service.organization()
    const signedUp = await service.signUp('ROLE_INSTITUTION')
    const query = { username: signedUp.username, activationkey: randomUUID() }
    await service.registry.mailedKeys.replace(idOf(signedUp.token), 'activation', query.activationkey, {
      organizationId: id,
    })
    return { request: ['/users/activate', { token: signedUp.token, query }], look: () => user(signedUp) }
  },
  'a saved answer': async () => {
    const { token } = await service.signUp('ROLE_CLIENT')
    const body = { forgotpasswordquestionsid: 1, answer: 'azul' }
    return {
      request: ['/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body }],
      look: () => service.registry.answers.of(idOf(token)),
    }
  },
  'a new password': async () => {
    const signedUp = await service.signUp('ROLE_CLIENT')
    const query = { newPassword: 'tatu-canastra 12' }
    return {
      request: ['/forgotpasswords/passwordupdatebyusername', { token: signedUp.token, query }],
      look: () => user(signedUp),
    }
  },
}
for (const [name, arrange] of Object.entries(changes)) {
  test.serial(`${name} and its event are committed together or not at all`, async t => {
    const { request, look } = await arrange()
    const [path, options] = request
    const send = () => service.request('POST', path, options)
    const state = async () => ({
      seen: await look(),
      events: (await service.registry.audit.list({ limit: 999 })).length,
    })
    const before = await state()
    for (const part of parts) {
      await run(`INSERT INTO broken VALUES ('${part}')`)
      t.not((await send()).status, 200)
      await run('DELETE FROM broken')
      t.deepEqual(await state(), before, part)
      t.deepEqual(written, [], part)
    }
    const { status, text } = await send()
    t.is(status, 200, text)
    const { seen, events } = await state()
    t.notDeepEqual(seen, before.seen)
    t.is(events, before.events + 1)
  })
}
