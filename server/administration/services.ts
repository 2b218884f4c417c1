import { create as createMessage } from '@bufbuild/protobuf'
import { protoCamelCase } from '@bufbuild/protobuf/reflect'
import { timestampDate, timestampFromDate } from '@bufbuild/protobuf/wkt'
import {
  Administration,
  type CreateServiceKeyRequest,
  type CreateServiceRequest,
  type Service,
  type ServiceForm,
  ServiceSchema,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Access } from '../access/index.js'
import { ownClient } from '../access/tokens.js'
import type { AdministrationRpcs, Checked } from '../calls/context.js'
import type { Transaction } from '../database/database.js'
import type { Models } from '../models/index.js'
import { type ServiceForm as Form, newServiceKey, type ServiceKeyRow, type ServiceRow } from '../models/service.js'
import type { TokenIssuer } from '../models/token-issuer.js'
import type { OpenPage } from '../requests/paging.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { readMask } from '../requests/update-mask.js'
import { wrongField, wrongFields } from '../requests/wrong-fields.js'
import type { FieldReason } from '../rules/fault.js'
import { isOneLine } from '../rules/names.js'
import { isReturnUri } from '../rules/return-uri.js'
import { type ScopeName, scopeName, scopeNames, scopeOf } from '../rules/scopes.js'
import { maxLengths, tooLong } from '../rules/sizes.js'
import { requireConfirmation } from './confirmation.js'
import { checkEtag, withEtag } from './etag.js'

/** Default lifetime of a key, in milliseconds. */
const usualLife = 365 * 86_400_000

/** What a request changes of a service. */
interface Update {
  readonly name: string
  readonly changes: Partial<Form>
}

/** The RPCs of services and their keys. */
export function serviceRpcs({ services, idTokenKeys, tokenIssuers }: Models, { now }: Access, openPage: OpenPage) {
  const show = async (row: ServiceRow, t?: Transaction) => toService(row, await services.keys([row.id], t))

  /** Refuses a name that the registry itself has in tokens. */
  async function refuseReserved(name: string, field: string, t: Transaction): Promise<void> {
    const issuer = await tokenIssuers.find(t)
    if (!reservedNames(issuer).includes(name)) return
    wrongField(field, 'RESERVED', 'Use another name: the registry itself has this one in its tokens.')
  }

  /** Makes the keys of ID tokens with the first client, which can cache the key set from then on. */
  async function makeKeysOf({ redirectUris = [] }: Partial<Form>): Promise<void> {
    if (redirectUris.length > 0) await idTokenKeys.make()
  }

  async function lock(name: string, t: Transaction): Promise<ServiceRow> {
    return (await services.lock(name, t)) ?? missing(name)
  }

  /** Adds a key, and returns the answer that shows it; with `validateOnly`, without the key. */
  async function addKey(row: ServiceRow, expiresAt: Date, { validateOnly }: { validateOnly: boolean }, t: Transaction) {
    const key = newServiceKey()
    await services.addKey(row.id, key, expiresAt, t)
    return { service: await show(row, t), key: validateOnly ? '' : key }
  }

  return {
    /** Lists services by name. */
    async listServices(request) {
      const page = openPage<string>(Administration.method.listServices, request)
      const rows = await services.list({ limit: page.limit, afterName: page.after })
      const { shown, ...next } = page.cut(rows, ({ name }) => name)
      const keys = await services.keys(shown.map(({ id }) => id))
      const keysOf = (row: ServiceRow) => keys.filter(({ serviceId }) => serviceId === row.id)
      return { services: shown.map(row => toService(row, keysOf(row))), ...next }
    },

    /** Returns a service with the metadata of its keys. */
    async getService({ name }) {
      const row = (await services.find(readName(name))) ?? missing(name)
      return { service: await show(row) }
    },

    /** Registers a service with its first key; a client without a secret gets none. */
    async createService(request, { transact }) {
      const { expiresAt, ...form } = checkForm(request, now())
      const { name, scopes } = form
      const made = await transact(async ({ t, record }) => {
        await refuseReserved(name, 'name', t)
        const row = await services.add(form, t)
        if (!row) taken(name)
        await record({ action: 'service.add', object: `service:${name}`, reason: scopes.join(',') })
        return form.public ? { service: await show(row, t), key: '' } : addKey(row, expiresAt, request, t)
      })
      await makeKeysOf(form)
      return made
    },

    /** Changes the name or the scopes of a service. */
    updateService: {
      check({ name, updateMask, form }) {
        const fields = readMask(
          updateMask,
          ['name', 'scopes', 'redirect_uris', 'post_logout_uris', 'public', 'title'] as const,
          String,
        )
        const wrong: FieldViolation[] = []
        const read = readForm({ ...emptyForm, ...form }, wrong, 'form.')
        const relevant = wrong.filter(({ field }) => fields.some(each => field === `form.${each}`))
        if (relevant.length > 0) wrongFields(relevant)
        const changes = Object.fromEntries(fields.map(protoCamelCase).map(name => [name, read[name as keyof Form]]))
        return { name: readName(name), changes }
      },
      async handle(request, { transact }, { name, changes }) {
        const made = await transact(async ({ t, record }) => {
          const before = await lock(name, t)
          checkEtag(request.etag, toService(before, []))
          const after = { ...before, ...changes }
          const renamed = after.name !== before.name
          const rescoped = after.scopes.join() !== before.scopes.join()
          const moved = addresses.filter(field => `${after[field]}` !== `${before[field]}`)
          if (!renamed && !rescoped && moved.length === 0) return { service: await show(before, t), changed: false }
          if (renamed) await refuseReserved(after.name, 'form.name', t)
          if (renamed && (await services.find(after.name, t))) taken(after.name)
          await services.edit(before.id, changes, t)
          const reason = [
            renamed && `name ${after.name}`,
            rescoped && `scopes ${after.scopes.join(',')}`,
            ...moved.map(field => `${field} ${after[field]}`),
          ]
          await record({ action: 'service.edit', object: `service:${name}`, reason: reason.filter(Boolean).join('; ') })
          return { service: await show(after, t), changed: true }
        })
        await makeKeysOf(changes)
        return made
      },
    } satisfies Checked<'updateService', Update>,

    /** Removes a service with all its keys. */
    async deleteService(request, { transact }) {
      const { name } = (await services.find(readName(request.name))) ?? missing(request.name)
      requireConfirmation(name, request.confirm)
      await transact(async ({ t, record }) => {
        const { id } = await lock(name, t)
        await services.remove(id, t)
        await record({ action: 'service.delete', object: `service:${name}` })
      })
      return {}
    },

    /** Adds a key to a service. */
    async createServiceKey(request, { transact }) {
      const name = readName(request.name)
      const wrong: FieldViolation[] = []
      const expiresAt = readExpiry(request, now(), wrong)
      if (wrong.length > 0) wrongFields(wrong)
      return transact(async ({ t, record }) => {
        const row = await lock(name, t)
        const answer = await addKey(row, expiresAt, request, t)
        await record({
          action: 'service.add-key',
          object: `service:${name}`,
          reason: `key ${answer.service.keys.at(-1)!.id}`,
        })
        return answer
      })
    },

    /** Removes a key of a service. */
    async deleteServiceKey(request, { transact }) {
      const name = readName(request.name)
      const { id } = request
      if (id === undefined) wrongField('id', 'MISSING', 'Specify the number of the key.')
      return transact(async ({ t, record }) => {
        const row = await lock(name, t)
        if (!(await services.removeKey(row.id, id, t))) {
          refuse(Reason.RECORD_NOT_FOUND, { text: `The service ${name} has no key ${id}.` })
        }
        await record({ action: 'service.delete-key', object: `service:${name}`, reason: `key ${id}` })
        return { service: await show(row, t) }
      })
    },
  } satisfies Partial<AdministrationRpcs>
}

