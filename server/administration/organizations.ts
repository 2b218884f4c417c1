import {
  type Administration,
  Administration as AdministrationService,
  type Organization,
  type OrganizationForm,
  OrganizationSchema,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Administrators } from '../access/administrator.js'
import type { Unary } from '../call.js'
import type { Transaction } from '../database/connection.js'
import type { AuditEvent } from '../models/audit.js'
import type { OrganizationDetails, OrganizationRow, Organizations } from '../models/organization.js'
import { isEmailAddress, isOneLine, nicknameKey } from '../names.js'
import { type FieldViolation, refuse } from '../refusal.js'
import { limits, tooLong } from '../sizes.js'
import type { Change, Changes } from './changes.js'
import { checkEtag, withEtag } from './etag.js'
import type { OpenPage } from './paging.js'
import type { References } from './references.js'
import { checkText } from './texts.js'
import { readMask } from './updatemask.js'
import { wrongFields } from './wrongfields.js'

type Service = typeof Administration.method

interface Deps {
  administrators: Administrators
  changes: Changes
  references: References
  organizations: Organizations
  openPage: OpenPage
}

/** Fields of the form, each beside its attribute. */
const attributes = {
  name: 'name',
  email: 'email',
  address: 'address',
  inep_code: 'inepCode',
  login: 'login',
  phone: 'phone',
  responsible: 'responsible',
  type: 'type',
  website: 'website',
} as const satisfies Record<string, keyof OrganizationDetails & keyof OrganizationForm>

/** Lists organizations by id. */
export function listOrganizations(
  deps: Pick<Deps, 'administrators' | 'organizations' | 'openPage'>,
): Unary<Service['listOrganizations']> {
  const { administrators, organizations, openPage } = deps
  return async (request, call) => {
    await administrators.identify('listOrganizations', call)
    const page = openPage<number>(AdministrationService.method.listOrganizations, request)
    const { active, type } = request
    const text = checkText('text', request.text)
    const rows = await organizations.list({
      limit: page.limit,
      ...(page.after !== undefined && { afterId: page.after }),
      ...(active !== undefined && { active }),
      ...(type && { type }),
      ...(text && { text }),
    })
    const { shown, ...next } = page.cut(rows, ({ id }) => id)
    return {
      organizations: shown.map(row => toOrganization(row, organizations)),
      ...next,
    }
  }
}

/** Returns an organization with its activation key. */
export function getOrganization(
  deps: Pick<Deps, 'administrators' | 'references' | 'organizations'>,
): Unary<Service['getOrganization']> {
  const { administrators, references, organizations } = deps
  return async (request, call) => {
    await administrators.identify('getOrganization', call)
    const row = await references.organization(request.organization)
    return { organization: await show(organizations, row) }
  }
}

/** Registers an active organization with a new activation key. */
export function createOrganization(deps: Deps): Unary<Service['createOrganization']> {
  const { administrators, changes, organizations } = deps
  return async (request, call) => {
    const administrator = await administrators.identify('createOrganization', call)
    const form = request.form ?? ({} as Partial<OrganizationForm>)
    const details = checkForm(form, Object.keys(attributes) as Field[])
    const { name } = details
    if (!name) wrongFields([{ field: 'form.name', message: 'Give the organization a name.' }])
    return changes.create(AdministrationService.method.createOrganization, administrator, request, async change => {
      await checkInepCode(organizations, details, undefined, change.t)
      const row = await organizations.add({ ...details, name, nameKey: nicknameKey(name) }, change.t)
      await change.record({ action: 'organization.add', object: `organization:${row.id}` })
      return { organization: await show(organizations, row, change.t) }
    })
  }
}

/** Changes details of an organization. */
export function updateOrganization(deps: Deps): Unary<Service['updateOrganization']> {
  const { administrators, organizations } = deps
  return async (request, call) => {
    const administrator = await administrators.identify('updateOrganization', call)
    const fields = readMask(request.updateMask, Object.keys(attributes) as Field[])
    const details = checkForm(request.form ?? {}, fields)
    return changeOrganization(deps, administrator, request, async ({ t, record }, row) => {
      const changed = fields.filter(field => details[attributes[field]] !== row[attributes[field]])
      if (changed.length === 0) return false
      await checkInepCode(organizations, details, row.id, t)
      const { name } = details
      await organizations.edit(row.id, { ...details, ...(name && { nameKey: nicknameKey(name) }) }, t)
      await record({ action: 'organization.edit', object: `organization:${row.id}`, reason: changed.join(',') })
      return true
    })
  }
}

/** Lets the keys of an organization and of its users work. */
export function activateOrganization(deps: Deps): Unary<Service['activateOrganization']> {
  return async (request, call) => {
    const administrator = await deps.administrators.identify('activateOrganization', call)
    return changeOrganization(deps, administrator, request, switchTo(deps, true, 'organization.activate'))
  }
}

/** Stops the keys of an organization and of its users from activating anyone. */
export function deactivateOrganization(deps: Deps): Unary<Service['deactivateOrganization']> {
  return async (request, call) => {
    const administrator = await deps.administrators.identify('deactivateOrganization', call)
    return changeOrganization(deps, administrator, request, switchTo(deps, false, 'organization.deactivate'))
  }
}

