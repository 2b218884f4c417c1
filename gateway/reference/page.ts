/**
 * This folder owns the pages that the gateway serves: the reference of a revision, made from an introduction
 * (`introduction.en.md`, which the OpenAPI document has too, or `introduction.pt-BR.md`) and its OpenAPI document, and the start
 * page. The build makes them (deploy/build/pages.mjs). Without script the reference can be read; `script.ts` adds calls.
 */

import { type Html, html } from '../html.js'
import { definitions, type Revision, revisions } from '../operations.js'
import { callOf, toCurl } from './call.js'
import { inline, markdown, paragraphs } from './markup.js'
import { type Locale, localeNames, locales, type Texts, texts, translated } from './texts.js'

/** A JSON Schema, as far as the pages show it. */
interface Schema {
  readonly $ref?: string
  readonly type?: string | readonly string[]
  readonly format?: string
  readonly description?: string
  readonly enum?: readonly string[]
  readonly const?: string
  readonly items?: Schema
  readonly oneOf?: readonly Schema[]
  readonly properties?: Readonly<Record<string, Schema>>
  readonly required?: readonly string[]
}

interface Parameter {
  readonly name: string
  readonly in: 'path' | 'query'
  readonly description?: string
  readonly schema: Schema
  readonly required?: boolean
  readonly example?: unknown
}

interface Media {
  readonly schema: Schema
  readonly example?: unknown
  readonly examples?: Readonly<Record<string, { readonly value: unknown }>>
}

interface Response {
  readonly $ref?: string
  readonly description?: string
  readonly content?: Readonly<Record<string, Media>>
}

interface Operation {
  readonly operationId: string
  readonly tags: readonly string[]
  /** The first sentence of the description, without its period. */
  readonly summary: string
  readonly description: string
  /** Present if the operation exists at `/` alone. */
  readonly servers?: readonly unknown[]
  readonly security: readonly Readonly<Record<string, readonly string[]>>[]
  readonly parameters?: readonly Parameter[]
  readonly requestBody?: { readonly description?: string; readonly content: Readonly<Record<string, Media>> }
  readonly responses: Readonly<Record<string, Response>>
}

interface Reason {
  readonly status: number
  /** Code in gRPC; absent if only the gateway has the reason. */
  readonly code?: string
  readonly meaning: string
  readonly remedy: string
}

/** An OpenAPI document of this project, as far as the pages show it. */
interface OpenApi {
  readonly info: { readonly version: string }
  readonly tags: readonly { readonly name: string; readonly description: string }[]
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>
  readonly components: {
    readonly schemas: Readonly<Record<string, Schema>>
    readonly responses: Readonly<Record<string, Response>>
  }
  readonly 'x-reasons': Readonly<Record<string, Reason>>
}

/** What each part of a page needs. */
interface Context {
  /** The relative URL of `/`, so that links work below the path prefix of a proxy. */
  readonly root: string
  readonly document: OpenApi
  readonly locale: Locale
  readonly text: Texts
}

/** The URL of the reference of a revision. */
function referencePath(root: string, revision: Revision, locale: Locale): string {
  return `${root}docs/${revision}/${locale}`
}

/**
 * The reference of a revision in a language, whose introduction is in Markdown. `root` is the URL of `/` relative to that of the
 * page: `./` or `../../`.
 */
