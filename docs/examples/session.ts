// A first session with the registry: sign-up, activation, log-in, a refusal, and log-out everywhere.
// ACTIVATION_KEY is the activation key of an organization.
const { AUTH_URL: url = 'http://127.0.0.1:8080', ACTIVATION_KEY: activationkey = '' } = process.env

/** A refusal. Programs decide by its reason. */
class Refusal extends Error {
  readonly status: number
  readonly reason: string
  constructor(status: number, problem: { reason: string; detail: string }) {
    super(problem.detail)
    this.status = status
    this.reason = problem.reason
  }
}

/** Sends a request. Parameters in a form (`URLSearchParams`) stay out of URLs, and so out of logs. */
async function call(method: string, path: string, { token, body }: { token?: string; body?: unknown } = {}) {
  const form = body instanceof URLSearchParams
  const response = await fetch(url + path, {
    method,
    headers: {
      ...(token && { authorization: `Bearer ${token}` }),
      ...(body !== undefined && !form && { 'content-type': 'application/json' }),
    },
    ...(body !== undefined && { body: form ? body : JSON.stringify(body) }),
  })
  // A problem document (RFC 9457).
  if (!response.ok) throw new Refusal(response.status, (await response.json()) as { reason: string; detail: string })
  return response
}

async function refusalOf(answer: Promise<Response>): Promise<string> {
  return answer.then(
    () => 'no refusal',
    error => (error instanceof Refusal ? `${error.status} ${error.reason}` : Promise.reject(error)),
  )
}

async function activeOf(token: string): Promise<number> {
  return ((await (await call('GET', '/users/me', { token })).json()) as { active: number }).active
}

// A new user each time.
const username = `maria-${Date.now()}`
const password = 'capivara no rio 7'
const form = (fields: Record<string, string>) => ({ body: new URLSearchParams(fields) })

// The answer to a sign-up is a token for the new user, who isn't active yet.
const signUp = {
  username,
  nickname: username,
  password,
  state: 'SP',
  city: 'São Paulo',
  termsofusage: true,
  roles: ['ROLE_INSTITUTION'],
}
let token = await (await call('POST', '/users/signup', { body: signUp })).text()
console.log(`signed up: active ${await activeOf(token)}`)

await call('POST', '/users/activate', { token, ...form({ username, activationkey }) })
console.log('activated')

// The last token of the user, even an expired one, so that failed logins elsewhere can't lock this device out.
token = await (await call('POST', '/users/login', { token, ...form({ username, password }) })).text()
console.log(`logged in: active ${await activeOf(token)}`)

const wrong = call('POST', '/users/login', form({ username, password: 'wrong' }))
console.log(`refused: ${await refusalOf(wrong)}`)

// All tokens of the user end.
await call('POST', '/users/revokemytokens', { token })
console.log(`logged out: ${await refusalOf(call('GET', '/users/me', { token }))}`)

export {}