/** Gives an organization a new activation key; the one before is void at once. */
export function rotateOrganizationKey(deps: Deps): Unary<Service['rotateOrganizationKey']> {
  return async (request, call) => {
    const administrator = await deps.administrators.identify('rotateOrganizationKey', call)
    const { organization } = await changeOrganization(deps, administrator, request, async ({ t, record }, row) => {
      await deps.organizations.rotateKey(row.id, t)
      await record({ action: 'organization.rotate-key', object: `organization:${row.id}` })
      return true
    })
    return { organization }
  }
}

/** Removes an organization that has no members. */
export function deleteOrganization(deps: Deps): Unary<Service['deleteOrganization']> {
  const { administrators, changes, references, organizations } = deps
  return async (request, call) => {
    const administrator = await administrators.identify('deleteOrganization', call)
    const { id, name } = await references.organization(request.organization)
    administrator.confirm(name, request.confirm)
    await changes.make(administrator, request, async ({ t, record }) => {
      const row = await lock(organizations, id, t)
      checkEtag(request.etag, toOrganization(row, organizations))
      const members = await organizations.members(id, t)
      if (members > 0) {
        refuse(Reason.WRONG_STATE, { text: `${name} has ${members} members: move them first, or deactivate it.` })
      }
      await organizations.remove(id, t)
      await record({ action: 'organization.delete', object: `organization:${id}` })
    })
    return {}
  }
}

type Field = keyof typeof attributes

/** The change that has the keys of an organization and of its users work, or not. */
function switchTo({ organizations }: Pick<Deps, 'organizations'>, active: boolean, action: AuditEvent['action']) {
  return async ({ t, record }: Change, row: OrganizationRow) => {
    if (row.active === active) return false
    await organizations.setActive(row.id, active, t)
    await record({ action, object: `organization:${row.id}` })
    return true
  }
}

/** Finds and locks an organization, checks the etag, makes a change, and answers with what it is now. */
async function changeOrganization(
  { changes, references, organizations }: Pick<Deps, 'changes' | 'references' | 'organizations'>,
  administrator: Awaited<ReturnType<Administrators['identify']>>,
  request: { organization?: string; etag: string; validateOnly: boolean },
  work: (change: Change, row: OrganizationRow) => Promise<boolean>,
) {
  const { id } = await references.organization(request.organization)
  return changes.make(administrator, request, async change => {
    const row = await lock(organizations, id, change.t)
    checkEtag(request.etag, toOrganization(row, organizations))
    const changed = await work(change, row)
    return { organization: await show(organizations, await lock(organizations, id, change.t), change.t), changed }
  })
}

/** The row, which nobody else changes before the transaction ends. */
async function lock(organizations: Organizations, id: number, t: Transaction): Promise<OrganizationRow> {
  return (await organizations.lock(id, t)) ?? refuse(Reason.RECORD_NOT_FOUND, { text: `Organization #${id} is gone.` })
}

/** The named fields of a form as attributes, null where they are cleared. Refuses with every wrong one. */
function checkForm(form: Partial<OrganizationForm>, fields: readonly Field[]): Partial<OrganizationDetails> {
  const wrong: FieldViolation[] = []
  const details = fields.map(field => {
    const attribute = attributes[field]
    const text = (form[attribute] ?? '').trim()
    if (tooLong(text, 'text') || !isOneLine(text)) {
      wrong.push({ field: `form.${field}`, message: `Use at most ${limits.text} characters, and no line breaks.` })
    } else if (field === 'name' && nicknameKey(text) === '' && (text !== '' || fields.length < 9)) {
      wrong.push({ field: 'form.name', message: 'An organization needs a name.' })
    } else if (field === 'email' && text !== '' && !isEmailAddress(text)) {
      wrong.push({ field: 'form.email', message: 'This is no valid e-mail address.' })
    }
    return [attribute, text || null]
  })
  if (wrong.length > 0) wrongFields(wrong)
  return Object.fromEntries(details)
}

async function checkInepCode(
  organizations: Organizations,
  { inepCode }: Partial<OrganizationDetails>,
  id: number | undefined,
  t: Transaction,
): Promise<void> {
  const other = inepCode ? await organizations.withInepCode(inepCode, id, t) : undefined
  if (other !== undefined) refuse(Reason.NAME_TAKEN, { text: `Organization #${other} has this INEP code already.` })
}

/** An organization as administrators see it. */
function toOrganization(row: OrganizationRow, { activationKey }: Pick<Organizations, 'activationKey'>): Organization {
  const texts = Object.values(attributes).flatMap(name => (row[name] === null ? [] : [[name, row[name]]]))
  return withEtag(OrganizationSchema, {
    record: {
      id: row.id,
      active: String(row.active),
      creationDate: row.creationDate,
      ...Object.fromEntries(texts),
      activationkey: activationKey(row),
    },
  })
}

/** The same, with how many belong to it. */
async function show(organizations: Organizations, row: OrganizationRow, t?: Transaction): Promise<Organization> {
  const shown = toOrganization(row, organizations)
  shown.members = await organizations.members(row.id, t)
  return shown
}
