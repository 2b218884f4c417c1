import {
  Administration as AdministrationService,
  type Organization,
  type OrganizationForm,
  OrganizationSchema,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Change } from '../access/context.js'
import type { Transaction } from '../database/connection.js'
import type { AuditEvent } from '../models/audit.js'
import type { OrganizationDetails, OrganizationRow, Organizations } from '../models/organization.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { isEmailAddress, isOneLine, nicknameKey } from '../rules/names.js'
import { limits, tooLong } from '../rules/sizes.js'
import type { AdministrationContext, Checked, Handler } from './context.js'
import { checkEtag, withEtag } from './etag.js'
import type { OpenPage } from './paging.js'
import { checkText } from './texts.js'
import { readMask } from './update-mask.js'
import { wrongFields } from './wrong-fields.js'

interface Deps {
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
export function listOrganizations(deps: Deps): Handler<'listOrganizations'> {
  const { organizations, openPage } = deps
  return async request => {
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
      organizations: shown.map(toOrganization),
      ...next,
    }
  }
}

/** Returns an organization with its activation key. */
export function getOrganization({ organizations }: Pick<Deps, 'organizations'>): Handler<'getOrganization'> {
  return async ({ omitKeys }, { change, target }) => {
    if (omitKeys) return { organization: await show(organizations, target) }
    // A key that is shown opens a way in for others.
    await change({ validateOnly: false }, ({ record }) =>
      record({ action: 'organization.show-key', object: `organization:${target.id}` }),
    )
    return { organization: await show(organizations, target, { key: true }) }
  }
}

/** Registers an active organization with a new activation key. */
export function createOrganization(deps: Deps): Handler<'createOrganization'> {
  const { organizations } = deps
  return async (request, { create }) => {
    const form = request.form ?? ({} as Partial<OrganizationForm>)
    const details = checkForm(form, Object.keys(attributes) as Field[])
    const { name } = details
    if (!name) wrongFields([{ field: 'form.name', message: 'Give the organization a name.' }])
    return create(AdministrationService.method.createOrganization, request, async change => {
      await checkInepCode(organizations, details, undefined, change.t)
      const row = await organizations.add({ ...details, name, nameKey: nicknameKey(name) }, change.t)
      await change.record({ action: 'organization.add', object: `organization:${row.id}` })
      return { organization: await show(organizations, row, { t: change.t, key: true }) }
    })
  }
}

/** The fields that a request changes, and their new values. */
interface Update {
  readonly fields: readonly Field[]
  readonly details: Partial<OrganizationDetails>
}

/** Changes details of an organization. */
export function updateOrganization({ organizations }: Deps): Checked<'updateOrganization', Update> {
  return {
    check({ updateMask, form }) {
      const fields = readMask(updateMask, Object.keys(attributes) as Field[])
      return { fields, details: checkForm(form ?? {}, fields) }
    },
    handle: (request, context, { fields, details }) =>
      changeOrganization(organizations, context, request, async ({ t, record }, row) => {
        const changed = fields.filter(field => details[attributes[field]] !== row[attributes[field]])
        if (changed.length === 0) return false
        await checkInepCode(organizations, details, row.id, t)
        const { name } = details
        await organizations.edit(row.id, { ...details, ...(name && { nameKey: nicknameKey(name) }) }, t)
        await record({ action: 'organization.edit', object: `organization:${row.id}`, reason: changed.join(',') })
        return true
      }),
  }
}

/** Lets the keys of an organization and of its users work. */
export function activateOrganization(deps: Deps): Handler<'activateOrganization'> {
  return async (request, context) => {
    return changeOrganization(deps.organizations, context, request, switchTo(deps, true, 'organization.activate'))
  }
}

/** Stops the keys of an organization and of its users from activating anyone. */
export function deactivateOrganization(deps: Deps): Handler<'deactivateOrganization'> {
  return async (request, context) => {
    return changeOrganization(deps.organizations, context, request, switchTo(deps, false, 'organization.deactivate'))
  }
}

/** Gives an organization a new activation key; the one before is void at once. */
export function rotateOrganizationKey(deps: Deps): Handler<'rotateOrganizationKey'> {
  return async (request, context) => {
    const { organization } = await changeOrganization(
      deps.organizations,
      context,
      request,
      async ({ t, record }, row) => {
        await deps.organizations.rotateKey(row.id, t)
        await record({ action: 'organization.rotate-key', object: `organization:${row.id}` })
        return true
      },
    )
    return { organization }
  }
}

/** Removes an organization that has no members. */
export function deleteOrganization(deps: Deps): Handler<'deleteOrganization'> {
  const { organizations } = deps
  return async (request, { administrator, change, target: { id, name } }) => {
    administrator.confirm(name, request.confirm)
    await change(request, async ({ t, record }) => {
      const row = await lock(organizations, id, t)
      checkEtag(request.etag, toOrganization(row))
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

/** Locks the organization that a request refers to, checks the etag, makes a change, and answers with what it is now. */
async function changeOrganization(
  organizations: Organizations,
  { change, target: { id } }: AdministrationContext<OrganizationRow>,
  request: { etag: string; validateOnly: boolean },
  work: (change: Change, row: OrganizationRow) => Promise<boolean>,
) {
  return change(request, async made => {
    const row = await lock(organizations, id, made.t)
    checkEtag(request.etag, toOrganization(row))
    const changed = await work(made, row)
    const now = await lock(organizations, id, made.t)
    return { organization: await show(organizations, now, { t: made.t, key: true }), changed }
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

/** An organization as administrators see it; its key only where one is shown by itself. */
function toOrganization(row: OrganizationRow): Organization {
  const texts = Object.values(attributes).flatMap(name => (row[name] === null ? [] : [[name, row[name]]]))
  return withEtag(OrganizationSchema, {
    record: {
      id: row.id,
      active: String(row.active),
      creationDate: row.creationDate,
      ...Object.fromEntries(texts),
    },
  })
}

/** The same, with how many belong to it. The key is no part of what the etag stands for: a list shows the same one. */
async function show(
  organizations: Organizations,
  row: OrganizationRow,
  { t, key = false }: { t?: Transaction; key?: boolean } = {},
): Promise<Organization> {
  const shown = toOrganization(row)
  shown.members = await organizations.members(row.id, t)
  if (key) shown.record!.activationkey = organizations.activationKey(row)
  return shown
}
