/** Calls that need the same rows, paused at the worst moment: none deadlocks or overwrites another. */
import { randomUUID } from 'node:crypto'
import test, { type ExecutionContext } from 'ava'
import bcrypt from 'bcrypt'
import pg from 'pg'
import { isUnreachable } from '../../server/database/failures.js'
import { password, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { stopEvents } from '../_helpers/stopped.js'
import { idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const service = serviceForFile()
const login = (username: string, secret = password) =>
  service.request('POST', '/users/login', { query: { username, password: secret }, once: true })

async function connect(t: ExecutionContext): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: service.env.DATABASE_URL! })
  await client.connect()
  t.teardown(() => client.end())
  return client
}

test.serial('a login from a new address and the activation of the same user never deadlock', async t => {
  const { activationkey } = await service.organization()
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const query = { username, activationkey }
  const activate = () => service.request('POST', '/users/activate', { token, query, once: true })
  t.deepEqual(await stopEvents(t, service, [() => login(username), activate]), [200, 200])
})

test.serial('renewing a hash never restores a password that was updated in the meantime', async t => {
  const { sequelize } = service.registry.database
  const hashOf = async ({ token }: SignedUp) => {
    const [rows] = await sequelize.query('SELECT password_hash FROM users WHERE id = $1', { bind: [idOf(token)] })
    return (rows as { password_hash: string }[])[0]!.password_hash
  }
  const old = bcrypt.hashSync(password, 4)
  const users = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')] as const
  const [{ username, token }, later] = users
  await sequelize.query('UPDATE users SET password_hash = $1 WHERE id = ANY($2)', {
    bind: [old, users.map(user => idOf(user.token))],
  })
  const query = { newPassword: 'jararaca-verde-7' }
  const update = () =>
    service.request('POST', '/forgotpasswords/passwordupdatebyusername', { token, query, once: true })
  t.deepEqual(await stopEvents(t, service, [update, () => login(username)]), [200, 200])
  // Hashes are renewed one after the other, after the responses.
  t.is((await login(later.username)).status, 200)
  await waitForValue(
    () => hashOf(later),
    value => value !== old,
  )
  t.is((await login(username, query.newPassword)).status, 200)
  t.is((await login(username)).status, 404)
})

test.serial('a statement that PostgreSQL aborted for a deadlock may be retried', async t => {
  const [one, other] = [await connect(t), await connect(t)]
  const table = `"${randomUUID()}"`
  await one.query(`CREATE TABLE ${table} AS SELECT id, 0 AS n FROM generate_series(1, 2) id`)
  const change = (client: pg.Client, id: number) => client.query(`UPDATE ${table} SET n = n + 1 WHERE id = ${id}`)
  await Promise.all([one.query('BEGIN'), other.query('BEGIN')])
  await Promise.all([change(one, 1), change(other, 2)])
  const crossing = await Promise.allSettled([change(one, 2), change(other, 1)])
  const faults = crossing.filter(each => each.status === 'rejected').map(({ reason }) => reason)
  t.deepEqual(
    faults.map(({ code }) => code),
    ['40P01'],
  )
  t.true(isUnreachable(faults[0]))
  await Promise.all([one.query('ROLLBACK'), other.query('ROLLBACK')])
  await one.query('BEGIN')
  await change(one, 1)
  await other.query(`SET lock_timeout = '10ms'`)
  t.true(isUnreachable(await t.throwsAsync(change(other, 1))))
  await one.query('ROLLBACK')
  // A wrong proof stays wrong.
  t.false(isUnreachable(await t.throwsAsync(other.query('SELECT 1 / 0'))))
})
