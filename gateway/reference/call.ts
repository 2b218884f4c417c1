// Requests of operations, and the commands of curl that send them: for the examples in a page, and for what its forms hold.

/** What the request of an operation is made from. */
interface Parts {
  readonly method: string
  /** URL before the path. */
  readonly base: string
  /** Path, perhaps with a variable in braces. */
  readonly path: string
  /** Parameters with their values. */
  readonly values: readonly (readonly [name: string, value: string])[]
  /** Whether the parameters are sent in a form; otherwise in the query. */
  readonly inForm: boolean
  readonly token?: string | undefined
  readonly json?: string | undefined
}

/** A request. */
export interface Call {
  readonly method: string
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  readonly form?: readonly (readonly [name: string, value: string])[]
  readonly json?: string
}

/** The request of an operation. */
export function callOf({ method, base, path, values, inForm, token, json }: Parts): Call {
  const filled = path.replace(/\{(\w+)\}/, (_, name) =>
    encodeURIComponent(values.find(([each]) => each === name)?.[1] ?? ''),
  )
  const others = values.filter(([name]) => !path.includes(`{${name}}`))
  const query = inForm || others.length === 0 ? '' : `?${new URLSearchParams(others.map(pair => [...pair]))}`
  return {
    method,
    url: base + filled + query,
    headers: {
      ...(token && { authorization: `Bearer ${token}` }),
      ...(json !== undefined && { 'content-type': 'application/json' }),
    },
    ...(inForm && { form: others }),
    ...(json !== undefined && { json }),
  }
}

const quote = (text: string) => `'${text.replaceAll("'", "'\\''")}'`

/** The command that sends a request. Headers are in double quotes, so that the shell replaces `$TOKEN` and `$KEY`. */
export function toCurl({ method, url, headers, form = [], json }: Call): string {
  const usual = json !== undefined || form.length > 0 ? 'POST' : 'GET'
  return [
    `curl -sS ${method === usual ? '' : `-X ${method} `}${quote(url)}`,
    ...Object.entries(headers).map(([name, value]) => `-H "${name}: ${value}"`),
    ...form.map(([name, value]) => `--data-urlencode ${quote(`${name}=${value}`)}`),
    ...(json === undefined ? [] : [`-d ${quote(json)}`]),
  ].join(' \\\n  ')
}
