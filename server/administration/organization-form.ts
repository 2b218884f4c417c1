// The rules of the fields of an organization, for edits and imports.
import type { OrganizationForm } from '../../proto/gen/auth/v1/administration_pb.js'
import type { OrganizationDetails } from '../models/organization.js'
import type { FieldViolation } from '../requests/refusal.js'
import { isEmailAddress, isOneLine, nicknameKey } from '../rules/names.js'
import { limits, tooLong } from '../rules/sizes.js'

/** Fields of the form, each beside its attribute. */
export const organizationAttributes = {
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

/** A field of the form. */
export type OrganizationField = keyof typeof organizationAttributes

/** The fields of the form. */
export const organizationFields = Object.keys(organizationAttributes) as OrganizationField[]

/** Returns the named fields of a form as attributes, null where they are cleared, and every wrong one. */
export function readOrganization(
  form: Partial<OrganizationForm>,
  fields: readonly OrganizationField[],
): { wrong: FieldViolation[]; details: Partial<OrganizationDetails> } {
  const wrong: FieldViolation[] = []
  const details = fields.map(field => {
    const attribute = organizationAttributes[field]
    const given = form[attribute] ?? ''
    // A postal address has lines.
    const text = (field === 'address' ? given.replace(/\r\n?/g, '\n') : given).trim()
    const isLine = isOneLine(field === 'address' ? text.replaceAll('\n', ' ') : text)
    if (tooLong(text, 'text')) wrong.push({ field, message: `Use at most ${limits.text} characters.` })
    else if (!isLine) wrong.push({ field, message: 'Leave out line breaks and other control characters.' })
    else if (field === 'name' && nicknameKey(text) === '') wrong.push({ field, message: 'Required.' })
    else if (field === 'email' && text !== '' && !isEmailAddress(text))
      wrong.push({ field, message: 'Not a valid e-mail address.' })
    return [attribute, text || null]
  })
  return { wrong, details: Object.fromEntries(details) }
}
