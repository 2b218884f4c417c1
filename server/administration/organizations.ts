import {
  Administration,
  type Organization,
  type OrganizationForm,
  OrganizationSchema,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Administrator } from '../access/administrator.js'
import type { AdministrationContext, AdministrationRpcs, Checked } from '../calls/context.js'
import type { References } from '../calls/steps.js'
import type { Transaction } from '../database/database.js'
import type { Models } from '../models/index.js'
import type { OrganizationDetails, OrganizationRow } from '../models/organization.js'
import type { Settings } from '../process/settings.js'
import type { Registration } from '../registration/index.js'
import { changedDetails, readOrganization } from '../registration/organizations.js'
import type { OpenPage } from '../requests/paging.js'
import { refuse } from '../requests/refusal.js'
import { checkText } from '../requests/texts.js'
import { readMask } from '../requests/update-mask.js'
import { wrongFields } from '../requests/wrong-fields.js'
import { formFields, type OrganizationField, organizationFields } from '../rules/organization.js'
import { type Done, setActive } from './change-record.js'
import { requireConfirmation } from './confirmation.js'
import { checkEtag, withEtag } from './etag.js'
import { changeBy } from './security-notices.js'

/** The RPCs of organizations. */
export function organizationRpcs(
  { organizations, users }: Models,
  { organizationRegistrar: registrar }: Registration,
  references: References,
  openPage: OpenPage,
  settings: Pick<Settings, 'mailLocale' | 'timeZone'>,
) {
  /** An organization with the number of its members. The etag doesn't cover the key, so a list shows the same one. */
  async function show(row: OrganizationRow, { t, key = false }: { t?: Transaction; key?: boolean } = {}) {
    const shown = toOrganization(row)
    shown.members = await users.members(row.id, t)
    if (key) shown.record!.activationkey = organizations.activationKey(row)
    return shown
  }

  /** Refuses with NAME_TAKEN what another organization has. */
  async function check(details: OrganizationDetails, id: number | undefined, t: Transaction) {
    const problem = await registrar.problemOf(details, id, t)
    if (problem) refuse(Reason.NAME_TAKEN, { text: problem.message })
  }

  /** Changes an organization under its etag. `work` returns the event, or undefined where there is nothing to change. */
  const change = (
    request: { readonly etag?: string },
    { administrator, transact }: AdministrationContext<OrganizationRow>,
    work: (row: OrganizationRow, t: Transaction) => Promise<Done | undefined>,
  ) =>
    transact(async ({ t, record, target: before }) => {
      checkEtag(request.etag, toOrganization(before))
      const done = await work(before, t)
      const after = done ? await references.organization.lock(before.id, t) : before
      if (done) await record({ ...done, object: `organization:${after.id}` })
      return { organization: await show(after, { t, key: administrator.seesKeys }), changed: done !== undefined }
    })

  return {
    async listOrganizations(request) {
      const page = openPage<number>(Administration.method.listOrganizations, request)
      const { active, type } = request
      const text = checkText('text', request.text)
      const rows = await organizations.list({
        limit: page.limit,
        afterId: page.after,
        active,
        type: type || undefined,
        text,
      })
      const { shown, ...next } = page.cut(rows, ({ id }) => id)
      const found = shown.map(toOrganization)
      if (request.countMembers) {
        const members = await users.membersOfEach(shown.map(({ id }) => id))
        for (const each of found) each.members = members.get(each.record!.id!) ?? 0
      }
      return { organizations: found, ...next }
    },

    async getOrganization({ omitKeys }, { administrator, transact, target }) {
      if (omitKeys || !administrator.seesKeys) return { organization: await show(target) }
      // Recorded, because others can activate users with the key.
      await transact(({ record }) => record({ action: 'organization.show-key', object: `organization:${target.id}` }))
      return { organization: await show(target, { key: true }) }
    },

    async createOrganization(request, { administrator, transact }) {
      const form = request.form ?? ({} as Partial<OrganizationForm>)
      permitOpening(administrator, [
        ...(form.email?.trim() ? ['email'] : []),
        ...(form.mayIssueKeys ? [issuing.field] : []),
      ])
      const details = { ...checkForm(form, formFields, settings), mayIssueKeys: form.mayIssueKeys }
      const name = details.name!
      return transact(async ({ t, record }) => {
        await check(details, undefined, t)
        const row = await registrar.add({ ...details, name }, t)
        await record({ action: 'organization.add', object: `organization:${row.id}` })
        return { organization: await show(row, { t, key: administrator.seesKeys }) }
      })
    },

    updateOrganization: {
      check({ updateMask, form }) {
        const mask = readMask(updateMask, [...formFields, issuing], ({ field }) => field)
        const fields = mask.filter(each => each !== issuing)
        const details = checkForm(form ?? {}, fields, settings)
        return mask.includes(issuing) ? { ...details, mayIssueKeys: form?.mayIssueKeys ?? false } : details
      },
      handle: (request, context, details) =>
        change(request, context, async (row, t) => {
          const changed = changedDetails(row, details)
          if (changed.length === 0) return undefined
          permitOpening(context.administrator, changed)
          await check(details, row.id, t)
          await registrar.change(row, details, changeBy(context.administrator, settings), t)
          return { action: 'organization.edit', reason: changed.join(',') }
        }),
    } satisfies Checked<'updateOrganization', OrganizationDetails>,

    activateOrganization: (request, context) =>
      change(request, context, setActive(organizations, true, 'organization.activate')),

    deactivateOrganization: (request, context) =>
      change(request, context, setActive(organizations, false, 'organization.deactivate')),

    rotateOrganizationKey: (request, context) =>
      change(request, context, async ({ id }, t) => {
        await organizations.rotateKey(id, t)
        return { action: 'organization.rotate-key' }
      }),

    async deleteOrganization(request, { transact, target: { name } }) {
      requireConfirmation(name, request.confirm)
      await transact(async ({ t, record, target: row }) => {
        const { id } = row
        checkEtag(request.etag, toOrganization(row))
        const members = await users.members(id, t)
        if (members > 0) {
          refuse(Reason.WRONG_STATE, { text: `${name} has ${members} members: move them first, or deactivate it.` })
        }
        await organizations.remove(id, t)
        await record({ action: 'organization.delete', object: `organization:${id}` })
      })
      return {}
    },
  } satisfies Partial<AdministrationRpcs>
}

