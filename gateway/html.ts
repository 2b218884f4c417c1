// HTML from templates: every value is escaped, unless it is HTML itself.

/** A piece of HTML. */
export class Html {
  constructor(readonly text: string) {}
}

/** What a template can contain; undefined and false are left out. */
type Value = Html | string | number | undefined | false | readonly Value[]

const escapes: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
}

function write(value: Value): string {
  if (value === undefined || value === false) return ''
  if (value instanceof Html) return value.text
  if (typeof value === 'object') return value.map(write).join('')
  return String(value).replace(/[&<>"']/g, character => escapes[character] ?? '')
}

/** Makes HTML from a template. Attributes must be quoted. */
export function html(parts: TemplateStringsArray, ...values: Value[]): Html {
  return new Html(parts.map((part, at) => part + write(values[at])).join(''))
}
