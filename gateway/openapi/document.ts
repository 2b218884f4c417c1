/**
 * The OpenAPI 3.1 document of a revision. It owns nothing that it says: paths, parameters and results are those of
 * `operations.ts`, callers, reasons and limits those of the access policy, texts the comments in proto/ and an introduction. The
 * build makes it (deploy/build/openapi.mjs).
 */

import { type DescField, type JsonValue, ScalarType } from '@bufbuild/protobuf'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { OpenId } from '../../proto/gen/auth/v1/openid_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import type { Policy, Revision } from '../../server/policy/policy.js'
import { errorOf, isChallenge } from '../oauth.js'
import { policyOf, type Route, refusalsOf, routes } from '../operations.js'
import { hideFields, isSecret } from '../translate.js'
import { type Comments, firstSentence } from './comments.js'
import { forHttp } from './http-texts.js'
import { describeLimit } from './limits.js'
import {
  aboutReason,
  describeFieldReasons,
  describeReasons,
  exampleOfProblem,
  problemSchema,
  reasonSchema,
} from './refusals.js'
import { withoutLastParagraph } from './rpc-comments.js'
import { createSchemas, type Schema, type Schemas } from './schemas.js'

/** Requests of operations and their answers, by RPC, and problem documents that say more than their reason (examples.json). */
interface Examples {
  readonly operations: Readonly<
    Record<
      string,
      { readonly parameters?: Readonly<Record<string, string>>; readonly body?: unknown; readonly result?: JsonValue }
    >
  >
  readonly problems: Readonly<Record<string, { readonly status: number }>>
}

/** What a document is made from. */
interface Sources {
  readonly comments: Comments
  /** The introduction for developers, in Markdown; `{revision}` stands for the revision. */
  readonly introduction: string
  readonly examples: Examples
  /** Version of the program. */
  readonly version: string
}

/** What the document of a revision needs for its operations. */
interface Context {
  readonly revision: Revision
  readonly comments: Comments
  readonly examples: Examples
  readonly schemas: Schemas
  /** Responses that operations share, by name. */
  readonly responses: Record<string, Schema>
}

/** Creates the document of a revision: a JSON value. */
export function createDocument(revision: Revision, { introduction, examples, version, ...sources }: Sources): Schema {
  const comments = forHttp(sources.comments)
  const schemas = createSchemas(revision, comments)
  const responses: Record<string, Schema> = {}
  const context = { revision, comments, examples, schemas, responses }
  const paths: Record<string, Record<string, Schema>> = {}
  for (const route of routes) {
    const { revisions, path, method, file } = route
    if (file || !(revisions === undefined || revisions.length === 0 || revisions.includes(revision))) continue
    paths[path] = { ...paths[path], [method.toLowerCase()]: operationOf(route, context) }
  }
  const tags = [Users, ForgotPasswords, OpenId].map(({ name, typeName }) => ({
    name: name.toLowerCase(),
    description: firstSentence(comments.get(typeName) ?? ''),
  }))
  return {
    openapi: '3.1.0',
    info: {
      title: 'Authentication and user registry',
      version: revision,
      summary: `HTTP interface, revision ${revision}`,
      description: `${introduction.trim().replaceAll('{revision}', revision)}\n\nMade by version ${version} of the service.`,
      license: { name: 'Apache 2.0', identifier: 'Apache-2.0' },
    },
    // Relative to the URL of the document, which may be below the path prefix of a proxy.
    servers: [
      { url: `../${revision}`, description: `Revision ${revision}` },
      { url: '..', description: `The default revision, if the setting AUTH_DEFAULT_REVISION is ${revision}` },
    ],
    tags: [...tags, { name: 'gateway', description: 'Probes, which the gateway answers.' }],
    paths,
    components: {
      securitySchemes,
      headers,
      schemas: {
        ...schemas.components,
        Problem: problemSchema,
        Reason: reasonSchema,
        FieldReason: describeFieldReasons(comments),
        OAuthError: oauthErrorSchema,
      },
      responses,
    },
    'x-reasons': describeReasons(comments),
  }
}

const oauthErrorSchema = {
  type: 'object',
  description: 'An error of OAuth 2.0 (RFC 6749, 5.2).',
  required: ['error', 'error_description', 'reason'],
  properties: {
    error: { type: 'string', description: 'The code of the error.' },
    error_description: { type: 'string', description: 'Its cause, for developers.' },
    reason: { $ref: '#/components/schemas/Reason' },
  },
}