/** Names that no service can have: those of the registry as client, as audience and as host. */
export function reservedNames(tokens: TokenIssuer | undefined): readonly string[] {
  if (!tokens) return [ownClient]
  const { issuer, audience } = tokens
  return [ownClient, audience, URL.canParse(issuer) ? new URL(issuer).hostname : issuer]
}

function checkForm(request: CreateServiceRequest, now: number) {
  const wrong: FieldViolation[] = []
  const form = readForm(request, wrong)
  const expiresAt = readExpiry(request, now, wrong)
  if (wrong.length > 0) wrongFields(wrong)
  return { ...form, expiresAt }
}

/** What a service has as a client of OpenID Connect. */
const addresses = ['redirectUris', 'postLogoutUris', 'public', 'title'] as const

const emptyForm = { scopes: [], redirectUris: [], postLogoutUris: [], public: false, title: '' }

/** Reads what is said of a service; `wrong` gets the wrong fields, with `prefix` before their names. */
function readForm(
  { name = '', scopes, redirectUris, postLogoutUris, public: isPublic, title }: Omit<ServiceForm, '$typeName'>,
  wrong: FieldViolation[],
  prefix = '',
): Form {
  const refused = (field: string, reason: FieldReason, message: string) =>
    wrong.push({ field: `${prefix}${field}`, reason, message })
  for (const [field, uris] of Object.entries({ redirect_uris: redirectUris, post_logout_uris: postLogoutUris }))
    if (uris.length > 20 || !uris.every(isReturnUri)) refused(field, 'MALFORMED', wrongUri)
  if (tooLong(title, 'text') || !isOneLine(title))
    refused('title', 'MALFORMED', `Use one line of at most ${maxLengths.text} characters.`)
  if (!/^[a-z\d-]{1,63}$/.test(name))
    refused('name', 'MALFORMED', 'Use 1 to 63 lower-case letters, digits and hyphens.')
  const names = [...new Set(scopes)].map(scopeName)
  if ((names.length === 0 && redirectUris.length === 0) || names.includes(undefined))
    refused('scopes', 'UNKNOWN_VALUE', `Use one or more of ${scopeNames.join(', ')}.`)
  return { name, scopes: names as ScopeName[], redirectUris, postLogoutUris, public: isPublic, title: title.trim() }
}

const wrongUri =
  'Use at most 20 URIs without fragment, wildcard and credentials: with https, with http for 127.0.0.1, [::1] or localhost, or with the scheme of an app, such as org.example.app:/.'

/** When a key expires: in the future, in a year of four digits. */
function readExpiry(
  { expireTime }: Pick<CreateServiceRequest | CreateServiceKeyRequest, 'expireTime'>,
  now: number,
  wrong: FieldViolation[],
): Date {
  const at = expireTime ? timestampDate(expireTime) : new Date(now + usualLife)
  if (!(at.getTime() > now && at.getUTCFullYear() < 10_000)) {
    wrong.push({ field: 'expire_time', reason: 'OUT_OF_RANGE', message: 'Use in the future.' })
  }
  return at
}

function readName(name: string | undefined): string {
  const given = name?.trim() ?? ''
  if (given === '') wrongField('name', 'MISSING', 'Specify the name of the service.')
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
  const { name, createdAt, redirectUris, postLogoutUris, public: isPublic, title } = row
  const client = { redirectUris, postLogoutUris, public: isPublic, title }
  const shown = { name, scopes: row.scopes.map(scopeOf), createTime: timestampFromDate(createdAt), ...client }
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
