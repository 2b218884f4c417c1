// Requests as commands of curl, both in the text of the page and for what its forms hold.

/** A request. */
export interface Call {
  readonly method: string
  readonly url: string
  /** Value of the header `Authorization`, in double quotes: the shell replaces variables in it. */
  readonly authorization?: string
  readonly form?: readonly (readonly [name: string, value: string])[]
  readonly json?: string
}

const quote = (text: string) => `'${text.replaceAll("'", "'\\''")}'`

/** The command that sends a request. */
export function toCurl({ method, url, authorization, form, json }: Call): string {
  const hasBody = json !== undefined || (form !== undefined && form.length > 0)
  return [
    `curl -sS ${method === (hasBody ? 'POST' : 'GET') ? '' : `-X ${method} `}${quote(url)}`,
    ...(authorization ? [`-H "Authorization: ${authorization}"`] : []),
    ...(form ?? []).map(([name, value]) => `--data-urlencode ${quote(`${name}=${value}`)}`),
    ...(json === undefined ? [] : ["-H 'Content-Type: application/json'", `-d ${quote(json)}`]),
  ].join(' \\\n  ')
}
