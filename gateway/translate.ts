/** Converts an HTTP request to the message of its RPC, and the response message to an HTTP answer. */
import {
  create,
  type DescField,
  type DescMessage,
  type DescMethodUnary,
  fromJson,
  type JsonObject,
  type JsonValue,
  type Message,
  mergeFromJson,
  ScalarType,
  toJson,
} from '@bufbuild/protobuf'
import { FieldMaskSchema } from '@bufbuild/protobuf/wkt'
import { UserSchema } from '../proto/gen/auth/v1/records_pb.js'
import { SignUpRequestSchema } from '../proto/gen/auth/v1/users_pb.js'
import type { Turn } from '../server/requests/call.js'
import { faultOfList, maxValues, maxWrongFields } from '../server/requests/input.js'
import { type Body, parseJson } from './body.js'
import { type Answer, textAnswer } from './exchange.js'
import { organizationFields, type Revision, type Route } from './operations.js'
import { adaptQuery, adaptSignUp, addRoles } from './predecessor-clients.js'
import { HttpError } from './problem.js'

/** The parts of a request that determine its message. */
interface Input {
  /** Last segment of the path as sent, if it is a variable. */
  readonly segment: string | undefined
  /** Query as sent, without the question mark. */
  readonly query: string
  readonly body: Body | undefined
  /** Charged for what is read of JSON in a form. */
  readonly turn: Turn
}

/** The message of a request. */
export interface Translated {
  readonly message: Message
  /**
   * Headers for the RPC, which refuses all invalid fields together. `x-malformed-fields`: body fields and parameters of the wrong
   * type, which are absent from the message, with the expected type, as `application/x-www-form-urlencoded` pairs.
   * `x-secrets-in-query`: names of the secrets in the query, separated by commas.
   */
  readonly headers: Record<string, string>
}

/** Fields of a wrong type, with the expected type, and lists that are too long. */
export type Malformed = Map<string, string>

/** Encodes fields of a wrong type as a header; undefined if there are none. */
export function encodeMalformed(malformed: Malformed): string | undefined {
  return malformed.size === 0 ? undefined : String(new URLSearchParams([...malformed]))
}

/** Creates the message of a request. Throws `HttpError` if the request can't be read. */
type Read = (input: Input) => Translated

/** Creates the HTTP response from the RPC's response; `accept` is the request's header. */
type Write = (message: Message, accept: string | undefined) => Answer

/** The legacy clients to support, if any. */
export type Compatibility = 'predecessor' | undefined

/** Creates the reader of a route, with everything that doesn't depend on the request. */
export function createRead(
  { path, parameters = {}, body: bodyRule }: Route,
  input: DescMessage,
  compatibility?: Compatibility,
): Read {
  // As in protobuf's JSON, a parameter has either name of its field.
  const fields = new Map(
    Object.keys(parameters).flatMap(name => {
      const field = fieldOf(input, name)
      return [name, field.name].map(alias => [alias, field] as const)
    }),
  )
  const variable = /\{(\w+)\}$/.exec(path)?.[1]
  const bodyField = bodyRule && bodyRule.field !== '*' ? fieldOf(input, bodyRule.field) : undefined
  const list = bodyField?.fieldKind === 'list' ? bodyField : undefined
  const secrets = new Set(
    [...input.fields, ...(bodyField?.message?.fields ?? [])]
      .filter(isSecret)
      .flatMap(({ jsonName, name }) => [jsonName, name]),
  )

  return ({ segment, query, body, turn }) => {
    const inQuery = new Set<string>()
    const malformed: Malformed = new Map()
    const message = bodyRule && !list ? readBodyOf(input, bodyRule, body, malformed, turn) : create(input)
    const values: Record<string, string> = {}

    function setParameter(name: string, value: string) {
      const field = fields.get(name)
      if (field === undefined) return
      const { localName } = field
      const given = values[localName]
      if (given !== undefined && given !== value) {
        throw new HttpError('MALFORMED_REQUEST', `The parameter ${name} is given twice, with different values.`)
      }
      values[localName] = value
      const fault = setField(message, field, value)
      if (fault) malformed.set(name, fault)
    }

    if (query)
      eachPair(compatibility ? adaptQuery(query) : query, (name, value) => {
        if (value !== '' && secrets.has(name)) inQuery.add(name)
        setParameter(name, value)
      })
    if (body && !bodyRule) readParameters(body, fields, setParameter)
    const items =
      body && list && readList(body, list.jsonName, turn, rest => readParameters(rest, fields, setParameter))
    if (items !== undefined && items !== null) readField(message, list!, items, malformed, list!.jsonName)
    if (variable && segment !== undefined) {
      const name = decode(segment)
      // Clients that are generated from the interface may send the template itself, and the value in the query.
      if (name !== `{${variable}}` || values[variable] === undefined) setParameter(variable, name)
    }
    if (compatibility && input === SignUpRequestSchema) adaptSignUp(message)
    const headers: Record<string, string> = {}
    const wrong = encodeMalformed(malformed)
    if (wrong) headers['x-malformed-fields'] = wrong
    if (inQuery.size > 0) headers['x-secrets-in-query'] = [...inQuery].join()
    return { message, headers }
  }
}

