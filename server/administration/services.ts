import { create as createMessage } from '@bufbuild/protobuf'
import { timestampDate, timestampFromDate } from '@bufbuild/protobuf/wkt'
import {
  Administration as AdministrationService,
  type CreateServiceKeyRequest,
  type CreateServiceRequest,
  type Service,
  type ServiceForm,
  ServiceSchema,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Transaction } from '../database/connection.js'
import { newServiceKey, type ServiceKeyRow, type ServiceRow, type Services } from '../models/service.js'
import type { OpenPage } from '../requests/paging.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { readMask } from '../requests/update-mask.js'
import { wrongFields } from '../requests/wrong-fields.js'
import { type ScopeName, scopeName, scopeNames, scopeOf } from '../rules/scopes.js'
import type { Checked, Handler } from './context.js'
import { checkEtag, withEtag } from './etag.js'

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

/** Returns a service with the metadata of its keys. */
export function getService({ services }: Pick<Deps, 'services'>): Handler<'getService'> {
  return async ({ name }) => {
    const row = (await services.find(readName(name))) ?? missing(name)
    return { service: toService(row, await services.keys([row.id])) }
  }
}

/** Registers a service with its first key. */
export function createService(deps: Deps): Handler<'createService'> {
  const { services, now } = deps
  return async (request, { create }) => {
    const { name, scopes, expiresAt } = checkForm(request, now())
    return create(AdministrationService.method.createService, request, async ({ t, record }) => {
      const row = await services.add({ name, scopes }, t)
      if (!row) taken(name)
      await record({ action: 'service.add', object: `service:${name}`, reason: scopes.join(',') })
      return addKey(services, row, expiresAt, request, t)
    })
  }
}

/** What a request changes of a service. */
interface Update {
  readonly name: string
  readonly changes: Partial<Pick<ServiceRow, 'name' | 'scopes'>>
}

/** Changes the name or the scopes of a service. */
export function updateService({ services }: Pick<Deps, 'services'>): Checked<'updateService', Update> {
  return {
    check({ name, updateMask, form }) {
      const fields = readMask(updateMask, ['name', 'scopes'])
      const wrong: FieldViolation[] = []
      const { name: to, scopes } = readForm(form ?? { scopes: [] }, wrong, 'form.')
      const relevant = wrong.filter(({ field }) => fields.some(each => field === `form.${each}`))
      if (relevant.length > 0) wrongFields(relevant)
      const changes = { ...(fields.includes('name') && { name: to }), ...(fields.includes('scopes') && { scopes }) }
      return { name: readName(name), changes }
    },
    handle: (request, { change }, { name, changes }) =>
      change(request, async ({ t, record }) => {
        const before = (await services.lock(name, t)) ?? missing(name)
        const keys = await services.keys([before.id], t)
        checkEtag(request.etag, toService(before, keys))
        const after = { ...before, ...changes }
        const renamed = after.name !== before.name
        const rescoped = after.scopes.join() !== before.scopes.join()
        if (!renamed && !rescoped) return { service: toService(before, keys), changed: false }
        if (renamed && (await services.find(after.name, t))) taken(after.name)
        await services.edit(before.id, changes, t)
        const reason = [renamed && `name ${after.name}`, rescoped && `scopes ${after.scopes.join(',')}`]
        await record({ action: 'service.edit', object: `service:${name}`, reason: reason.filter(Boolean).join('; ') })
        return { service: toService(after, keys), changed: true }
      }),
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
  const form = readForm(request, wrong)
  const expiresAt = readExpiry(request, now, wrong)
  if (wrong.length > 0) wrongFields(wrong)
  return { ...form, expiresAt }
}

/** Reads name and scopes; `wrong` gets the wrong ones, with `prefix` before their names. */
function readForm({ name = '', scopes }: Pick<ServiceForm, 'name' | 'scopes'>, wrong: FieldViolation[], prefix = '') {
  if (!/^[a-z\d-]{1,63}$/.test(name)) {
    wrong.push({ field: `${prefix}name`, message: 'Use 1 to 63 lower-case letters, digits and hyphens.' })
  }
  const names = [...new Set(scopes)].map(scopeName)
  if (names.length === 0 || names.includes(undefined)) {
    wrong.push({ field: `${prefix}scopes`, message: `Use one or more of ${scopeNames.join(', ')}.` })
  }
  return { name, scopes: names as ScopeName[] }
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

function taken(name: string): never {
  refuse(Reason.NAME_TAKEN, { text: `Service ${name} already exists.` })
}

function missing(name: string | undefined): never {
  refuse(Reason.RECORD_NOT_FOUND, { text: `There is no service ${name}.` })
}

/** A service as administrators see it. */
function toService(row: ServiceRow, keys: readonly ServiceKeyRow[]): Service {
  // The etag doesn't cover the keys: their day of last use changes by itself.
  const { name, createdAt } = row
  const shown = { name, scopes: row.scopes.map(scopeOf), createTime: timestampFromDate(createdAt) }
  return createMessage(ServiceSchema, {
    ...shown,
    etag: withEtag(ServiceSchema, shown).etag,
    keys: keys.map(({ id, beginning, createdAt, expiresAt, lastUsedOn }) => ({
      id,
      beginning,
      createTime: timestampFromDate(createdAt),
      expireTime: timestampFromDate(expiresAt),
      lastUsed: lastUsedOn ?? '',
    })),
  })
}
