/**
 * Incomplete credentials of an administrator: a password without the code, an old session, one from before codes were
 * enrolled, one that ends while its change is in progress, or a call that was canceled.
 */
import { randomUUID } from 'node:crypto'
import type { DescMethodUnary } from '@bufbuild/protobuf'
import type { ClientUnaryCall } from '@grpc/grpc-js'
import test, { type ExecutionContext } from 'ava'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { formatAddress } from '../../server/process/settings.js'
import {
  type AdministrationClient,
  openAdministration,
  openSignedIn,
  reasonOf,
  signedInForFile,
} from '../_helpers/administration.js'
import { hold } from '../_helpers/database.js'
import { type GrpcClient, openGrpc } from '../_helpers/grpc.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { changeTokens, endsOrWaits, lockWaiters } from '../_helpers/models.js'
import { password, serviceForFile, startTestService, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

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

function openPublic(t: ExecutionContext, at: TestService = service): GrpcClient {
  const client = openGrpc(at.grpc)
  t.teardown(async () => client.close())
  return client
}

test.serial(
  'an administrator who is suspended, demoted or erased while its change is in progress changes nothing',
  async t => {
    const { database, users, erasure } = service.registry
    const ends = {
      suspended: (id: number, t: Parameters<typeof users.suspend>[1]) => users.suspend(id, t),
      demoted: (id: number, t: Parameters<typeof users.suspend>[1]) =>
        users.setRole({ id, active: true }, 'ROLE_CLIENT', t),
      erased: (id: number, t: Parameters<typeof users.suspend>[1]) => erasure.erase(id, t),
    }
    for (const [how, end] of Object.entries(ends)) {
      const user = await service.signUp('ROLE_CLIENT')
      const username = randomUUID()
      const form = { username, role: 'ROLE_CLIENT', state: 'SP', city: 'Bauru', password }
      const changes: Record<string, (open: AdministrationClient) => Promise<unknown>> = {
        'a password': open => open.setPassword({ user: user.username, password: another }),
        'a user': open => open.createUser({ form }),
      }
      for (const [what, change] of Object.entries(changes)) {
        const admin = await administrator()
        const open = openAdministration(t, service, await session(t, admin.username))
        let outcome: Promise<string> | undefined
        await changeTokens(service.registry, admin.id, async transaction => {
          await end(admin.id, transaction)
          outcome = reasonOf(change(open))
          // It has authenticated its caller, has hashed, and waits before the change.
          t.is(await endsOrWaits(database, outcome), 'waits', `${what}, ${how}`)
        })
        t.is(await outcome, 'INVALID_TOKEN', `${what}, ${how}`)
      }
      t.truthy(await service.login(user.username))
      t.is((await service.request('GET', '/users/me', { token: user.token })).status, 200)
      t.is(await reasonOf(api.getUser({ user: username })), 'USER_NOT_FOUND')
    }
  },
)

test('administrators who change each other concurrently don’t deadlock: twenty pairs all get responses', async t => {
  const own = await startTestService(t, settings())
  const by = await openSignedIn(t, own)
  const sessions: { user: string; open: AdministrationClient }[] = []
  while (sessions.length < 40) {
    const admin = await administrator(by)
    sessions.push({ user: admin.username, open: openAdministration(t, own, await session(t, admin.username, own)) })
  }
  const pairs = Array.from({ length: 20 }, (_, index) => [sessions[2 * index]!, sessions[2 * index + 1]!] as const)
  const both = (change: (open: AdministrationClient, user: string) => Promise<unknown>) =>
    Promise.all(
      pairs.map(async ([one, other]) =>
        Promise.all([reasonOf(change(one.open, other.user)), reasonOf(change(other.open, one.user))]),
      ),
    )
  const edit = { form: { city: 'Marília' }, updateMask: { paths: ['city'] } }
  for (const reasons of await both((open, user) => open.updateUser({ user, ...edit }))) {
    t.deepEqual(reasons, ['none', 'none'])
  }
  // The second caller no longer has a session.
  for (const reasons of await both((open, user) => open.suspendUser({ user }))) {
    t.deepEqual(reasons.sort(), ['INVALID_TOKEN', 'none'])
  }
})

/** Locks a user's row until it is released. */
async function lockRow(t: ExecutionContext, id: number) {
  const holder = await hold(t, service.env.DATABASE_URL!)
  const lock = () => holder.query(`SELECT FROM users WHERE id = ${id} FOR UPDATE`)
  await holder.query('BEGIN')
  await lock()
  return {
    /** Releases the lock, and returns once the waiting transaction has ended. */
    async letPass() {
      await holder.query('COMMIT')
      await holder.query('BEGIN')
      // Waiting transactions are served in order.
      await lock()
      await holder.query('COMMIT')
    },
  }
}

const leaving = {
  'has left': (started: Promise<ClientUnaryCall>) => ({
    options: {},
    leave: async () => (await started).cancel(),
  }),
  'takes no answer any more': () => ({ options: { deadline: Date.now() + 4000 }, leave: async () => {} }),
}

for (const [how, leave] of Object.entries(leaving)) {
  test.serial(`a call that waits before its change has no effect for a caller who ${how}`, async t => {
    const { database } = service.registry
    const user = await service.signUp('ROLE_CLIENT')
    const id = idOf(user.token)
    const open = openGrpc(formatAddress(service.service.addresses.admin!))
    t.teardown(async () => open.close())
    const calls = [
      {
        client: openPublic(t),
        rpc: ForgotPasswords.method.passwordUpdateByUsername,
        request: { newPassword: another },
        token: user.token,
        after: Users.method.getKeys,
      },
      {
        client: open,
        rpc: Administration.method.setPassword,
        request: { user: user.username, password: another },
        token: await session(t, 'admin'),
        after: Administration.method.getIssuer,
      },
    ] as const
    const events = async () => (await service.registry.audit.list({ subjectId: id, limit: 100 })).length
    const before = await events()
    for (const { client, rpc, request, token, after } of calls) {
      const row = await lockRow(t, id)
      let given: (call: ClientUnaryCall) => void = () => {}
      const started = new Promise<ClientUnaryCall>(resolve => {
        given = resolve
      })
      const { options, leave: go } = leave(started)
      const call = client.call(rpc as DescMethodUnary, request, { token, started: given, once: true, ...options })
      const left = t.throwsAsync(call)
      await waitForValue(
        () => lockWaiters(database),
        value => value > 0,
      )
      await go()
      await left
      // A later request on the same connection is answered once the service has noticed.
      await client.call(after as DescMethodUnary, {}, { token })
      await row.letPass()
      t.is(await events(), before, rpc.name)
      t.is((await service.request('GET', '/users/me', { token: user.token })).status, 200, rpc.name)
    }
    t.truthy(await service.login(user.username))
  })
}