export function renderReference(document: OpenApi, locale: Locale, introduction: string, root: string): string {
  const text = texts[locale]
  const context = { root, document, locale, text }
  const revision = document.info.version as Revision
  const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method: method.toUpperCase(), operation })),
  )
  const groups = document.tags.map(({ name, description }) => ({
    name,
    description,
    operations: operations.filter(({ operation }) => operation.tags.includes(name)),
  }))
  const schemas = Object.entries(document.components.schemas).filter(([, { properties }]) => properties)

  const script = html`<script type="module" src="${root}docs/reference.js"></script>`
  return frame(context, `${text.title} ${revision}`, script, [
    html`<header>
<h1>${text.title}</h1>
<p><span>${text.revision}${links(revisions, revision, each => [referencePath(root, each, locale), each])}</span>
<span>${links(locales, locale, each => [referencePath(root, revision, each), localeNames[each], each])}</span>
<a href="${root}openapi/${revision}.json">${text.openapi}</a></p>
</header>`,
    html`<nav aria-label="${text.contents}"><details open><summary>${text.contents}</summary><p><a href="#introduction">${text.introduction}</a></p>${groups.map(
      ({ name, operations }) =>
        html`<p>${text.tags[name]}</p><ul>${operations.map(
          ({ method, path, operation }) =>
            html`<li><a href="#${operation.operationId}"><span class="method">${method}</span> <span>${breakable(path)}</span></a></li>`,
        )}</ul>`,
    )}<p><a href="#reasons">${text.reasons}</a></p><p><a href="#records">${text.records}</a></p></details></nav>`,
    html`<main id="main" tabindex="-1">
<section id="introduction">${markdown(introduction, reasonLink(context))}</section>
<section id="session" hidden data-script>
<h2>${text.signIn}</h2>
<p>${text.signInAbout}</p>
<form id="sign-in" method="post">
<label>${text.username} <input name="username" autocomplete="username" required></label>
<label>${text.password} <input name="password" type="password" autocomplete="current-password" required></label>
<button>${text.signIn}</button>
<output></output>
</form>
<form method="dialog">
<label>${text.credential} <input id="credential" type="password" autocomplete="off"></label>
</form>
</section>
${groups.map(
  ({ name, description, operations }) => html`<section id="tag-${name}">
<h2>${text.tags[name]}</h2>
<p>${inThe(locale, description, translated.groups[name])}</p>
${operations.map(each => article(each, context))}</section>
`,
)}
<section id="reasons"><h2>${text.reasons}</h2><p>${text.reasonsAbout}</p><dl>${Object.entries(
      document['x-reasons'],
    ).map(([name, reason]) => reasonItem(name, reason, context))}</dl></section>
<section id="records"><h2>${text.records}</h2>${schemas.map(
      ([name, { description, properties, required }]) => html`<section id="record-${name}"><h3><code>${name}</code></h3>
${inEnglish(`record-${name}`, paragraphs(description), context)}
<dl>${Object.entries(properties ?? {}).map(([field, schema]) => fieldItem(field, schema, required, context))}</dl></section>
`,
    )}</section>
</main>`,
  ])
}

/** The start page in a language. */
export function renderStart(locale: Locale): string {
  const text = texts[locale]
  const { start } = text
  const root = './'
  const item = (title: string, paths: readonly (readonly [path: string, label: string])[], about: string) =>
    html`<dt>${title}</dt><dd>${paths.map(([path, label]) => html`<a href="${path}">${label}</a> `)}<br>${about}</dd>`
  const same = (path: string) => [`.${path}`, path] as const
  return frame({ root, locale, text }, text.title, undefined, [
    html`<main id="main" tabindex="-1">
<h1>${text.title}</h1>
<p>${start.about}</p>
<dl>
${item(
  start.reference,
  revisions.flatMap(revision =>
    locales.map(each => [referencePath(root, revision, each), `${revision} ${localeNames[each]}`] as const),
  ),
  start.referenceAbout,
)}
${item(
  'OpenAPI',
  revisions.map(revision => same(`/openapi/${revision}.json`)),
  start.openapi,
)}
${item(start.proto, definitions.map(same), start.protoAbout)}
${item(start.keys, [same('/.well-known/jwks.json')], start.keysAbout)}
${item(start.metadata, [same('/.well-known/oauth-authorization-server')], start.metadataAbout)}
${item(start.health, [same('/healthz'), same('/readyz')], start.healthAbout)}
</dl>
</main>`,
  ])
}

/** A page. Its policy forbids script and style within it (pages.ts). */
function frame(
  { root, locale, text }: Omit<Context, 'document'>,
  title: string,
  script: Html | undefined,
  parts: readonly Html[],
): string {
  return html`<!doctype html>
<html lang="${locale}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="${root}docs/reference.css">
${script}
</head>
<body data-root="${root}" data-copied="${text.copied}" data-selected="${text.selected}" data-signed-in="${text.signedIn}" data-unreachable="${text.unreachable}">
<a class="skip" href="#main">${text.skip}</a>
${parts}
</body>
</html>
`.text
}

