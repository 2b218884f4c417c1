/** Clients of Administration: over gRPC with a token, or on the database itself. */
import { randomUUID } from 'node:crypto'
import { type Client, type ConnectError, createClient } from '@connectrpc/connect'
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node'
import test from 'ava'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { BadRequestSchema, ErrorInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import { openLocalApplication } from '../../server/local-application.js'
import { createLog } from '../../server/observability/log.js'
import { formatAddress } from '../../server/process/settings.js'
import type { Teardown } from './database.js'
import { password, type TestService, teardownOfFile } from './service.js'

/** The RPCs of Administration. */
export type AdministrationClient = Client<typeof Administration>

/** A client of the service's own listener, with a token or without. The service needs an `AUTH_ADMIN_ADDRESS`. */
export function openAdministration(t: Teardown, { service }: TestService, token?: string): AdministrationClient {
  const { admin } = service.addresses
  if (!admin) throw new Error('The service has no listener for administrators: set AUTH_ADMIN_ADDRESS.')
  const baseUrl = `http://${formatAddress(admin)}`
  const sessionManager = new Http2SessionManager(baseUrl)
  t.teardown(async () => sessionManager.abort())
  const transport = createGrpcTransport({
    baseUrl,
    sessionManager,
    interceptors: [
      next => request => {
        if (token) request.header.set('authorization', `Bearer ${token}`)
        return next(request)
      },
    ],
  })
  return createClient(Administration, transport)
}

/** A client that has signed in as the administrator of the installation. */
export async function openSignedIn(t: Teardown, service: TestService): Promise<AdministrationClient> {
  const { token } = await openAdministration(t, service).signIn({ username: 'admin', password })
  return openAdministration(t, service, token)
}

/** The same, for all tests of the calling file. It is available once the tests run. */
export function signedInForFile(service: TestService): AdministrationClient {
  const client = {} as AdministrationClient
  const hooks = teardownOfFile()
  test.serial.before(async () => {
    Object.assign(client, await openSignedIn(hooks, service))
  })
  return client
}

/** Another active ROLE_ADMIN, whom one creates, and its session. */
export async function anotherAdministrator(t: Teardown, service: TestService, by: AdministrationClient, fields = {}) {
  const form = { username: randomUUID(), role: 'ROLE_ADMIN', state: 'SP', city: 'Bauru', password, ...fields }
  const { username } = form
  const { user } = await by.createUser({ form, active: true, confirm: username })
  const { token } = await openAdministration(t, service).signIn({ username, password })
  return { username, id: user!.record!.id!, api: openAdministration(t, service, token) }
}

/** The reason of a refusal; `none` when there is none. */
export async function reasonOf(call: Promise<unknown>): Promise<string> {
  const error = await call.then(
    () => undefined,
    (error: ConnectError) => error,
  )
  return error?.findDetails(ErrorInfoSchema)[0]?.reason ?? 'none'
}

/** Repeats a call that has waited too long for a lock. */
export async function whenFree<T>(call: () => Promise<T>): Promise<T> {
  for (;;) {
    const made = await call().catch(async error => {
      if ((await reasonOf(Promise.reject(error))) !== 'UNAVAILABLE') throw error
    })
    if (made) return made
  }
}

/** The invalid fields of a refusal. */
export async function wrongFieldsOf(call: Promise<unknown>): Promise<string[]> {
  const error = await call.then(
    () => undefined,
    (error: ConnectError) => error,
  )
  return (error?.findDetails(BadRequestSchema)[0]?.fieldViolations ?? []).map(({ field }) => field).sort()
}

/** A client on the database itself, as the command line uses it. */
export async function openLocal(
  t: Teardown,
  { settings }: TestService,
  { reason }: { reason?: string } = {},
): Promise<AdministrationClient> {
  const local = await openLocalApplication(settings, { actor: 'cli:tester@here', log: createLog('silent') })
  t.teardown(local.close)
  await local.registry.dataKeys.load()
  return createClient(Administration, await local.administer(reason))
}

/** What all pages of a list have: `read` returns a page by its token, and `of` what it has. */
export async function allPages<P extends { nextPageToken: string }, T>(
  read: (pageToken: string) => Promise<P>,
  of: (page: P) => readonly T[],
): Promise<T[]> {
  const all: T[] = []
  let pageToken = ''
  do {
    const page = await read(pageToken)
    all.push(...of(page))
    pageToken = page.nextPageToken
  } while (pageToken !== '')
  return all
}