const securitySchemes = {
  token: {
    type: 'http',
    scheme: 'bearer',
    bearerFormat: 'JWT',
    description: 'The token of a user, from sign-up, a login or refresh.',
  },
  serviceKey: {
    type: 'http',
    scheme: 'bearer',
    bearerFormat: 'authsvc_…',
    description: 'The key of a service, with the scope that the operation names.',
  },
  clientSecret: {
    type: 'http',
    scheme: 'basic',
    description: 'The key of a service as client secret (RFC 6749, 2.3.1). The client id is ignored.',
  },
  oauthClient: {
    type: 'http',
    scheme: 'basic',
    description: 'The name of a service and one of its keys (RFC 6749, 2.3.1). The body may have both instead.',
  },
  accessToken: {
    type: 'http',
    scheme: 'bearer',
    description: 'An access token that a client got from `/oauth/token`.',
  },
}

const headers = {
  'X-Request-Id': { description: 'Id of the request, as the log has it.', schema: { type: 'string' } },
  'Retry-After': {
    description: 'Seconds after which a retry can succeed. Absent if no time is known.',
    schema: { type: 'integer', minimum: 1 },
  },
  'WWW-Authenticate': { description: 'The challenge (RFC 9110, 11.6.1).', schema: { type: 'string' } },
}

function operationOf(route: Route, context: Context): Schema {
  const { rpc, path, revisions, method, about: given } = route
  const { comments } = context
  const isRpc = rpc !== undefined && given === undefined
  const comment = isRpc ? withoutLastParagraph(comments.get(`${rpc.parent.typeName}.${rpc.name}`)) : given
  if (!comment) throw new Error(`${method} ${path} has no description.`)
  const policy = isRpc ? policyOf(rpc) : undefined
  const parameters = parametersOf(route, context)
  const body = bodyOf(route, context)
  return {
    operationId: isRpc ? rpc.localName : path.replace(/\W/g, ''),
    tags: [isRpc ? rpc.parent.name.toLowerCase() : 'gateway'],
    summary: firstSentence(comment).replace(/\.$/, ''),
    description: [comment, ...(policy ? remarksOf(policy, comment) : [])].join('\n\n'),
    ...(revisions?.length === 0 && { servers: [{ url: '..' }] }),
    security: policy ? securityOf(policy, route) : [],
    ...(parameters.length > 0 && { parameters }),
    ...(body && { requestBody: body }),
    responses: responsesOf(route, context),
    ...(policy && { 'x-rpc': `${rpc!.parent.typeName}.${rpc!.name}`, 'x-limits': policy.limits }),
  }
}

/** Callers, unless the comment names them, and limits of a policy, in Markdown. */
function remarksOf(policy: Policy, comment: string): string[] {
  const counted = policy.limits.map(describeLimit)
  const isNamed = /\b(Protected:|Only for services|Open to all callers)/.test(comment)
  return [
    ...(isNamed ? [] : [`Callers: ${callersOf(policy)}.`]),
    ...(counted.length > 0 ? [`Limits: ${counted.join('; ')}.`] : []),
    ...(policy.strict ? [`With AUTH_STRICT, every permitted caller is refused with ${policy.strict}.`] : []),
  ]
}

/** Who may call an RPC, in words. */
function callersOf(policy: Policy): string {
  switch (policy.caller) {
    case 'anyone':
      return 'everyone'
    case 'service':
      return `a service with the scope ${[policy.scope]
        .flat()
        .map(scope => `\`${scope}\``)
        .join(' or ')}`
    case 'administrator':
      return [
        'an active ROLE_ADMIN',
        ...(policy.scopes ?? []).map(scope => `a service with the scope \`${scope}\``),
      ].join('; ')
    case 'user':
    case 'user or service':
      return [
        policy.own === 'every role' ? 'the user itself' : '',
        policy.own === 'ROLE_INSTITUTION' ? 'a ROLE_INSTITUTION for itself' : '',
        policy.institution ? `an active ROLE_INSTITUTION for ${policy.institution}` : '',
        policy.administrator ? `an active ROLE_ADMIN for ${policy.administrator}` : '',
        'scope' in policy ? `a service with the scope \`${policy.scope}\` for any user` : '',
      ]
        .filter(Boolean)
        .join('; ')
  }
}