function links<T>(
  all: readonly T[],
  current: T,
  link: (each: T) => readonly [href: string, label: string, lang?: string],
) {
  return all.map(each => {
    const [href, label, lang] = link(each)
    const attributes = lang ? html` lang="${lang}" hreflang="${lang}"` : ''
    return each === current
      ? html` <a href="${href}" aria-current="page"${attributes}>${label}</a>`
      : html` <a href="${href}"${attributes}>${label}</a>`
  })
}

/** A path that can break before each slash. */
function breakable(path: string): Html[] {
  return path.split('/').map((part, at) => (at === 0 ? html`${part}` : html`<wbr>/${part}`))
}

function article(
  { path, method, operation }: { path: string; method: string; operation: Operation },
  context: Context,
) {
  const { text, locale } = context
  const { operationId, summary, description, parameters = [], requestBody, responses, security } = operation
  const { 'application/json': json, 'application/x-www-form-urlencoded': anyForm } = requestBody?.content ?? {}
  // A list that also may be a field is shown as the body.
  const [list] = json?.schema.oneOf ?? []
  const form = list ? undefined : anyForm
  const isRequired = ({ name, required }: Parameter) => required || form?.schema.required?.includes(name)
  const needsToken = security.length > 0 && security.every(each => Object.keys(each).length > 0)
  const jsonText = json && !form ? JSON.stringify(json.example, undefined, 2) : undefined
  const own = parameters.filter(({ name, in: place }) => place === 'path' || !parameters.some(isPath(name)))
  const details = description.slice(`${summary}.`.length).trim()
  const base = operation.servers ? '' : `/${context.document.info.version}`
  const example = callOf({
    method,
    base: `http://127.0.0.1:8080${base}`,
    path,
    values: own.flatMap(({ name, example }) => (example === undefined ? [] : [[name, String(example)]])),
    inForm: form !== undefined,
    token: needsToken ? (security.some(each => 'token' in each) ? '$TOKEN' : '$KEY') : undefined,
    json: jsonText,
  })
  return html`<article id="${operationId}">
<h3><span class="method">${method}</span> <code>${breakable(path)}</code>${needsToken && html` <small>${text.token}</small>`}</h3>
<p>${inline(inThe(locale, `${summary}.`, translated.summaries[operationId]), reasonLink(context))}</p>
${details && inEnglish(operationId, paragraphs(details, reasonLink(context)), context)}
${parameters.length > 0 && html`<h4>${text.parameters}</h4><dl>${parameters.map(parameter => parameterItem(parameter, { isRequired: isRequired(parameter), inForm: form !== undefined }, context))}</dl>`}
${json && !form && html`<h4>${text.body}</h4><p><code>application/json</code>: ${typeOf(list ?? json.schema, context)}</p>${list && locale === 'en' && html`<p>${requestBody!.description}</p>`}`}
<h4>${text.answers}</h4><dl class="answers">${Object.entries(responses).map(([status, response]) => answerItem(status, response, context))}</dl>
<pre class="curl">${toCurl(example)}</pre>
<form class="try" method="post" hidden data-script data-method="${method}" data-base="${base}" data-path="${path}" data-token="${String(needsToken)}" data-form="${String(form !== undefined)}">
<button type="button" class="copy">${text.copy}</button> <span role="status"></span>
<details><summary>${text.try}</summary>
${own.map(
  parameter =>
    html`<label>${parameter.name}${isRequired(parameter) && html` <small>${text.required}</small>`} <input name="${parameter.name}" autocomplete="off"${/password/i.test(parameter.name) && html` type="password"`}></label>`,
)}${jsonText !== undefined && html`<label>${text.body} <textarea rows="${jsonText.split('\n').length}" spellcheck="false">${jsonText}</textarea></label>`}
<button>${text.send}</button>
<output></output>
</details>
</form>
</article>
`
}

const isPath = (name: string) => (parameter: Parameter) => parameter.name === name && parameter.in === 'path'

/** A description of a field whose presence is shown apart. */
const withoutRequired = (description = '') => description.replace(/^Required\.\s*/, '')

