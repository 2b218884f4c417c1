/**
 * The browser's part of OpenID Connect: pages sign users in with the RPCs that apps call, keep their token in a cookie, and go on
 * to the client with it. The cookie is a token as any other: what ends one, ends the other. The services decide everything; the
 * pages store nothing, and no address comes from the `Host` header.
 */
import type { DescMessage, MessageShape } from '@bufbuild/protobuf'
import { createContextValues, type Transport } from '@connectrpc/connect'
import { AuthorizationRequestSchema, CheckSignOutRequestSchema, OpenId } from '../../proto/gen/auth/v1/openid_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { turnKey } from '../../server/limits/scheduler.js'
import type { Request } from '../connection.js'
import type { Answer, Exchange, Outcome } from '../exchange.js'
import type { Route } from '../operations.js'
import { isAnswer, type Problem, problemOf } from '../problem.js'
import { forwardedHeaders } from '../rpcs.js'
import { createRead } from '../translate.js'
import { codePage, type Frame, goingOnPage, signedOutPage, signInPage, signOutPage, stoppedPage } from './page.js'
import { createRecovery } from './recovery.js'
import { texts } from './texts.js'
import {
  type CallRpc,
  checkOrigin,
  cookieOf,
  explain,
  localeOf,
  readClaims,
  readForm,
  redirect,
  type Visit,
  withCookie,
} from './visit.js'

/** Reads a message from the query of a request, whose names are those of the fields. */
function readerOf<I extends DescMessage>(input: I) {
  const parameters = Object.fromEntries(input.fields.map(({ jsonName }) => [jsonName, 'optional' as const]))
  const read = createRead({ method: 'GET', path: '', parameters, refusals: [] }, input)
  return ({ query, turn }: Exchange) =>
    read({ segment: undefined, query, body: undefined, turn }).message as MessageShape<I>
}

const readAuthorization = readerOf(AuthorizationRequestSchema)
const readSignOut = readerOf(CheckSignOutRequestSchema)

/** Refusals after which the user signs in again. */
const endedSession = ['INVALID_TOKEN', 'ACCESS_DENIED', 'SIGN_IN_AGAIN']

/** Refusals of a one-time code, after which the user may send another. */
const wrongCode = ['CODE_NEEDED', 'INVALID_CREDENTIALS', 'TOO_MANY_ATTEMPTS']

