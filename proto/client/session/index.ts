// `auth-registry-client/session`: keeps a user signed in, in browsers, React Native and Node.js. It owns the tokens of one user at
// a time, and when they are refreshed; it imports nothing of Node.js and no package, and shows nothing on a page.
import { elapsedSince, type Moment, present } from '../clock.js'
import { createCalls } from './calls.js'
import { codeOf, type SessionCode, SessionError } from './errors.js'
import { createKeeper, createQueue, type Kept, memoryStore, type Store } from './store.js'
import { originOf, readToken, refusesToken, type User } from './tokens.js'

export { type SessionCode, SessionError } from './errors.js'
export type { Store, User }

/** Options of `createSession`. */
export interface SessionOptions {
  /** URL of the registry’s HTTP port, without a revision, such as `https://auth.example.org`. */
  readonly url: string
  /** Where the session is kept; by default in memory, until the page is closed. */
  readonly store?: Store
  /** Other origins to which `fetch` sends the token, such as `https://api.example.org`. */
  readonly origins?: readonly string[]
  /** Sends requests; by default the global `fetch`. */
  readonly fetch?: typeof fetch
  /** Called when the store was first read, and whenever `user` has changed. `cause` is why no user is signed in. */
  readonly onChange?: (user: User | undefined, cause: SessionError | undefined) => void
}

/** A session. Its functions need no `this`. They reject with a `SessionError`, or with the error of a store that fails. */
export interface Session {
  /** The user who is signed in, as the store was last read; undefined if no user is. */
  readonly user: User | undefined
  /** Signs up a new user, with the fields of the form that `/docs` of the registry describes, and signs it in. */
  signUp(form: { username: string; nickname: string; password: string; [field: string]: unknown }): Promise<User>
  /** Activates the user who is signed in, with the key of a school or a teacher. */
  activate(key: string): Promise<User>
  /** Signs in a user, who stays signed in. */
  signIn(credentials: { username: string; password: string }): Promise<User>
  /** Proves by a mailed key who the user is. Then call `setPassword`, which signs in. */
  signInByKey(proof: { username: string; key: string }): Promise<void>
  /** Proves by answers who the user is. Then call `setPassword`, which signs in. */
  signInByAnswers(proof: {
    username: string
    answers: { forgotpasswordquestionsid: number; answer: string }[]
  }): Promise<void>
  /**
   * Sets the password of the user who has just proved who it is, else of the one who is signed in, who may have to give the present
   * one under AUTH_STRICT. Signs in with it; former sessions of the user end.
   */
  setPassword(newPassword: string, presentPassword?: string): Promise<User>
  /** Forgets the session, and then revokes it. With `everywhere` it ends all sessions of the user, or rejects and forgets nothing. */
  signOut(options?: { readonly everywhere?: boolean }): Promise<void>
  /** Returns a valid access token, other than the one that was refused. */
  token(refused?: string): Promise<string>
  /**
   * As the global `fetch`, with the token if a user is signed in and the origin was named. A service that refuses a token does
   * nothing: only then is a request sent once more, with another token. With the token, a redirect is an error unless
   * `init.redirect` is given: browsers leave the token out at another origin, other programs may not.
   */
  fetch(input: RequestInfo | URL, init?: RequestInit): Promise<Response>
}