function securityOf(policy: Policy, { challenges, credentials }: Route): Schema[] {
  if (credentials) return credentials === 'client' ? [{ oauthClient: [] }, {}] : [{ accessToken: [] }]
  // The earlier token that a login may carry is in its description: generators would require it.
  if (policy.caller === 'anyone') return []
  const scopes = 'scope' in policy ? [policy.scope].flat() : []
  return [
    ...(policy.caller !== 'service' ? [{ token: [] }] : []),
    ...scopes.map(scope => ({ serviceKey: [scope] })),
    ...(challenges ? scopes.map(scope => ({ clientSecret: [scope] })) : []),
  ]
}

/** The field of a request that a parameter sets. */
function inputOf({ rpc, path }: Route, name: string): DescField {
  const field = rpc?.input.fields.find(({ jsonName }) => jsonName === name)
  if (!field) throw new Error(`${path} has no parameter ${name}.`)
  return field
}

/** Parameters of path and query. One that the body may have is required there. */
function parametersOf(route: Route, { schemas, examples }: Context): Schema[] {
  const variable = /\{(\w+)\}$/.exec(route.path)?.[1]
  return Object.entries(route.parameters ?? {}).flatMap(([name, presence]) => {
    const { description, ...schema } = schemas.ofField(inputOf(route, name), 'request')
    // They are recorded as texts of the query.
    const asValue = (text: unknown) => (text !== undefined && schema.type === 'integer' ? Number(text) : text)
    const example = exampleOf(examples, route, ({ parameters }) => asValue(parameters?.[name]))
    const common = { name, description, schema, ...example }
    const literally = `For clients that send the path as it is written here, with \`{${variable}}\`.`
    if (name === variable)
      return [
        { ...common, in: 'path', required: true },
        { ...common, in: 'query', description: literally },
      ]
    // Clients that are generated send a parameter of a POST in the body (bodyOf), not in URLs.
    const isRequired = presence === 'required' && route.method === 'GET'
    const strictly = isSecret(inputOf(route, name)) ? ' With AUTH_STRICT only in the body.' : ''
    return [{ ...common, description: `${description}${strictly}`, in: 'query', ...(isRequired && { required: true }) }]
  })
}

function bodyOf(route: Route, { schemas, examples }: Context): Schema | undefined {
  const { method, rpc, body, parameters } = route
  if (method === 'GET' || !rpc) return undefined
  const properties = Object.fromEntries(
    Object.keys(parameters ?? {}).map(name => [name, schemas.ofField(inputOf(route, name), 'request')]),
  )
  if (body) {
    const field = body.field === '*' ? undefined : inputOf(route, body.field)
    const schema = !field
      ? schemas.of(rpc.input, 'request')
      : body.beside
        ? schemas.ofBeside(rpc.input, field, inputOf(route, body.beside))
        : schemas.ofField(field, 'request')
    const example = exampleOf(examples, route, ({ body }) => body)
    if (field?.fieldKind !== 'list') {
      // An object in an object has no good form.
      const isFlat = (field?.message ?? rpc.input).fields.every(({ fieldKind }) => fieldKind !== 'message')
      const form = isFlat && { 'application/x-www-form-urlencoded': { schema } }
      return { required: body.required, content: { 'application/json': { schema, ...example }, ...form } }
    }
    const { description, ...list } = schema
    const withList = (value: Schema) => ({ type: 'object', properties: { ...properties, [body.field]: value } })
    const asJson = { type: 'string', contentMediaType: 'application/json', contentSchema: list }
    return {
      description: `${description} The list alone, or in an object or a form as \`${body.field}\`, beside the parameters of the query.`,
      required: body.required,
      content: {
        'application/json': { schema: { oneOf: [list, withList(list)] }, ...example },
        'application/x-www-form-urlencoded': { schema: withList(asJson) },
      },
    }
  }
  if (!parameters) return undefined
  const required = Object.keys(parameters).filter(name => parameters[name] === 'required')
  const content = {
    schema: { type: 'object', properties, ...(required.length > 0 && { required }) },
    ...exampleOf(examples, route, ({ parameters }) => parameters),
  }
  return {
    description: 'The parameters; the query may have them instead.',
    ...(required.length > 0 && { required: true }),
    content: { 'application/json': content, 'application/x-www-form-urlencoded': content },
  }
}