/** Creates what answers the paths of browsers. */
export function createSignIn(transport: Transport, timeout: number) {
  const call: CallRpc = async ({ request, query, deadline, turn }, rpc, message, token) => {
    const { authorization: _, ...forwarded } = forwardedHeaders(request.headers)
    const headers: Record<string, string> = { ...forwarded, 'accept-language': localeOf(request, query) }
    if (token !== undefined) headers.authorization = `Bearer ${token}`
    const left = Math.max(1, Math.min(timeout, deadline - Date.now()))
    const values = createContextValues().set(turnKey, turn)
    return (await transport.unary(rpc, request.from.signal, left, headers, message, values)).message
  }

  /** Opens a page for the request of a client. A form that it gets must be its own. */
  async function open(exchange: Exchange): Promise<Visit> {
    const { query, request } = exchange
    const message = readAuthorization(exchange)
    const checked = await call(exchange, OpenId.method.checkAuthorization, { authorization: message })
    const { issuer, registry, client } = checked
    if (request.method === 'POST') checkOrigin(request, issuer)
    const form = request.method === 'POST' ? await readForm(exchange) : new URLSearchParams()
    const frame: Frame = { locale: localeOf(request, query), registry, client, to: message.redirectUri, query }
    return { exchange, message, checked, issuer, frame, form, cookie: cookieOf(request, issuer) }
  }

  /** Goes on to the client with a token, or to a page. Undefined when the user must sign in again. */
  async function goOn(visit: Visit, token: string, { maxAge = visit.message.maxAge, code = '' } = {}) {
    const { exchange, message, frame, issuer } = visit
    try {
      const asked = { authorization: { ...message, maxAge }, ...(code && { oneTimeCode: code }) }
      const { location, token: proved } = await call(exchange, OpenId.method.authorize, asked, token)
      return withCookie(redirect(location), proved ?? token, issuer)
    } catch (error) {
      const problem = problemOf(error)
      const { reason } = problem
      if (code && wrongCode.includes(reason)) return codePage({ ...frame, ...explain(problem, frame.locale) })
      if (reason === 'CODE_NEEDED') return withCookie(codePage(frame), token, issuer)
      if (reason === 'WRONG_STATE')
        return stoppedPage({ ...frame, ...explain(problem, frame.locale) }, { asOther: true })
      if (endedSession.includes(reason)) return undefined
      throw error
    }
  }

  /** Signs in with a password, and goes on. */
  async function enter(visit: Visit, username: string, password: string): Promise<Answer> {
    const { exchange, frame, cookie } = visit
    try {
      // The former token shows the device.
      const { token } = await call(exchange, Users.method.login, { username, password, stay: true }, cookie)
      // The sign-in is as recent as any client asks for.
      const went = await goOn(visit, token, { maxAge: '' })
      return went ?? signInPage({ ...frame, error: texts[frame.locale].otherUser })
    } catch (error) {
      if (!isAnswer(error)) throw error
      const problem = problemOf(error)
      const explained = explain(problem, frame.locale)
      const hint = problem.reason === 'INVALID_CREDENTIALS' ? ` ${texts[frame.locale].ifSure}` : ''
      return signInPage({ ...frame, ...explained, error: explained.error + hint }, username)
    }
  }

  /** The token of the cookie; another one of its session once half its life is over. */
  async function freshToken({ exchange, cookie }: Visit): Promise<string | undefined> {
    const { iat = 0, exp = 0 } = cookie ? readClaims(cookie) : {}
    if (!cookie || Date.now() / 1000 < (iat + exp) / 2) return cookie
    const fresh = await call(exchange, Users.method.refresh, { stay: true }, cookie).catch(() => undefined)
    return fresh?.token ?? cookie
  }

  /** Answers a request of a client, by GET or by POST from its own page. */
  async function authorize(exchange: Exchange): Promise<Answer> {
    // Browsers leave the cookie out of a POST of another site, but not after this redirect.
    if (exchange.request.method === 'POST') return redirect(`authorize?${await readForm(exchange)}`)
    const visit = await open(exchange)
    const { errorLocation, loginRequiredLocation } = visit.checked
    if (errorLocation) return redirect(errorLocation)
    const parameters = new URLSearchParams(exchange.query)
    const prompts = (parameters.get('prompt') ?? '').split(' ')
    const token = prompts.includes('login') ? undefined : await freshToken(visit)
    const went = token === undefined ? undefined : await goOn(visit, token)
    if (prompts.includes('none') && went?.status !== 303) return redirect(loginRequiredLocation)
    return went ?? signInPage(visit.frame, parameters.get('login_hint')?.slice(0, 100))
  }

  /** Answers the form of the page: a password, or a one-time code. */
  async function login(exchange: Exchange): Promise<Answer> {
    const visit = await open(exchange)
    const { form, cookie, message, frame } = visit
    const code = form.get('code')
    if (code === null) return enter(visit, form.get('username') ?? '', form.get('password') ?? '')
    // The password was given a moment ago.
    const maxAge = message.maxAge && String(Math.max(300, Number(message.maxAge)))
    return (cookie && (await goOn(visit, cookie, { maxAge, code }))) || signInPage(frame)
  }

  /** Answers a client that signs its user out, or the form that asks for it. */
  async function logout(exchange: Exchange): Promise<Answer> {
    const { query, request } = exchange
    const form = request.method === 'POST' ? await readForm(exchange) : new URLSearchParams()
    const isConfirmed = form.get('step') === 'confirmed'
    if (request.method === 'POST' && !isConfirmed) return redirect(`logout?${form}`)
    const checked = await call(exchange, OpenId.method.checkSignOut, readSignOut(exchange))
    const { issuer, location, sub, registry } = checked
    if (isConfirmed) checkOrigin(request, issuer)
    const frame: Frame = { locale: localeOf(request, query), registry, to: location, query }
    const token = cookieOf(request, issuer)
    if (token && !isConfirmed && (sub === undefined || sub !== readClaims(token).sub)) return signOutPage(frame)
    if (token) await call(exchange, OpenId.method.signOut, {}, token).catch(() => {})
    return withCookie(location ? redirect(location) : signedOutPage(frame), '', issuer)
  }

  const recover = createRecovery(call, enter)
  const answering =
    (act: (exchange: Exchange) => Promise<Answer>) =>
    async (exchange: Exchange): Promise<Outcome> => {
      const answer = await act(exchange)
      const { query, request } = exchange
      const page = request.method === 'POST' && goingOnPage(answer, localeOf(request, query), query)
      return { answer: page || answer, isLogged: true }
    }
  return {
    authorize: answering(authorize),
    login: answering(login),
    recover: answering(async exchange => recover(await open(exchange))),
    logout: answering(logout),
  }
}

/** The page that answers a refused request; one with 400 where no redirect may (RFC 6749, 4.1.2.1). */
export const refusedPage =
  (path: Route['browser']) =>
  (problem: Problem, request: Request, query: string): Answer => {
    const locale = localeOf(request, query)
    const status = problem.reason === 'RECORD_NOT_FOUND' ? 400 : problem.status
    const frame = { locale, query, error: explain(problem, locale).error, status }
    return stoppedPage(frame, { signOut: path === 'logout' })
  }