/** Whether the users of an organization may issue keys: a field of its form, but not of its texts. */
const issuing = { field: 'may_issue_keys', opens: 'permission to issue keys' } as OrganizationField

/** The named fields of a form as attributes. Refuses with every wrong one. */
function checkForm(
  form: Partial<OrganizationForm>,
  fields: readonly OrganizationField[],
  { timeZone }: Pick<Settings, 'timeZone'>,
): OrganizationDetails {
  const { wrong, details } = readOrganization(form, fields, timeZone)
  if (wrong.length > 0) wrongFields(wrong.map(each => ({ ...each, field: `form.${each.field}` })))
  return details
}

/**
 * Refuses with ACCESS_DENIED a service that changes by what an organization gives access: its e-mail address, which gets activation
 * keys, the INEP code, by which imports add users to it, or whether its users may issue keys.
 */
function permitOpening({ service }: Administrator, changed: readonly string[]): void {
  const opening = [...organizationFields, issuing].find(({ field, opens }) => opens && changed.includes(field))
  if (!service || !opening) return
  refuse(Reason.ACCESS_DENIED, {
    text: `No service may change the ${opening.opens} of an organization: sign in as an administrator.`,
  })
}

/** An organization as administrators see it, without its key. */
function toOrganization(row: OrganizationRow): Organization {
  const valuesOf = (alone: boolean) =>
    Object.fromEntries(
      organizationFields
        .filter(field => (field.alone ?? false) === alone)
        .map(({ attribute }) => [attribute, row[attribute] ?? undefined]),
    )
  return withEtag(OrganizationSchema, {
    record: {
      id: row.id,
      active: String(row.active),
      ...valuesOf(false),
    },
    ...valuesOf(true),
    mayIssueKeys: row.mayIssueKeys,
  })
}