/** Creates the session of an app: one for each registry, which all of the app uses. */
export function createSession({ store = memoryStore(), origins = [], onChange, ...options }: SessionOptions): Session {
  const url = options.url.replace(/\/+$/, '')
  const trusted = new Set([url, ...origins].map(originOf))
  if (trusted.has('')) throw new TypeError('`url` and `origins` must be like https://auth.example.org.')
  const send: typeof fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init))
  const { call, insist } = createCalls(url, send)
  // Of characters that every store takes.
  const name = `auth-registry.${url.replace(/[^\w.-]+/g, '_')}`
  const inTurn = createQueue(name)

  /** The access token, valid for `life` ms from its arrival on. */
  let held: { readonly token: string; readonly life: number; readonly arrival: Moment } | undefined
  /** The last access token of all, by which the registry knows this device at a sign-in. */
  let last: string | undefined
  let refreshing: Promise<string> | undefined
  /** The token of a user who has proved who it is; none after a sign-in or a sign-out. */
  let proof: string | undefined
  let user: User | undefined | null = null // Until the store was read.

  const { look, put } = createKeeper(store, name, kept => {
    if (JSON.stringify(kept?.user) === JSON.stringify(user)) return
    user = kept?.user
    held = undefined
    onChange?.(user, user ? undefined : new SessionError(kept?.ended ?? 'SIGNED_OUT'))
  })
  look().catch(() => undefined)

  const lastsFor = ({ life, arrival }: NonNullable<typeof held>, ms: number) => elapsedSince(arrival) < life - ms

  /** Refreshes a minute before the token ends, or in the last fifth of its life. */
  async function token(refused?: string): Promise<string> {
    await look()
    if (held?.token === refused) held = undefined
    const now = held
    if (now && lastsFor(now, Math.min(60_000, now.life / 5))) return now.token
    refreshing ??= inTurn(refresh).finally(() => {
      refreshing = undefined
    })
    return refreshing.catch(error => {
      if (now && codeOf(error) === 'OFFLINE' && lastsFor(now, 0)) return now.token
      throw error
    })
  }

  /** Exchanges what is kept for another access token, and keeps what comes with it before that is used. */
  async function refresh(): Promise<string> {
    const kept = await look()
    if (!kept?.user) throw new SessionError(kept?.ended ?? 'SIGNED_OUT')
    const answer = await exchange(kept).catch((cause: Error) => ({ cause }))
    // Where there are no locks, another tab may have written meanwhile. If it refreshed, it got the same token as this one, which
    // is kept once: to exchange it again at once would make a copy of what a third tab is about to present.
    const now = await look()
    if (now !== kept && ('cause' in answer || now?.user?.id !== kept.user.id)) return refresh()
    if ('cause' in answer) {
      const ended = ends[codeOf(answer.cause) as keyof typeof ends] as SessionCode | undefined
      if (ended) await put({ ended })
      throw ended ? new SessionError(ended, answer) : answer.cause
    }
    const arrival = present()
    const { user, life } = readToken(answer.token)
    if (now === kept) await put({ user, ...answer.kept })
    held = { token: answer.token, life, arrival }
    last = answer.token
    return last
  }

  async function exchange({ refresh, access }: Kept): Promise<{ token: string; kept: Kept }> {
    const token = access && (await insist<string>('GET /users/refresh', { token: access }))
    if (token) return { token, kept: { access: token } }
    const form = { grant_type: 'refresh_token', client_id: 'registry', refresh_token: refresh! }
    const answer = await insist<Record<'access_token' | 'refresh_token', string>>('POST /oauth/token', { form })
    return { token: answer.access_token, kept: { refresh: answer.refresh_token } }
  }

  /** Does what needs a token, and once more with another one if it is refused. */
  async function withToken<T>(work: (token: string) => Promise<T>): Promise<T> {
    const first = await token()
    return work(first).catch(async error => {
      if (codeOf(error) !== 'INVALID_TOKEN') throw error
      return work(await token(first))
    })
  }

  /** Begins a session by a call whose answer is a token for the registry alone. */
  async function begin(path: string, body: Record<string, unknown>): Promise<Kept & { readonly user: User }> {
    proof = undefined
    const access = await call<string>(`POST ${path}`, { body: { ...body, stay: true }, token: last })
    const { user } = readToken(access)
    held = undefined
    const made = insist<{ refreshToken: string }>('POST /users/me/refreshtoken', { token: access })
    return made.then(
      ({ refreshToken }) => ({ user, refresh: refreshToken }),
      // An administrator, and AUTH_STRICT, have none: the first refresh turns the token into one that services take.
      error => (codeOf(error) === 'ACCESS_DENIED' ? { user, access } : Promise.reject(error)),
    )
  }

  async function enter(path: string, body: Record<string, unknown>, turn = inTurn): Promise<User> {
    const kept = await begin(path, body)
    await turn(() => put(kept))
    return kept.user
  }

  async function prove(by: string, body: Record<string, unknown>): Promise<void> {
    proof = await call(`POST /forgotpasswords/loginbyusernameand${by}`, { body })
  }

  return {
    get user() {
      return user ?? undefined
    },
    token,
    signUp: form => enter('/users/signup', form),
    signIn: credentials => enter('/users/login', credentials),
    signInByKey: body => prove('key', body),
    signInByAnswers: body => prove('answers', body),
    async activate(activationkey) {
      const refusal = await withToken(token => {
        const { username } = readToken(token).user
        return call('POST /users/activate', { token, body: { username, activationkey } })
      }).catch(error => error)
      if (refusal instanceof Error && codeOf(refusal) !== 'ACTIVATION_REFUSED') throw refusal
      // The token of before opens nothing elsewhere. Refused is also who is active since a call whose answer was lost.
      await token(held?.token)
      if (refusal instanceof Error && !user?.active) throw refusal
      return user!
    },
    async setPassword(newPassword, password) {
      // Meanwhile nothing refreshes the session that this ends.
      const set = (token: string) =>
        inTurn(async () => {
          const { username } = readToken(token).user
          await call('POST /forgotpasswords/passwordupdatebyusername', { token, body: { newPassword, password } })
          return enter('/users/login', { username, password: newPassword }, work => work())
        })
      return proof ? set(proof) : withToken(set)
    },
    async signOut({ everywhere = false } = {}) {
      if (everywhere) await withToken(token => call('POST /users/revokemytokens', { token }))
      proof = undefined
      const former = await inTurn(() => put(undefined))
      const form = { client_id: 'registry', token: former?.refresh ?? '' }
      // If it fails, no one can use the token any more.
      if (!everywhere && form.token) await insist('POST /oauth/revoke', { form }).catch(() => undefined)
    },
    async fetch(input, init) {
      const request = typeof input === 'object' && 'clone' in input ? input : undefined
      const headers = new Headers(init?.headers ?? request?.headers)
      // A browser says here to which URL it sends a relative one.
      const isTrusted = trusted.has(originOf((request ?? new Request(input)).url))
      if (!isTrusted || headers.has('authorization') || !(await look())?.user) return send(input, init)
      const attempt = (token: string) => {
        headers.set('authorization', `Bearer ${token}`)
        return send(request?.clone() ?? input, { ...init, headers, redirect: init?.redirect ?? 'error' })
      }
      const first = await token()
      const response = await attempt(first)
      // Services refuse with 403 the token of a user who isn’t active. A stream can be sent once.
      const isRefused = (response.status === 403 && user?.active === false) || (await refusesToken(response))
      const isStream = typeof ReadableStream === 'function' && init?.body instanceof ReadableStream
      return isRefused && !isStream ? attempt(await token(first)) : response
    },
  }
}

/** Why a session ends, by the reason of a refused refresh. */
const ends = { INVALID_GRANT: 'ENDED', INVALID_TOKEN: 'ENDED', SUSPENDED: 'SUSPENDED', SIGNED_OUT: 'SIGNED_OUT' }
