/** Compares answers over HTTP with the OpenAPI documents: status, media type, headers and body. */
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import { routes } from '../../gateway/operations.js'
import type { Revision } from '../../server/policy/policy.js'

// biome-ignore lint/suspicious/noExplicitAny: a JSON document
type Json = any

/** A request and its response. */
interface Exchange {
  readonly method: string
  /** Path as sent, perhaps with a query. */
  readonly path: string
  readonly response: Response
  readonly text: string
}

const { resolve } = createRequire(import.meta.url)

const formats: Record<string, RegExp | ((value: number) => boolean)> = {
  uuid: /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/,
  uri: /^[a-z]+:\S+$/,
  'date-time': /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/,
}

/** The document of a revision, and a validator of its schemas. Responses may have only the fields in it. */
function read(revision: string) {
  const document: Json = JSON.parse(readFileSync(resolve(`#openapi/${revision}.json`), 'utf8'))
  const strict = structuredClone(document)
  for (const schema of Object.values<Json>(strict.components.schemas))
    if (schema.properties) schema.additionalProperties = false
  const ajv = new Ajv2020({
    strict: false,
    allErrors: true,
    formats: { ...formats, int32: true, int64: true },
    meta: false,
    validateSchema: false,
  })
  ajv.addSchema(strict, 'document')
  const validators = new Map<string, ValidateFunction>()
  /** Errors of a value by the schema at a JSON pointer. */
  const errorsOf = (pointer: string, value: unknown): string | undefined => {
    let validate = validators.get(pointer)
    if (!validate) {
      validate = ajv.compile({ $ref: `document#${pointer}` })
      validators.set(pointer, validate)
    }
    return validate(value) ? undefined : ajv.errorsText(validate.errors)
  }
  return { document, errorsOf }
}

/** Paths of files of the build. */
const files = new Set(routes.filter(({ file }) => file !== undefined).map(({ path }) => path))
const documents = new Map<string, ReturnType<typeof read>>()

/** Escapes a part of a JSON pointer in a URI (RFC 6901). */
const escapePart = (part: string | number) =>
  encodeURIComponent(String(part).replaceAll('~', '~0').replaceAll('/', '~1'))

/** Throws if an answer differs from the document of its revision. */
export function checkAnswer(exchange: Exchange, defaultRevision: Revision): void {
  const difference = differenceOf(exchange, defaultRevision)
  if (difference === undefined) return
  const { method, path, response, text } = exchange
  throw new Error(
    `${method} ${path} isn’t answered as documented: ${difference}: ${response.status} ${text.slice(0, 500)}`,
  )
}

/** How an answer differs from the document; undefined if it does not. RPCs and the files of the build are in no document. */
function differenceOf({ method, path, response: { status, headers }, text }: Exchange, defaultRevision: Revision) {
  const { pathname } = new URL(`http://localhost${path}`)
  const [, base = '', revision = defaultRevision, rest = ''] = /^(\/(1\.0\.[02])(?=\/))?(.*)$/.exec(pathname)!
  if (/^\/\w+\.[\w.]+\/\w+$/.test(rest) || files.has(rest)) return undefined
  if (!documents.has(revision)) documents.set(revision, read(revision))
  const { document, errorsOf } = documents.get(revision)!

  if (!headers.get('x-request-id')) return 'X-Request-Id is missing'
  if (status === 204) return method === 'OPTIONS' && text === '' ? undefined : 'only OPTIONS is answered with 204'
  const found = operationOf(document, method, base, rest)
  const type = headers.get('content-type')?.split(';', 1)[0]
  if (!found) {
    if (status < 400) return `the document has no ${method} ${path}`
    if (type !== 'application/problem+json') return 'a refusal isn’t a problem document'
    return method === 'HEAD' ? undefined : errorsOf('/components/schemas/Problem', JSON.parse(text))
  }
  const [template, key] = found
  const declared = document.paths[template][key].responses[status]
  if (!declared) return `${key} ${template} has no status ${status}`
  const [pointer, response] = declared.$ref
    ? [declared.$ref.slice(1), document.components.responses[declared.$ref.split('/').at(-1)]]
    : [['/paths', escapePart(template), key, 'responses', status].join('/'), declared]
  for (const name of Object.keys(response.headers))
    if (name === 'WWW-Authenticate' && !headers.get(name)) return `${name} is missing`
  for (const name of ['retry-after', 'www-authenticate'])
    if (headers.get(name) && !Object.keys(response.headers).some(each => each.toLowerCase() === name))
      return `${name} isn’t documented`
  if (!response.content) return text === '' && type === undefined ? undefined : 'a body isn’t documented'
  if (!type || !response.content[type]) return `the media type ${type} isn’t documented`
  if (method === 'HEAD') return text === '' ? undefined : 'HEAD has a body'
  const body = /\bjson$/.test(type) ? JSON.parse(text) : text
  const { examples } = response.content[type]
  // A problem has the status of its answer, and one of the documented reasons.
  if (examples && !(body.status === status && body.reason in examples)) return 'the reason isn’t documented'
  return errorsOf(`${pointer}/content/${escapePart(type)}/schema`, body)
}

/** Path template and method of an operation that is served below a base path. */
function operationOf(
  document: Json,
  method: string,
  base: string,
  path: string,
): [template: string, key: string] | undefined {
  const key = method.replace('HEAD', 'GET').toLowerCase()
  // No username has the name of a path, which another revision may have.
  const user = /^\/users\/(?!sendadminkeybyemailpartner$)[^/]+$/
  const template = document.paths[path] ? path : path.replace(user, '/users/{username}')
  const operation = document.paths[template]?.[key]
  if (!operation || (base !== '' && operation.servers)) return undefined
  return [template, key]
}