/** Whether the definitions mark a field as a secret. */
export function isSecret({ proto }: DescField): boolean {
  return proto.options?.debugRedact === true
}

/** What a parameter must be if its field is no string, and how it is read. */
const parameterTypes: Partial<
  Record<ScalarType, readonly [pattern: RegExp, read: (text: string) => unknown, fault: string]>
> = {
  [ScalarType.INT32]: [/^-?\d{1,9}$/, Number, 'Must be an integer of at most 9 digits.'],
  [ScalarType.BOOL]: [/^(true|false)$/, text => text === 'true', 'Must be true or false.'],
}

/** Sets a field from a parameter. Returns what is wrong with its value, if anything. */
function setField(message: Message, { scalar, localName }: DescField, value: string): string | undefined {
  const [pattern, read = String, fault] = (scalar !== undefined && parameterTypes[scalar]) || []
  if (pattern && !pattern.test(value)) return fault
  Object.assign(message, { [localName]: read(value) })
  return undefined
}

/** Returns the JSON object that a form stands for: a list has a pair for each item, an object is JSON in its pair. */
function readForm(form: string, fields: readonly DescField[], turn: Turn): JsonObject {
  const values: Record<string, JsonValue> = {}
  eachPair(form, (name, value) => {
    const field = fields.find(field => field.jsonName === name || field.name === name)
    if (!field) return
    const { jsonName, fieldKind, scalar, message } = field
    const given = values[jsonName]
    if (fieldKind === 'list') {
      if (Array.isArray(given)) given.push(value)
      else values[jsonName] = [value]
    } else if (given !== undefined) throw new HttpError('MALFORMED_REQUEST', `The parameter ${name} is given twice.`)
    else if (message && message.typeName !== FieldMaskSchema.typeName)
      values[jsonName] = parseJson(value, turn) as JsonValue
    else values[jsonName] = scalar === ScalarType.BOOL && /^(true|false)$/.test(value) ? value === 'true' : value
  })
  return values
}

function readParameters(
  body: Body,
  known: ReadonlyMap<string, unknown>,
  setParameter: (name: string, value: string) => void,
): void {
  if ('form' in body) {
    eachPair(body.form, setParameter)
    return
  }
  if (body.json === null) return
  if (!isObject(body.json)) throw new HttpError('MALFORMED_REQUEST', 'The body must be a JSON object.')
  for (const [name, value] of Object.entries(body.json)) {
    if (!known.has(name) || value === null) continue
    if (typeof value === 'string' || typeof value === 'boolean') setParameter(name, String(value))
    else throw new HttpError('MALFORMED_REQUEST', 'The parameters in the body must be strings.')
  }
}

/**
 * Returns the list in a body: the body itself, or its field of this name, beside which `readRest` finds parameters. In a form
 * the field is JSON.
 */
function readList(body: Body, name: string, turn: Turn, readRest: (rest: Body) => void): JsonValue | undefined {
  if ('form' in body) {
    const [values, others]: string[][] = [[], []]
    for (const pair of pairsOf(body.form)) {
      if (decodeForm(pair.split('=', 1)[0]!) === name) values!.push(decodeForm(pair.slice(pair.indexOf('=') + 1)))
      else others!.push(pair)
    }
    readRest({ form: others!.join('&') })
    if (values!.length === 0) throw lacksList(name)
    if (values!.length > 1) throw new HttpError('MALFORMED_REQUEST', `The parameter ${name} is given twice.`)
    try {
      return values![0] ? (parseJson(values![0], turn) as JsonValue) : undefined
    } catch {
      throw new HttpError('MALFORMED_REQUEST', `In a form, ${name} must be a list as JSON.`)
    }
  }
  const json = body.json as JsonValue
  if (!isObject(json)) return json
  if (!Object.hasOwn(json, name)) throw lacksList(name)
  const { [name]: items, ...rest } = json
  readRest({ json: rest })
  return items
}

