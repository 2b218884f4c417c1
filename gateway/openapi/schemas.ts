/** JSON Schemas of messages, as requests and answers over HTTP have them. */
import { type DescField, type DescMessage, ScalarType } from '@bufbuild/protobuf'
import { FeatureSet_FieldPresence } from '@bufbuild/protobuf/wkt'
import { type OrganizationField, organizationFields as organization } from '../../server/rules/organization.js'
import { type ProfileRule, profile } from '../../server/rules/profile.js'
import { maxLengths } from '../../server/rules/sizes.js'
import { organizationFields, type Revision } from '../operations.js'
import type { Comments } from './comments.js'

/** A JSON Schema (2020-12). */
export type Schema = Readonly<Record<string, unknown>>

/** Where a message occurs: in requests, in answers, or as the JSON text in a field of an answer. */
type Direction = 'request' | 'answer' | 'text'

/** Makes the schemas of a revision, and collects those of messages. */
export interface Schemas {
  /** A reference to the schema of a message. */
  of(message: DescMessage, direction: Direction): Schema
  /** The schema of a field. */
  ofField(field: DescField, direction: Direction): Schema
  /** A reference to the schema of a request whose body has the fields of one of its messages, and beside them another field. */
  ofBeside(request: DescMessage, field: DescField, beside: DescField): Schema
  /** The schemas of messages by name. */
  readonly components: Record<string, Schema>
}

/** Messages that JSON writes as strings (ProtoJSON). */
const strings: Readonly<Record<string, Schema>> = {
  'google.protobuf.Timestamp': { type: 'string', format: 'date-time' },
  'google.protobuf.FieldMask': { type: 'string' },
}

/** Creates the schemas of a revision. */
export function createSchemas(revision: Revision, comments: Comments): Schemas {
  const components: Record<string, Schema> = {}

  function of(message: DescMessage, direction: Direction): Schema {
    const { fields, typeName } = message
    // oapi-codegen names the answers of operations like that.
    const name = message.name.replace(/Response$/, 'Result')
    if (!components[name]) {
      const known = fields.filter(field => !isHidden(field, revision))
      const required = known.filter(field => isRequired(field, direction)).map(({ jsonName }) => jsonName)
      components[name] = {
        type: 'object',
        description: comments.get(typeName),
        properties: Object.fromEntries(known.map(field => [field.jsonName, ofField(field, direction)])),
        ...(required.length > 0 && { required }),
      }
    }
    return { $ref: `#/components/schemas/${name}` }
  }

  function ofField(field: DescField, direction: Direction): Schema {
    const description = comments.get(`${field.parent.typeName}.${field.name}`)
    const one = ofValue(field, direction)
    return {
      ...(field.fieldKind === 'list' ? { type: 'array', items: one } : one),
      ...(description && { description }),
    }
  }

  function ofValue(field: DescField, direction: Direction): Schema {
    const { scalar, message } = field
    if (message) return strings[message.typeName] ?? of(message, direction)
    switch (scalar) {
      case ScalarType.STRING:
        // Revision 1.0.0 has it without a format.
        return { type: 'string', ...(isKey(field) && revision === '1.0.2' && { format: 'uuid' }), ...sizeOf(field) }
      case ScalarType.BOOL:
        return { type: 'boolean' }
      case ScalarType.INT32:
        // Requests may have it as a string, too (ProtoJSON), but generators of clients know one type only.
        return { type: 'integer', format: 'int32' }
      case ScalarType.INT64:
        if (direction === 'text') return { type: 'integer', format: 'int64' }
    }
    throw new Error(`${field.parent.typeName}.${field.name} has no schema.`)
  }

  function isRequired({ parent, name, presence, fieldKind }: DescField, direction: Direction): boolean {
    const comment = comments.get(`${parent.typeName}.${name}`) ?? ''
    if (direction === 'request') return /^Required\b/.test(comment)
    // An answer has all fields without explicit presence, a text no empty list.
    const isImplicit = presence === FeatureSet_FieldPresence.IMPLICIT
    return /\bAlways present\b/.test(comment) || (isImplicit && (direction === 'answer' || fieldKind !== 'list'))
  }

  // One object: generators of clients don't merge schemas.
  function ofBeside({ name, typeName }: DescMessage, field: DescField, beside: DescField): Schema {
    of(field.message!, 'request')
    const { properties, ...rest } = components[field.message!.name] as { properties: Schema }
    const fields = { ...properties, [beside.jsonName]: ofField(beside, 'request') }
    components[name] = { ...rest, description: comments.get(typeName), properties: fields }
    return { $ref: `#/components/schemas/${name}` }
  }

  return { of, ofField, ofBeside, components }
}

/** Whether a revision doesn't have the field. */
function isHidden({ parent, jsonName }: DescField, revision: Revision): boolean {
  const only = parent.name === 'PartnerOrganization' ? organizationFields[jsonName] : undefined
  return only !== undefined && only !== revision
}

/** The maximum length of a field that takes any text: what a `check` permits is in the comment of the field. */
function sizeOf({ parent, name }: DescField): Schema {
  const isOrganization = parent.name === 'PartnerOrganization'
  if (!isOrganization && !/^(User|SignUpRequest|Profile)$/.test(parent.name)) return {}
  const of: readonly (ProfileRule | OrganizationField)[] = isOrganization ? organization : Object.values(profile)
  const rule = of.find(({ field }) => field === name)
  if (!rule || rule.check || rule.kind === 'day' || rule.kind === 'number') return {}
  return { maxLength: rule.longest ?? maxLengths.text }
}

/** Whether the field is a key in an answer. */
function isKey({ parent, name }: DescField): boolean {
  return name === 'activationkey' && /^(PartnerOrganization|ProviderActivationKey)$/.test(parent.name)
}
