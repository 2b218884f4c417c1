/**
 * Incomplete credentials of an administrator: a password without the code, an old session, one from before codes were
 * enrolled, one that ends while its change is in progress, or a call that was canceled.
 */
import { randomUUID } from 'node:crypto'
import type { DescMethodUnary } from '@bufbuild/protobuf'
import type { ClientUnaryCall } from '@grpc/grpc-js'
import ava, { type ExecutionContext } from 'ava'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import type { Transaction } from '../../server/database/database.js'
import { formatAddress } from '../../server/process/settings.js'
import {
  type AdministrationClient,
  openAdministration,
  openSignedIn,
  reasonOf,
  signedInForFile,
  whenFree,
} from '../_helpers/administration.js'
import { hold } from '../_helpers/database.js'
import { type GrpcClient, openGrpc } from '../_helpers/grpc.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { changeTokens, endsOrWaits, lockWaiters } from '../_helpers/models.js'
import { password, serviceForFile, startTestService, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const test = ava.serial

const mailbox = mailboxForFile()
const settings = () => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url, AUTH_LIMIT_FACTOR: '1000' })
const service = serviceForFile(settings)
const api = signedInForFile(service)
const another = 'tartaruga de couro 7'

/** A new active ROLE_ADMIN with a recovery address. */
async function administrator(by: AdministrationClient = api) {
  const username = randomUUID()
  const email = `${username}@example.org`
  const form = { username, role: 'ROLE_ADMIN', state: 'SP', city: 'Bauru', password, email }
  const { user } = await by.createUser({ form, active: true, confirm: username })
  return { username, email, id: user!.record!.id! }
}

/** A session of Administration. */
async function session(t: ExecutionContext, username: string, at: TestService = service): Promise<string> {
  return (await openAdministration(t, at).signIn({ username, password })).token
}

type Pair = [GrpcClient, GrpcClient]

test('an administrator who is suspended, demoted or erased while its change is in progress changes nothing', async t => {
  const { database, users, erasure } = service.registry
  const ends: Record<string, (id: number, t: Transaction) => Promise<unknown>> = {
    suspended: users.suspend,
    demoted: (id, t) => users.setRole({ id, active: true }, 'ROLE_CLIENT', t),
    erased: erasure.erase,
  }
  for (const [how, end] of Object.entries(ends)) {
    const user = await service.signUp('ROLE_CLIENT')
    const username = randomUUID()
    const form = { username, role: 'ROLE_CLIENT', state: 'SP', city: 'Bauru', password }
    for (const change of [
      (open: AdministrationClient) => open.setPassword({ user: user.username, password: another }),
      (open: AdministrationClient) => open.createUser({ form }),
    ]) {
      const admin = await administrator()
      const open = openAdministration(t, service, await session(t, admin.username))
      let outcome: Promise<string> | undefined
      await changeTokens(service.registry, admin.id, async transaction => {
        await end(admin.id, transaction)
        outcome = reasonOf(whenFree<unknown>(() => change(open)))
        // It has authenticated its caller, has hashed, and waits before the change.
        t.is(await endsOrWaits(database, outcome), 'waits', how)
      })
      t.is(await outcome, 'INVALID_TOKEN', how)
    }
    t.truthy(await service.login(user.username))
    t.is((await service.request('GET', '/users/me', { token: user.token })).status, 200)
    t.is(await reasonOf(api.getUser({ user: username })), 'USER_NOT_FOUND')
  }
})

test('administrators who change each other concurrently don’t deadlock: ten pairs all get responses', async t => {
  const own = await startTestService(t, settings())
  const by = await openSignedIn(t, own)
  const clients = new Map<string, AdministrationClient>()
  while (clients.size < 20) {
    const { username } = await administrator(by)
    clients.set(username, openAdministration(t, own, await session(t, username, own)))
  }
  const names = [...clients.keys()]
  /** On a busy machine a call may be refused because it waited too long for the other one: without an effect, so it is sent again. */
  async function settled(change: () => Promise<unknown>, patience = 5): Promise<string> {
    const reason = await reasonOf(change())
    return reason === 'UNAVAILABLE' && patience > 0 ? settled(change, patience - 1) : reason
  }
  const both = (change: (open: AdministrationClient, user: string) => Promise<unknown>) =>
    Promise.all(names.map((name, index) => settled(() => change(clients.get(name)!, names[index ^ 1]!))))
  const edit = { form: { city: 'Marília' }, updateMask: { paths: ['city'] } }
  t.deepEqual(await both((open, user) => open.updateUser({ user, ...edit })), Array(20).fill('none'))
  // The second caller of each pair no longer has a session.
  const reasons = await both((open, user) => open.suspendUser({ user }))
  t.deepEqual(reasons.toSorted(), [...Array(10).fill('INVALID_TOKEN'), ...Array(10).fill('none')])
})

test('a call that waits before its change has no effect for a caller who has left or takes no answer any more', async t => {
  const { database } = service.registry
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const id = idOf(token)
  const clients = [service.grpc, formatAddress(service.service.addresses.admin!)].map(each => openGrpc(each)) as Pair
  t.teardown(async () => {
    for (const client of clients) client.close()
  })
  const { passwordUpdateByUsername } = ForgotPasswords.method
  const { setPassword, getIssuer } = Administration.method
  const calls: [
    GrpcClient,
    DescMethodUnary,
    request: Record<string, unknown>,
    token: string,
    after: DescMethodUnary,
  ][] = [
    [clients[0], passwordUpdateByUsername, { newPassword: another }, token, Users.method.getKeys],
    [clients[1], setPassword, { user: username, password: another }, await session(t, 'admin'), getIssuer],
  ]
  const events = async () => (await service.registry.audit.list({ subjectId: id, limit: 100 })).length
  const before = await events()
  const lock = `BEGIN; SELECT FROM users WHERE id = ${id} FOR UPDATE`
  for (const leaves of [true, false]) {
    for (const [client, rpc, request, bearer, after] of calls) {
      const holder = await hold(t, service.env.DATABASE_URL!)
      await holder.query(lock)
      let cancel = () => {}
      const started = (call: ClientUnaryCall) => {
        cancel = () => call.cancel()
      }
      const deadline = leaves ? {} : { deadline: Date.now() + 4000 }
      const left = t.throwsAsync(client.call(rpc, request, { token: bearer, started, once: true, ...deadline }))
      await waitForValue(
        () => lockWaiters(database),
        count => count > 0,
      )
      if (leaves) cancel()
      await left
      // A later request on the same connection is answered once the service has noticed.
      await client.call(after, {}, { token: bearer })
      // Waiting transactions are served in order: once this one has the lock, the other has ended.
      await holder.query('COMMIT')
      await holder.query(`${lock}; COMMIT`)
      t.is(await events(), before, rpc.name)
      t.is((await service.request('GET', '/users/me', { token })).status, 200, rpc.name)
    }
  }
  t.truthy(await service.login(username))
})