function lacksList(name: string): HttpError {
  return new HttpError('MALFORMED_REQUEST', `Send a list, or an object or a form with the field ${name}.`)
}

function readBodyOf(
  input: DescMessage,
  { field, beside, required }: NonNullable<Route['body']>,
  body: Body | undefined,
  malformed: Malformed,
  turn: Turn,
): Message {
  if (!body) {
    if (required) throw new HttpError('MALFORMED_REQUEST', 'Send a JSON body.')
    return create(input)
  }
  const fields = [...(field === '*' ? [] : fieldOf(input, field).message!.fields), ...input.fields]
  const json = 'form' in body ? readForm(body.form, fields, turn) : (body.json as JsonValue)
  if (field === '*') return readObject(input, json, malformed)
  if (json === null) return create(input)
  const { message: schema, localName } = fieldOf(input, field)
  const message = Object.assign(create(input), { [localName]: readObject(schema!, json, malformed) })
  const value = beside && (json as JsonObject)[beside]
  if (value !== undefined && value !== null) readField(message, fieldOf(input, beside!), value, malformed, beside!)
  return message
}

/**
 * Reads a JSON object as a message. Unknown fields are ignored. Fields of a wrong type are absent from the message, and added
 * to `malformed` with the expected type.
 *
 * @throws HttpError MALFORMED_REQUEST if it is no object
 */
export function readObject(schema: DescMessage, json: JsonValue, malformed: Malformed, path = ''): Message {
  if (!isObject(json)) throw new HttpError('MALFORMED_REQUEST', 'The body must be a JSON object.')
  try {
    if (!schema.fields.some(field => faultOf(field, json[field.jsonName] ?? json[field.name])))
      return fromJson(schema, json, { ignoreUnknownFields: true })
  } catch {}
  // Field by field: the failed attempt read only some of them.
  const message = create(schema)
  for (const [name, value] of Object.entries(json)) {
    if (malformed.size >= maxWrongFields) break
    const field = schema.fields.find(field => field.jsonName === name || field.name === name)
    if (field) readField(message, field, value as JsonValue, malformed, path + field.jsonName)
  }
  return message
}

/** The fault of a list that is too long, before its items are read. */
function faultOf(field: DescField, value: JsonValue | undefined): string | undefined {
  return field.fieldKind === 'list' && Array.isArray(value) ? faultOfList(field, value.length) : undefined
}

function readField(message: Message, field: DescField, value: JsonValue, malformed: Malformed, path: string) {
  const { parent, jsonName, localName, fieldKind } = field
  const set = (value: unknown) => Object.assign(message, { [localName]: value })
  const readItem = (item: JsonValue, at: string) => {
    if (isObject(item)) return readObject(field.message!, item, malformed, `${at}.`)
    malformed.set(at, 'Must be an object with the documented fields.')
    return create(field.message!)
  }
  const fault = faultOf(field, value)
  if (fault) return void malformed.set(path, fault)
  if (fieldKind === 'message' && !field.oneof && field.message.file.name.startsWith('auth/') && isObject(value))
    set(readItem(value, path))
  else if (fieldKind === 'list' && field.message && Array.isArray(value)) {
    const items: Message[] = []
    for (const [index, item] of value.entries())
      if (malformed.size < maxWrongFields) items.push(readItem(item, `${path}[${index}]`))
    set(items)
  } else
    try {
      mergeFromJson(parent, message, { [jsonName]: value })
    } catch {
      set(fieldKind === 'list' ? [] : undefined)
      malformed.set(path, `Must be ${kindOf(field)}.`)
    }
}

function kindOf(field: DescField): string {
  if (field.fieldKind === 'list') return field.message ? 'a list of objects' : 'a list of strings'
  if (field.message && field.message.typeName !== FieldMaskSchema.typeName)
    return 'an object with the documented fields'
  if (field.scalar === ScalarType.INT32) return 'an integer'
  return field.scalar === ScalarType.BOOL ? 'true or false' : 'a string'
}

