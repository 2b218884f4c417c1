import { backOff } from '../clock.js'
import { SessionError } from './errors.js'

/** The parts of a call, and its time limit in ms. A body is sent as JSON; a form needs no preflight of a browser (CORS). */
interface Parts {
  readonly body?: Record<string, unknown> | undefined
  readonly form?: Record<string, string>
  readonly token?: string | undefined
  readonly timeout?: number
}

/** How often a call is tried that may be repeated, and for how long: all within the minute in which the registry knows it again. */
const [attempts, repeatedTimeout] = [3, 15_000]

/** Creates the calls of the registry at a URL. They resolve to the answer, or reject with a `SessionError`. */
export function createCalls(url: string, send: typeof fetch) {
  async function call<T>(route: string, { body, form, token, timeout = 60_000 }: Parts): Promise<T> {
    const [method = '', path] = route.split(' ')
    // Older versions of React Native have no `AbortSignal.timeout`.
    const stop = new AbortController()
    const timer = setTimeout(() => stop.abort(), timeout)
    try {
      const response = await send(url + path, {
        method,
        headers: {
          // Texts, such as tokens, are JSON, too.
          accept: 'application/json',
          ...((body || form) && { 'content-type': body ? 'application/json' : 'application/x-www-form-urlencoded' }),
          ...(token && { authorization: `Bearer ${token}` }),
        },
        body: body ? JSON.stringify(body) : form ? String(new URLSearchParams(form)) : null,
        cache: 'no-store',
        credentials: 'omit',
        redirect: 'error',
        signal: stop.signal,
      })
      const { ok, status, headers } = response
      const text = await response.text()
      // What isn’t JSON comes from a proxy, or is the page with which a network greets.
      const answer = text === '' ? {} : JSON.parse(text)
      if (ok) return answer
      const { reason = 'OFFLINE', detail, error_description, errors } = answer
      const retryAfter = Number(headers.get('retry-after')) || undefined
      throw new SessionError(reason, { status, errors, retryAfter }, detail ?? error_description)
    } catch (cause) {
      throw cause instanceof SessionError ? cause : new SessionError('OFFLINE', { cause })
    } finally {
      clearTimeout(timer)
    }
  }

  /** Makes a call that may be repeated, until it is answered; rejects with OFFLINE when it isn’t. */
  async function insist<T>(route: string, parts: Parts): Promise<T> {
    for (let failures = 0; ; failures++) {
      try {
        return await call<T>(route, { ...parts, timeout: repeatedTimeout })
      } catch (cause) {
        const { code, status, retryAfter } = cause as SessionError
        // With 500 itself the registry refuses a token.
        if (code !== 'OFFLINE' && status !== 429 && !(status! > 500)) throw cause
        if (failures === attempts - 1) throw new SessionError('OFFLINE', { cause, status, retryAfter })
        await new Promise(resolve => setTimeout(resolve, Math.min(retryAfter ?? 0, 5) * 1000 + backOff(failures)))
      }
    }
  }

  return { call, insist }
}
