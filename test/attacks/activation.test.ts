/** Guessing at activation keys, hundreds in parallel: the cost for others, and when it is blocked. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { sql } from '../../server/database/sql.js'
import { createClock } from '../_helpers/clock.js'
import { anyAddress } from '../_helpers/crowd.js'
import { hold } from '../_helpers/database.js'
import { databaseFor } from '../_helpers/installed.js'
import { openMailbox } from '../_helpers/mailbox.js'
import { endsOrWaits } from '../_helpers/models.js'
import { sendRaw } from '../_helpers/raw.js'
import { type SignedUp, startTestService, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const activate = (service: TestService, { username, token }: SignedUp, activationkey: string) =>
  service.request('POST', '/users/activate', {
    token,
    body: { username, activationkey },
    headers: { 'x-forwarded-for': anyAddress() },
  })

/** A request as a socket carries it; the last one closes it. */
function wrongKey({ username, token }: SignedUp, last: boolean): string {
  const body = JSON.stringify({ username, activationkey: randomUUID() })
  return [
    'POST /users/activate HTTP/1.1',
    'Host: auth.test',
    `Authorization: Bearer ${token}`,
    'Content-Type: application/json',
    `Content-Length: ${Buffer.byteLength(body)}`,
    `Connection: ${last ? 'close' : 'keep-alive'}`,
    '',
    body,
  ].join('\r\n')
}

test('wrong activation keys wait for no lock, are blocked after ten, and are recorded as one lockout', async t => {
  const url = await databaseFor(t)
  const clock = await createClock(url)
  const service = await startTestService(t, { DATABASE_URL: url, AUTH_TOKEN_TTL: '4h' }, { clock })
  const { database } = service.registry
  const { activationkey } = await service.organization()
  const [guesser, other] = [await service.signUp('ROLE_INSTITUTION'), await service.signUp('ROLE_INSTITUTION')]

  await database.transact(async transaction => {
    await database.run(sql`SELECT FROM users WHERE id = ${idOf(guesser.token)} FOR UPDATE`, transaction)
    const port = Number(new URL(service.http).port)
    const sockets = Array.from({ length: 20 }, () => {
      const all = Array.from({ length: 10 }, (_, index) => wrongKey(guesser, index === 9)).join('')
      return sendRaw(port, [all], { patience: 30_000 })
    })
    const flood = Promise.all(sockets)
    const others = Promise.all([service.request('GET', '/users/me', { token: guesser.token }), service.login('admin')])
    t.is(await endsOrWaits(database, others), 'ends')
    t.is((await others)[0].status, 200)
    const statuses = (await flood).flatMap(({ statuses }) => statuses)
    t.is(statuses.length, 200)
    t.is(statuses.filter(status => status === 422).length, 10)
    t.is(statuses.filter(status => status === 429).length, 190)
  })

  const events = await service.registry.audit.list({ action: 'user.activate', limit: 1000 })
  t.deepEqual(
    events.map(({ reason, object, subject_id }) => [reason, object, subject_id]),
    [['TOO_MANY_ATTEMPTS', 'failures:10', idOf(guesser.token)]],
  )
  const held = await activate(service, guesser, activationkey)
  t.is(held.status, 429)
  const wait = Number(held.headers.get('retry-after'))
  t.true(wait > 800 && wait <= 900, `${wait}`)
  t.is((await activate(service, other, activationkey)).status, 200)
  await clock.pass(wait)
  t.is((await activate(service, guesser, activationkey)).status, 200)
})

test('a user with too many wrong activation keys is refused without a database query', async t => {
  const url = await databaseFor(t)
  const service = await startTestService(t, { DATABASE_URL: url })
  const { activationkey } = await service.organization()
  const [guesser, other] = [await service.signUp('ROLE_INSTITUTION'), await service.signUp('ROLE_INSTITUTION')]
  for (let times = 0; times < 10; times++) t.is((await activate(service, guesser, randomUUID())).status, 422)
  const holder = await hold(t, url)
  await holder.query('BEGIN; LOCK TABLE users, attempts, buckets, organizations')
  t.is((await activate(service, guesser, activationkey)).status, 429)
  const behind = activate(service, other, activationkey)
  t.is(await endsOrWaits(service.registry.database, behind), 'waits')
  await holder.query('ROLLBACK')
  t.is((await behind).status, 200)
})

test('an attempt with a mailed activation key while its organization is inactive doesn’t consume the key', async t => {
  const mailbox = await openMailbox(t)
  const service = await startTestService(t, { SMTP_URL: mailbox.url })
  const { sequelize } = service.registry.database
  const { id, email } = await service.organization({ name: 'Defesa Civil de Bauru' })
  const user = await service.signUp('ROLE_INSTITUTION', { institution: 'Defesa Civil de Bauru' })
  const query = { emailpartner: email, username: user.username }
  const { token } = user
  t.is((await service.request('POST', '/1.0.0/users/sendadminkeybyemailpartner', { token, query })).status, 200)
  const key = /[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}/.exec((await mailbox.nextEmail(email)).text ?? '')?.[0] ?? ''
  const setActive = (active: boolean) => sequelize.query(`UPDATE organizations SET active = ${active} WHERE id = ${id}`)
  await setActive(false)
  for (let index = 0; index < 3; index++) t.is((await activate(service, user, key)).status, 422)
  await setActive(true)
  t.is((await activate(service, user, key)).status, 200)
})