/** Makes the names of reasons in a text links. Descriptions have no gRPC codes, some of which have the names of reasons. */
function reasonLink({ document }: Context): (text: string) => Html {
  return text =>
    html`${text
      .split(/\b([A-Z]+(?:_[A-Z]+)*)\b/)
      .map(part => (document['x-reasons'][part] ? html`<a href="#reason-${part}">${part}</a>` : part))}`
}

function parameterItem(
  { name, in: place, description, schema }: Parameter,
  { isRequired, inForm }: { isRequired: boolean | undefined; inForm: boolean },
  context: Context,
) {
  const { text } = context
  const where = place === 'path' ? text.inPath : inForm ? text.inBody : text.inQuery
  return html`<dt><code>${name}</code> ${typeOf(schema, context)} <small>${where}${isRequired && `, ${text.required}`}</small></dt>${described(description, context)}`
}

function fieldItem(name: string, schema: Schema, required: readonly string[] | undefined, context: Context) {
  return html`<dt><code>${name}</code> ${typeOf(schema, context)}${required?.includes(name) && html` <small>${context.text.required}</small>`}</dt>${described(schema.description, context)}`
}

/** What the documents say of a field, in English alone. */
function described(description: string | undefined, { locale }: Context): Html {
  return html`<dd>${locale === 'en' && inline(withoutRequired(description))}</dd>`
}

/** Details that exist in English alone: a page in another language links to them, so that each is in one language. */
function inEnglish(id: string, details: Html | readonly Html[], { root, document, locale, text }: Context): Html {
  const there = `${referencePath(root, document.info.version as Revision, 'en')}#${id}`
  return locale === 'en' ? html`${details}` : html`<p><a href="${there}" hreflang="en">${text.details}</a></p>`
}

function answerItem(status: string, given: Response, context: Context) {
  const { document, text } = context
  const { content = {}, description } = given.$ref ? document.components.responses[nameIn(given.$ref)]! : given
  const problem = content['application/problem+json']
  if (problem) {
    const reasons = Object.keys(problem.examples ?? {})
    return html`<dt>${status}</dt><dd>${reasons.map(name => html`<a href="#reason-${name}">${name}</a> `)}</dd>`
  }
  const types = Object.entries(content).map(
    ([type, { schema }]) => html`<code>${type}</code>: ${typeOf(schema, context)} `,
  )
  const example = Object.values(content)[0]?.example
  const shown = typeof example === 'string' ? example : JSON.stringify(example, undefined, 2)
  return html`<dt>${status}</dt><dd>${types.length > 0 ? types : text.noBody} ${context.locale === 'en' && html`<span>${inline(description)}</span>`}${shown !== undefined && html`<pre>${shown}</pre>`}</dd>`
}

function reasonItem(name: string, { status, code, meaning, remedy }: Reason, { locale, text }: Context) {
  const said = inThe(locale, { meaning, remedy }, translated.reasons[name])
  return html`<dt id="reason-${name}"><code>${name}</code> <small>HTTP ${status}${code && `, gRPC ${code}`}</small></dt><dd>${inline(said.meaning)}<br>${text.remedy} ${inline(said.remedy)}</dd>`
}

/** What an OpenAPI document says in English, in the language of a page. */
function inThe<T>(locale: Locale, english: T, portuguese: T | undefined): T {
  if (portuguese === undefined)
    throw new Error(`No Portuguese text, to be added to gateway/reference/portuguese.json: ${JSON.stringify(english)}`)
  return locale === 'en' ? english : portuguese
}

const nameIn = (reference: string) => reference.slice(reference.lastIndexOf('/') + 1)

/** The type of a value, with links to records. */
function typeOf({ $ref, type, format, items, enum: values, const: only }: Schema, context: Context): Html {
  if ($ref) {
    const name = nameIn($ref)
    return name === 'Reason' ? html`<a href="#reasons">Reason</a>` : html`<a href="#record-${name}">${name}</a>`
  }
  if (items) return html`[${typeOf(items, context)}]`
  const kind = [type ?? 'object'].flat().join(' | ')
  const one = only ?? values?.join(' | ')
  return html`<span class="type">${kind}${format && ` (${format})`}${one && `: ${one}`}</span>`
}
