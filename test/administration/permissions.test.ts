/** Who may use Administration: every RPC with every kind of caller, as the table of permissions says. */
import type { DescMethodUnary } from '@bufbuild/protobuf'
import test from 'ava'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { scopeNames } from '../../server/scopes.js'
import { write } from '../../server/settings.js'
import { type GrpcClient, openGrpc, refusalOf } from '../_helpers/grpc.js'
import { password, serviceForFile, type TestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/servicekey.js'
import { claimsOf, forge, idOf, nowInSeconds } from '../_helpers/tokens.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const rpcs = Administration.methods as readonly DescMethodUnary[]

const signIn = () =>
  withClient(service, async client => {
    const { token } = await client.call(Administration.method.signIn, { username: 'admin', password })
    return token
  })

/** The reason with which each RPC refuses an empty request of a caller. */
async function answers(client: GrpcClient, token: string | undefined): Promise<Map<string, string | undefined>> {
  const all = await Promise.all(
    rpcs.map(async rpc => {
      const call = client.call(rpc, {}, token === undefined ? {} : { token })
      const reason = await call.then(
        () => undefined,
        error => refusalOf(error).info?.reason ?? 'INTERNAL',
      )
      return [rpc.localName, reason] as const
    }),
  )
  return new Map(all)
}

async function withClient<T>({ service }: TestService, work: (client: GrpcClient) => Promise<T>): Promise<T> {
  const client = openGrpc(write(service.addresses.admin!))
  try {
    return await work(client)
  } finally {
    client.close()
  }
}

test('nobody gets past the first check without a token of an administrator, for this audience', async t => {
  const organization = await service.organization({})
  const callers: [string, string | undefined, string][] = [
    ['no token', undefined, 'ACCESS_DENIED'],
    ['no token but text', 'nonsense', 'INVALID_TOKEN'],
    ['a service with every scope', await serviceKey(service, [...scopeNames]), 'INVALID_TOKEN'],
    ['an administrator of the public audience', await service.adminToken(), 'INVALID_TOKEN'],
    ['a ROLE_CLIENT', (await service.signUp('ROLE_CLIENT')).token, 'INVALID_TOKEN'],
    ['an active ROLE_INSTITUTION', (await service.institution(organization)).token, 'INVALID_TOKEN'],
    ['a ROLE_ADMIN who signed up', (await service.signUp('ROLE_ADMIN')).token, 'INVALID_TOKEN'],
  ]
  // Genuine but for one thing, signed with the service's own key.
  const genuine = await signIn()
  const inactive = await service.signUp('ROLE_ADMIN')
  const other = { sub: String(idOf(inactive.token)), username: inactive.username, ver: 0 }
  callers.push(['an inactive ROLE_ADMIN with this audience', await forge(service, genuine, other), 'INVALID_TOKEN'])
  const { ver } = claimsOf(genuine)
  callers.push(['a token of another generation', await forge(service, genuine, { ver: ver + 1 }), 'INVALID_TOKEN'])
  const longer = { exp: nowInSeconds() + 12 * 3600 + 300 }
  callers.push(['a token that lasts longer than 12 hours', await forge(service, genuine, longer), 'INVALID_TOKEN'])
  for (const amr of [['otp'], ['kba'], ['kba', 'pwd'], ['otp', 'otp']]) {
    callers.push([`a session that began by ${amr}`, await forge(service, genuine, { amr }), 'INVALID_TOKEN'])
  }
  await withClient(service, async client => {
    for (const [who, token, expected] of callers) {
      for (const [rpc, reason] of await answers(client, token)) {
        t.is(reason, rpc === 'signIn' ? 'MISSING_PARAMETER' : expected, `${rpc} for ${who}`)
      }
    }
  })
})

test('an administrator gets past it everywhere, to the shape of the request or an answer', async t => {
  const token = await signIn()
  await withClient(service, async client => {
    for (const [rpc, reason] of await answers(client, token)) {
      t.false(
        ['ACCESS_DENIED', 'INVALID_TOKEN', 'SIGN_IN_AGAIN', 'INTERNAL'].includes(reason ?? ''),
        `${rpc}: ${reason}`,
      )
    }
  })
})

/** What needs a recent sign-in whatever it concerns. */
const recent = [
  'enrollTotp',
  'confirmTotp',
  'removeTotp',
  'eraseUser',
  'deleteOrganization',
  'createService',
  'deleteService',
  'createServiceKey',
  'deleteServiceKey',
  'rotateSigningKey',
  'retireSigningKey',
  'setIssuer',
]

test('what opens a way in or can’t be undone needs a sign-in of the last 15 minutes, and nothing else does', async t => {
  const genuine = await signIn()
  const signedIn = (secondsAgo: number) => {
    const then = nowInSeconds() - secondsAgo
    return forge(service, genuine, { auth_time: then, iat: then, exp: then + 12 * 3600 })
  }
  await withClient(service, async client => {
    for (const [rpc, reason] of await answers(client, await signedIn(15 * 60 + 5))) {
      t.is(reason === 'SIGN_IN_AGAIN', recent.includes(rpc), `${rpc}: ${reason}`)
    }
    for (const [rpc, reason] of await answers(client, await signedIn(14 * 60))) t.not(reason, 'SIGN_IN_AGAIN', rpc)
  })
})
