import { create as createMessage } from '@bufbuild/protobuf'
import { timestampDate, timestampFromDate } from '@bufbuild/protobuf/wkt'
import {
  Administration as AdministrationService,
  type CreateServiceKeyRequest,
  type CreateServiceRequest,
  type Service,
  ServiceSchema,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Transaction } from '../database/connection.js'
import { newServiceKey, type ServiceKeyRow, type ServiceRow, type Services } from '../models/service.js'
import type { OpenPage } from '../requests/paging.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { wrongFields } from '../requests/wrong-fields.js'
import { type ScopeName, scopeName, scopeNames, scopeOf } from '../rules/scopes.js'
import type { Handler } from './context.js'

interface Deps {
  services: Services
  openPage: OpenPage
  now: () => number
}

/** Default lifetime of a key, in milliseconds. */
const usualLife = 365 * 86_400_000

/** Lists services by name. */
export function listServices(deps: Pick<Deps, 'services' | 'openPage'>): Handler<'listServices'> {
  const { services, openPage } = deps
  return async request => {
    const page = openPage<string>(AdministrationService.method.listServices, request)
    const rows = await services.list({
      limit: page.limit,
      ...(page.after !== undefined && { afterName: page.after }),
    })
    const { shown, ...next } = page.cut(rows, ({ name }) => name)
    const keys = await services.keys(shown.map(({ id }) => id))
    return {
      services: shown.map(row =>
        toService(
          row,
          keys.filter(({ serviceId }) => serviceId === row.id),
        ),
      ),
      ...next,
    }
  }
}

/** Registers a service with its first key. */
export function createService(deps: Deps): Handler<'createService'> {
  const { services, now } = deps
  return async (request, { create }) => {
    const { name, scopes, expiresAt } = checkForm(request, now())
    return create(AdministrationService.method.createService, request, async ({ t, record }) => {
      const row = await services.add({ name, scopes }, t)
      if (!row) refuse(Reason.NAME_TAKEN, { text: `Service ${name} already exists.` })
      await record({ action: 'service.add', object: `service:${name}`, reason: scopes.join(',') })
      return addKey(services, row, expiresAt, request, t)
    })
  }
}

/** Removes a service with all its keys. */
export function deleteService(deps: Deps): Handler<'deleteService'> {
  const { services } = deps
  return async (request, { administrator, change }) => {
    const { name } = (await services.find(readName(request.name))) ?? missing(request.name)
    administrator.confirm(name, request.confirm)
    await change(request, async ({ t, record }) => {
      const { id } = (await services.lock(name, t)) ?? missing(name)
      await services.remove(id, t)
      await record({ action: 'service.delete', object: `service:${name}` })
    })
    return {}
  }
}

/** Adds a key to a service. */
export function createServiceKey(deps: Deps): Handler<'createServiceKey'> {
  const { services, now } = deps
  const rpc = AdministrationService.method.createServiceKey
  return async (request, { create }) => {
    const name = readName(request.name)
    const wrong: FieldViolation[] = []
    const expiresAt = readExpiry(request, now(), wrong)
    if (wrong.length > 0) wrongFields(wrong)
    return create(rpc, request, async ({ t, record }) => {
      const row = (await services.lock(name, t)) ?? missing(name)
      const answer = await addKey(services, row, expiresAt, request, t)
      await record({
        action: 'service.add-key',
        object: `service:${name}`,
        reason: `key ${answer.service.keys.at(-1)!.id}`,
      })
      return answer
    })
  }
}

/** Removes a key of a service. */
export function deleteServiceKey(deps: Deps): Handler<'deleteServiceKey'> {
  const { services } = deps
  return async (request, { change }) => {
    const name = readName(request.name)
    const { id } = request
    if (id === undefined) wrongFields([{ field: 'id', message: 'Specify the number of the key.' }])
    return change(request, async ({ t, record }) => {
      const row = (await services.lock(name, t)) ?? missing(name)
      if (!(await services.removeKey(row.id, id, t))) {
        refuse(Reason.RECORD_NOT_FOUND, { text: `The service ${name} has no key ${id}.` })
      }
      await record({ action: 'service.delete-key', object: `service:${name}`, reason: `key ${id}` })
      return { service: toService(row, await services.keys([row.id], t)) }
    })
  }
}

/** Adds a key, and returns the answer that shows it; with `validateOnly`, without the key. */
async function addKey(
  services: Services,
  row: ServiceRow,
  expiresAt: Date,
  { validateOnly }: { readonly validateOnly: boolean },
  t: Transaction,
) {
  const key = newServiceKey()
  await services.addKey(row.id, key, expiresAt, t)
  return { service: toService(row, await services.keys([row.id], t)), key: validateOnly ? '' : key }
}

function checkForm(request: CreateServiceRequest, now: number) {
  const wrong: FieldViolation[] = []
  const name = request.name ?? ''
  if (!/^[a-z\d-]{1,63}$/.test(name)) {
    wrong.push({ field: 'name', message: 'Use 1 to 63 lower-case letters, digits and hyphens.' })
  }
  const scopes = [...new Set(request.scopes)].map(scopeName)
  if (scopes.length === 0 || scopes.includes(undefined)) {
    wrong.push({ field: 'scopes', message: `Use one or more of ${scopeNames.join(', ')}.` })
  }
  const expiresAt = readExpiry(request, now, wrong)
  if (wrong.length > 0) wrongFields(wrong)
  return { name, scopes: scopes as ScopeName[], expiresAt }
}

/** When a key expires: in the future, in a year of four digits. */
function readExpiry(
  { expireTime }: Pick<CreateServiceRequest | CreateServiceKeyRequest, 'expireTime'>,
  now: number,
  wrong: FieldViolation[],
): Date {
  const at = expireTime ? timestampDate(expireTime) : new Date(now + usualLife)
  if (!(at.getTime() > now && at.getUTCFullYear() < 10_000)) {
    wrong.push({ field: 'expire_time', message: 'Use in the future.' })
  }
  return at
}

function readName(name: string | undefined): string {
  const given = name?.trim() ?? ''
  if (given === '') wrongFields([{ field: 'name', message: 'Specify the name of the service.' }])
  // No service has a longer name, or one with other characters.
  return /^[a-z\d-]{1,63}$/.test(given) ? given : missing('of that name')
}

function missing(name: string | undefined): never {
  refuse(Reason.RECORD_NOT_FOUND, { text: `There is no service ${name}.` })
}

/** A service as administrators see it. */
function toService(row: ServiceRow, keys: readonly ServiceKeyRow[]): Service {
  return createMessage(ServiceSchema, {
    name: row.name,
    scopes: row.scopes.map(scopeOf),
    createTime: timestampFromDate(row.createdAt),
    keys: keys.map(({ id, beginning, createdAt, expiresAt, lastUsedOn }) => ({
      id,
      beginning,
      createTime: timestampFromDate(createdAt),
      expireTime: timestampFromDate(expiresAt),
      lastUsed: lastUsedOn ?? '',
    })),
  })
}