/** The errors of OAuth 2.0 with which an operation refuses, by status. */
function oauthRefusalsOf(route: Route): Schema {
  const errors: Record<number, Set<string>> = {}
  for (const [usual, reasons] of refusalsOf(route))
    for (const reason of reasons) {
      const { error, status } = errorOf(route.credentials!, reason, usual)
      errors[status] ??= new Set()
      if (error) errors[status].add(error)
    }
  const content = { 'application/json': { schema: { $ref: '#/components/schemas/OAuthError' } } }
  return Object.fromEntries(
    Object.entries(errors).map(([status, names]) => {
      const headers = headersOf(
        'X-Request-Id',
        ...(isChallenge(route.credentials!, Number(status)) ? (['WWW-Authenticate'] as const) : []),
      )
      return [status, { description: [...names].join(', '), headers, content }]
    }),
  )
}

function responsesOf(route: Route, context: Context): Schema {
  if (route.credentials) return { 200: resultOf(route, context), ...oauthRefusalsOf(route) }
  const refusals = [...refusalsOf(route)].map(([status, reasons]) => {
    const name = reasons.map(reason =>
      reason.toLowerCase().replace(/(^|_)(.)/g, (_, _mark, first) => first.toUpperCase()),
    )
    const hasChallenge = (route.challenges ?? false) && (status === 401 || status === 403)
    const key = `${name.join('')}${hasChallenge ? 'Challenge' : ''}`
    context.responses[key] ??= refusalOf(status, reasons, hasChallenge, context)
    return [status, { $ref: `#/components/responses/${key}` }]
  })
  return { 200: resultOf(route, context), ...Object.fromEntries(refusals) }
}

function resultOf(route: Route, context: Context): Schema {
  const { rpc, result, text } = route
  const description = text === undefined ? context.comments.get(rpc!.output.typeName) : 'It does.'
  const content = text === undefined && result === undefined ? undefined : contentOf(route, context)
  return { description, headers: headersOf('X-Request-Id'), ...(content && { content }) }
}

/** Schema and example of a result, by media type. */
function contentOf(route: Route, { schemas, examples, revision }: Context): Schema {
  const { rpc, result, text, mediaType = 'application/json', json } = route
  if (text !== undefined) return { 'text/plain': { schema: { type: 'string', const: text } } }
  const example = exampleOf(examples, route, ({ result }) => result && hideFields(structuredClone(result), revision))
  const { output } = rpc!
  if (result === '*') return { [mediaType]: { schema: schemas.of(output, 'answer'), ...example } }
  const field = output.fields.find(({ jsonName }) => jsonName === result)!
  if (route.mediaType)
    return { [mediaType]: { schema: json ? schemas.of(json, 'text') : { type: 'object' }, ...example } }
  const content = { schema: schemas.ofField(field, 'answer'), ...example }
  const isText = field.fieldKind === 'scalar' && field.scalar === ScalarType.STRING
  return { ...(isText && { 'text/plain': content }), 'application/json': content }
}

/** The example of a part of an operation, if there is one. */
function exampleOf(
  { operations }: Examples,
  { rpc }: Route,
  part: (operation: Examples['operations'][string]) => unknown,
): { example?: unknown } {
  const operation = operations[rpc?.localName ?? '']
  const example = operation && part(operation)
  return example === undefined ? {} : { example }
}

function refusalOf(
  status: number,
  reasons: readonly string[],
  hasChallenge: boolean,
  { comments, examples }: Context,
): Schema {
  // Generators of clients don't merge schemas: the examples are by reason.
  const schema = { $ref: '#/components/schemas/Problem' }
  const values = reasons.map(name => {
    const recorded = examples.problems[name]
    return [name, { value: recorded?.status === status ? recorded : exampleOfProblem(status, name, comments) }]
  })
  return {
    description: reasons.map(name => `\`${name}\`: ${aboutReason(name, comments)}`).join('\n\n'),
    headers: headersOf(
      'X-Request-Id',
      ...(status === 429 || status === 503 ? (['Retry-After'] as const) : []),
      ...(hasChallenge ? (['WWW-Authenticate'] as const) : []),
    ),
    content: { 'application/problem+json': { schema, examples: Object.fromEntries(values) } },
  }
}

function headersOf(...names: (keyof typeof headers)[]): Schema {
  return Object.fromEntries(names.map(name => [name, { $ref: `#/components/headers/${name}` }]))
}