/** The pairs of a query or a form. */
function pairsOf(text: string): string[] {
  const pairs = text.split('&', maxValues + 1)
  if (pairs.length <= maxValues) return pairs
  throw new HttpError('MALFORMED_REQUEST', `There are more than ${maxValues} parameters.`)
}

function eachPair(text: string, setParameter: (name: string, value: string) => void): void {
  for (const pair of pairsOf(text)) {
    const equals = pair.indexOf('=')
    if (equals < 0) setParameter(decodeForm(pair), '')
    else setParameter(decodeForm(pair.slice(0, equals)), decodeForm(pair.slice(equals + 1)))
  }
}

function decodeForm(text: string): string {
  return decode(text.includes('+') ? text.replaceAll('+', ' ') : text)
}

function decode(text: string): string {
  if (!text.includes('%')) return text
  try {
    return decodeURIComponent(text)
  } catch {
    throw new HttpError('MALFORMED_REQUEST', 'The URL or the form has an invalid percent-encoding.')
  }
}

/** Creates the writer of a route for a revision, with everything that doesn't depend on the request. */
export function createWrite(
  route: Route,
  { output }: DescMethodUnary,
  revision: Revision,
  compatibility?: Compatibility,
): Write {
  const { result, text: fixed, cache = 'no-store', mediaType } = route
  if (fixed !== undefined) return () => textAnswer(fixed)
  const empty = { status: 200, headers: { 'cache-control': cache }, body: '' }
  if (result === undefined) return () => empty

  const json = { 'content-type': mediaType ?? 'application/json', 'cache-control': cache }
  const write = (value: unknown) => ({ status: 200, headers: json, body: JSON.stringify(value) })
  const toJsonObject = (message: Message) => toJson(output, message, { alwaysEmitImplicit: true }) as JsonObject
  if (result === '*') return message => write(hideFields(toJsonObject(message), revision))

  const field = fieldOf(output, result)
  const resultOf = (message: Message) => (message as unknown as Record<string, unknown>)[field.localName]
  if (field.fieldKind === 'scalar' && field.scalar === ScalarType.STRING) {
    const text = { 'content-type': mediaType ?? 'text/plain; charset=utf-8', 'cache-control': cache }
    return (message, accept) => {
      const value = resultOf(message) as string
      return wantsJson(accept) && !mediaType ? write(value) : { status: 200, headers: text, body: value }
    }
  }
  if (field.fieldKind === 'scalar') return message => write(resultOf(message))
  return message => {
    const value = toJsonObject(message)[field.jsonName] as JsonObject
    if (isObject(value?.partnerOrganization)) removeHiddenFields(value.partnerOrganization, revision)
    if (compatibility && field.message === UserSchema) addRoles(value)
    return write(value)
  }
}

/** Removes the fields that a revision doesn't have from all organizations in a value. */
export function hideFields(value: JsonValue, revision: Revision): JsonValue {
  if (Array.isArray(value)) for (const each of value) hideFields(each, revision)
  else if (isObject(value)) {
    for (const [name, each] of Object.entries(value)) {
      if (name === 'partnerOrganization' && isObject(each)) removeHiddenFields(each, revision)
      else hideFields(each, revision)
    }
  }
  return value
}

/** Removes the fields that a revision doesn't have from one organization, as JSON: `delete` would slow down its encoding. */
function removeHiddenFields(organization: Record<string, unknown>, revision: Revision): void {
  for (const [name, only] of Object.entries(organizationFields)) {
    if (only !== revision && name in organization) organization[name] = undefined
  }
}

/** Whether the client accepts JSON and no text. */
function wantsJson(accept: string | undefined): boolean {
  if (accept === undefined || accept === '*/*') return false
  const types = accept
    .toLowerCase()
    .split(',')
    .filter(range => !/;\s*q=0(\.0*)?\s*(;|$)/.test(range))
    .map(range => range.split(';', 1)[0]?.trim())
  return types.includes('application/json') && !types.some(type => type === '*/*' || type?.startsWith('text/'))
}

function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function fieldOf(schema: DescMessage, jsonName: string): DescField {
  const field = schema.fields.find(field => field.jsonName === jsonName)
  if (!field) throw new Error(`${schema.typeName} has no field ${jsonName}`)
  return field
}
