/** Creations that are requested more than once with one request id. */
import { randomUUID } from 'node:crypto'
import { toBinary } from '@bufbuild/protobuf'
import test, { type ExecutionContext } from 'ava'
import {
  CreateOrganizationResponseSchema,
  CreateQuestionResponseSchema,
  CreateServiceKeyResponseSchema,
  CreateServiceResponseSchema,
  CreateUserResponseSchema,
} from '../../../proto/gen/auth/v1/administration_pb.js'
import { Scope } from '../../../proto/gen/auth/v1/scopes_pb.js'
import {
  type AdministrationClient,
  openAdministration,
  reasonOf,
  signedInForFile,
} from '../../_helpers/administration.js'
import { ask } from '../../_helpers/database.js'
import { password, serviceForFile } from '../../_helpers/service.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const api = signedInForFile(service)
const count = async (text: string) => Number((await ask(service.env.DATABASE_URL!, text))[0]!.count)
const form = (username: string, role = 'ROLE_CLIENT') => ({ username, role, state: 'SP', city: 'Bauru', password })

/** A session of another administrator. */
async function another(t: ExecutionContext): Promise<AdministrationClient> {
  const username = randomUUID()
  await api.createUser({ form: form(username, 'ROLE_ADMIN'), active: true, confirm: username })
  const { token } = await openAdministration(t, service).signIn({ username, password })
  return openAdministration(t, service, token)
}

test('if two administrators use the same request id, each creates a separate record', async t => {
  const other = await another(t)
  const [requestId, name] = [randomUUID(), `Defesa Civil ${randomUUID()}`]
  const one = await api.createOrganization({ form: { name }, requestId })
  const two = await other.createOrganization({ form: { name }, requestId })
  t.not(one.organization!.record!.id, two.organization!.record!.id)
  t.not(one.organization!.record!.activationkey, two.organization!.record!.activationkey)
  // Each gets its own response again; another request with the id is refused.
  t.deepEqual(await api.createOrganization({ form: { name }, requestId }), one)
  t.deepEqual(await other.createOrganization({ form: { name }, requestId }), two)
  t.is(await reasonOf(other.createOrganization({ form: { name: `${name}!` }, requestId })), 'INVALID_ARGUMENT')
  t.is(await count(`SELECT count(*) FROM organizations WHERE name = '${name}'`), 2)
})

test('eight concurrent creations with one request id create one record and get the same response, and only one gets the service key', async t => {
  const name = randomUUID().slice(0, 8)
  const given = `s-${name}`
  await api.createService({ name: `k-${name}`, scopes: [Scope.USERS_READ] })
  const keys: string[] = []
  /** A response without the key, which is recorded. */
  const withoutKey = <A extends { key: string }>(answer: A): A => {
    if (answer.key !== '') keys.push(answer.key)
    return { ...answer, key: '' }
  }
  const all: Record<string, [create: (requestId: string) => Promise<Uint8Array>, made: string]> = {
    user: [
      async requestId => toBinary(CreateUserResponseSchema, await api.createUser({ form: form(name), requestId })),
      `users WHERE username = '${name}'`,
    ],
    organization: [
      async requestId =>
        toBinary(CreateOrganizationResponseSchema, await api.createOrganization({ form: { name }, requestId })),
      `organizations WHERE name = '${name}'`,
    ],
    question: [
      async requestId =>
        toBinary(CreateQuestionResponseSchema, await api.createQuestion({ question: name, requestId })),
      `questions WHERE question = '${name}'`,
    ],
    service: [
      async requestId =>
        toBinary(
          CreateServiceResponseSchema,
          withoutKey(await api.createService({ name: given, scopes: [Scope.USERS_READ], requestId })),
        ),
      `services WHERE name = '${given}'`,
    ],
    key: [
      async requestId =>
        toBinary(
          CreateServiceKeyResponseSchema,
          withoutKey(await api.createServiceKey({ name: `k-${name}`, requestId })),
        ),
      `service_keys JOIN services s ON s.id = service_id WHERE s.name = 'k-${name}'`,
    ],
  }
  for (const [what, [create, made]] of Object.entries(all)) {
    const before = await count(`SELECT count(*) FROM ${made}`)
    const requestId = randomUUID()
    const answers = await Promise.all(Array.from({ length: 8 }, () => create(requestId)))
    t.is(new Set(answers.map(bytes => Buffer.from(bytes).toString('hex'))).size, 1, what)
    t.is(await count(`SELECT count(*) FROM ${made}`), before + 1, what)
  }
  t.is(keys.length, 2)
})
