/** What every page needs of a browser: its language, its cookie, and whether it sent a form of this origin. */
import type { DescMessage, DescMethodUnary, MessageInitShape, MessageShape } from '@bufbuild/protobuf'
import type { AuthorizationRequest, CheckAuthorizationResponse } from '../../proto/gen/auth/v1/openid_pb.js'
import { chooseLocale, type Locale } from '../../server/requests/locale.js'
import { readBytes } from '../body.js'
import type { Request } from '../connection.js'
import type { Answer, Exchange } from '../exchange.js'
import { inPortuguese } from '../portuguese.js'
import { HttpError, type Problem } from '../problem.js'
import type { Frame } from './page.js'
import { texts } from './texts.js'

/** Calls an RPC for the user of a token. */
export type CallRpc = <I extends DescMessage, O extends DescMessage>(
  exchange: Exchange,
  rpc: DescMethodUnary<I, O>,
  message: MessageInitShape<I>,
  token?: string,
) => Promise<MessageShape<O>>

/** A request of a browser on the way to a client. */
export interface Visit {
  readonly exchange: Exchange
  /** The request of the client. */
  readonly message: AuthorizationRequest
  readonly checked: CheckAuthorizationResponse
  readonly issuer: string
  readonly frame: Frame
  /** The form that the page itself sent; empty without one. */
  readonly form: URLSearchParams
  /** The token in the cookie. */
  readonly cookie: string | undefined
}

/** The language of a page: that which the client asks for, else that of the browser. */
export function localeOf({ headers }: Pick<Request, 'headers'>, query: string): Locale {
  const asked = new URLSearchParams(query).get('ui_locales')?.replaceAll(' ', ',')
  return chooseLocale(asked, chooseLocale(headers['accept-language'], 'pt-BR'))
}

/** What a page says about a refusal, and its status: what a user can correct on the page is no error of the resource. */
export function explain(problem: Problem, locale: Locale): { readonly error: string; readonly status: number } {
  const { detail, headers, status } = locale === 'pt-BR' ? inPortuguese(problem) : problem
  const t = texts[locale]
  const seconds = headers['retry-after']
  const more = seconds && status === 429 ? ` ${t.wait.replace('{0}', String(Math.ceil(Number(seconds) / 60)))}` : ''
  return { error: `${detail}${more}`, status: status === 429 || status >= 500 ? status : 200 }
}

/** The answer that sends a browser elsewhere, by GET. */
export const redirect = (location: string): Answer => ({
  status: 303,
  headers: { location, 'cache-control': 'no-store' },
  body: '',
})

/** The name of the cookie; only https has its prefix (RFC 6265bis, 4.1.3). */
const nameOf = (issuer: string) => (issuer.startsWith('https:') ? '__Host-auth-session' : 'auth-session')

/** An answer that stores the token of a session, or forgets it if it is empty. The browser forgets it when it closes. */
export function withCookie(answer: Answer, token: string, issuer: string): Answer {
  const more = `${token ? '' : '; Max-Age=0'}${issuer.startsWith('https:') ? '; Secure' : ''}`
  const cookie = `${nameOf(issuer)}=${token}; Path=/; HttpOnly; SameSite=Lax${more}`
  return { ...answer, headers: { ...answer.headers, 'set-cookie': cookie } }
}

/** The token in the cookie of a browser. */
export function cookieOf({ headers }: Request, issuer: string): string | undefined {
  const pairs = (headers.cookie ?? '').split(/; */)
  const name = `${nameOf(issuer)}=`
  const token = pairs.find(pair => pair.startsWith(name))?.slice(name.length)
  return token && /^[\w.-]+$/.test(token) ? token : undefined
}

/** The unverified claims of a token. */
export function readClaims(token: string): { sub?: string; iat?: number; exp?: number } {
  try {
    return JSON.parse(Buffer.from(token.split('.')[1]!, 'base64url').toString())
  } catch {
    return {}
  }
}

/** Reads a form. */
export const readForm = async (exchange: Exchange) => new URLSearchParams((await readBytes(exchange)).toString())

/** Refuses a form of another origin: it would sign its own user in, or the visitor out. */
export function checkOrigin({ headers }: Request, issuer: string): void {
  const { origin, 'sec-fetch-site': site } = headers
  const isOwn = (origin === undefined || origin === new URL(issuer).origin) && (!site || site === 'same-origin')
  if (!isOwn) throw new HttpError('ACCESS_DENIED', 'Pages of other sites may not send this.')
}
