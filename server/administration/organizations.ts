import {
  Administration as AdministrationService,
  type Organization,
  type OrganizationForm,
  OrganizationSchema,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Administrator } from '../access/administrator.js'
import type { Transaction } from '../database/connection.js'
import type { Emails } from '../models/email.js'
import type { OrganizationDetails, OrganizationRow, Organizations } from '../models/organization.js'
import type { Settings } from '../process/settings.js'
import type { OpenPage } from '../requests/paging.js'
import { refuse } from '../requests/refusal.js'
import { checkText } from '../requests/texts.js'
import { readMask } from '../requests/update-mask.js'
import { wrongFields } from '../requests/wrong-fields.js'
import { nicknameKey } from '../rules/names.js'
import { changeRecord, type Done, type Kind, lockRecord, setActive } from './change-record.js'
import type { Checked, Handler } from './context.js'
import { withEtag } from './etag.js'
import {
  type OrganizationField,
  organizationAttributes,
  organizationFields,
  readOrganization,
} from './organization-form.js'
import { changeBy } from './security-notices.js'

interface Deps {
  organizations: Organizations
  emails: Pick<Emails, 'notifyOrganization'>
  settings: Pick<Settings, 'mailLocale'>
  openPage: OpenPage
}

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
  return async ({ omitKeys }, { administrator, change, target }) => {
    if (omitKeys || !administrator.seesKeys) return { organization: await show(organizations, target) }
    // Recorded, because others can activate users with the key.
    await change({ validateOnly: false }, ({ record }) =>
      record({ action: 'organization.show-key', object: `organization:${target.id}` }),
    )
    return { organization: await show(organizations, target, { key: true }) }
  }
}

/** Registers an active organization with a new activation key. */
export function createOrganization(deps: Deps): Handler<'createOrganization'> {
  const { organizations } = deps
  return async (request, { administrator, create }) => {
    const form = request.form ?? ({} as Partial<OrganizationForm>)
    if (form.email?.trim()) permitOpening(administrator, ['email'])
    const details = checkForm(form, organizationFields)
    const name = details.name!
    return create(AdministrationService.method.createOrganization, request, async change => {
      await checkInepCode(organizations, details, undefined, change.t)
      const row = await organizations.add({ ...details, name, nameKey: nicknameKey(name) }, change.t)
      await change.record({ action: 'organization.add', object: `organization:${row.id}` })
      return { organization: await show(organizations, row, { t: change.t, key: administrator.seesKeys }) }
    })
  }
}

/** The fields that a request changes, and their new values. */
interface Update {
  readonly fields: readonly OrganizationField[]
  readonly details: Partial<OrganizationDetails>
}

/** Changes details of an organization. */
export function updateOrganization({ organizations, emails, settings }: Deps): Checked<'updateOrganization', Update> {
  return {
    check({ updateMask, form }) {
      const fields = readMask(updateMask, organizationFields)
      return { fields, details: checkForm(form ?? {}, fields) }
    },
    handle: (request, context, { fields, details }) =>
      changeRecord(kindOf(organizations, context.administrator), context, request, async (row, t) => {
        const changed = fields.filter(
          field => details[organizationAttributes[field]] !== row[organizationAttributes[field]],
        )
        if (changed.length === 0) return undefined
        permitOpening(context.administrator, changed)
        await checkInepCode(organizations, details, row.id, t)
        const { name } = details
        await organizations.edit(row.id, { ...details, ...(name && { nameKey: nicknameKey(name) }) }, t)
        if (changed.includes('email'))
          await emails.notifyOrganization(row, changeBy(context.administrator, settings), t)
        return { action: 'organization.edit', reason: changed.join(',') }
      }),
  }
}

/** Enables the activation keys of an organization and of its users. */
export function activateOrganization({ organizations }: Deps): Handler<'activateOrganization'> {
  const activate = setActive(organizations, true, 'organization.activate')
  return (request, context) => changeRecord(kindOf(organizations, context.administrator), context, request, activate)
}

/** Disables the activation keys of an organization and of its users. */
export function deactivateOrganization({ organizations }: Deps): Handler<'deactivateOrganization'> {
  const deactivate = setActive(organizations, false, 'organization.deactivate')
  return (request, context) => changeRecord(kindOf(organizations, context.administrator), context, request, deactivate)
}

/** Replaces the activation key of an organization; the former one stops working at once. */
export function rotateOrganizationKey({ organizations }: Deps): Handler<'rotateOrganizationKey'> {
  return (request, context) =>
    changeRecord(kindOf(organizations, context.administrator), context, request, async ({ id }, t) => {
      await organizations.rotateKey(id, t)
      return { action: 'organization.rotate-key' }
    })
}

/** Removes an organization that has no members. */
export function deleteOrganization(deps: Deps): Handler<'deleteOrganization'> {
  const { organizations } = deps
  return async (request, { administrator, change, target: { id, name } }) => {
    administrator.confirm(name, request.confirm)
    await change(request, async ({ t, record }) => {
      await lockRecord(kindOf(organizations, administrator), id, request, t)
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

function kindOf(
  organizations: Organizations,
  { seesKeys }: Administrator,
): Kind<OrganizationRow, Done, { organization: Organization }> {
  return {
    async lock(id, t) {
      const row = await organizations.lock(id, t)
      return row ?? refuse(Reason.RECORD_NOT_FOUND, { text: `Organization #${id} no longer exists.` })
    },
    show: toOrganization,
    record: ({ record }, done, { id }) => record({ ...done, object: `organization:${id}` }),
    answer: async (row, t) => ({ organization: await show(organizations, row, { t, key: seesKeys }) }),
  }
}

/** The named fields of a form as attributes. Refuses with every wrong one. */
function checkForm(
  form: Partial<OrganizationForm>,
  fields: readonly OrganizationField[],
): Partial<OrganizationDetails> {
  const { wrong, details } = readOrganization(form, fields)
  if (wrong.length > 0) wrongFields(wrong.map(({ field, message }) => ({ field: `form.${field}`, message })))
  return details
}

/**
 * Refuses with ACCESS_DENIED a service that changes by what an organization gives access: its e-mail address, which gets activation
 * keys, or the INEP code, by which imports add users to it.
 */
function permitOpening({ service }: Administrator, changed: readonly OrganizationField[]): void {
  const field = (['email', 'inep_code'] as const).find(each => changed.includes(each))
  if (!service || !field) return
  const name = { email: 'e-mail address', inep_code: 'INEP code' }[field]
  refuse(Reason.ACCESS_DENIED, {
    text: `No service may change the ${name} of an organization: sign in as an administrator.`,
  })
}

async function checkInepCode(
  organizations: Organizations,
  { inepCode }: Partial<OrganizationDetails>,
  id: number | undefined,
  t: Transaction,
): Promise<void> {
  const other = inepCode ? await organizations.withInepCode(inepCode, id, t) : undefined
  if (other !== undefined) refuse(Reason.NAME_TAKEN, { text: `Organization #${other} already has this INEP code.` })
}

/** An organization as administrators see it, without its key. */
function toOrganization(row: OrganizationRow): Organization {
  const texts = Object.values(organizationAttributes).flatMap(name => (row[name] === null ? [] : [[name, row[name]]]))
  return withEtag(OrganizationSchema, {
    record: {
      id: row.id,
      active: String(row.active),
      creationDate: row.creationDate,
      ...Object.fromEntries(texts),
    },
  })
}

/** The same with the number of its members. The etag doesn't cover the key, so a list shows the same one. */
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
