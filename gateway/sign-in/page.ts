/** The pages of the sign-in: HTML without scripts. Their links and forms are relative, because the issuer may have a path. */
import { createHash } from 'node:crypto'
import type { Question } from '../../proto/gen/auth/v1/records_pb.js'
import type { Locale } from '../../server/requests/locale.js'
import type { Answer } from '../exchange.js'
import { Html, html } from '../html.js'
import { type Texts, texts } from './texts.js'

/** What a page shows in addition to its form. */
export interface Frame {
  readonly locale: Locale
  /** How the registry is called; absent where it isn't known. */
  readonly registry?: string
  /** How the client is called; absent where none asks. */
  readonly client?: string
  /** Where the browser goes on after the form. */
  readonly to?: string | undefined
  /** The request of the client, which links and forms repeat. */
  readonly query: string
  /** Why the former attempt failed. */
  readonly error?: string | undefined
  readonly status?: number
}

const style = `:root{color-scheme:light dark;font:1.125rem/1.5 system-ui,sans-serif}body{max-width:24rem;margin:0 auto;padding:1rem;overflow-wrap:anywhere}a{color:inherit}
label{display:block;margin-top:1rem}input,select{box-sizing:border-box;width:100%;font:inherit;padding:.6rem}button{font:inherit;margin-top:1rem;padding:.6rem 1.2rem;min-height:48px}
[role=alert]{border-inline-start:4px solid #c62828;padding-inline-start:.8rem}:focus-visible{outline:3px solid LinkText;outline-offset:2px}`

const styleHash = createHash('sha256').update(style).digest('base64')
const styleElement = new Html(`<style>${style}</style>`)

function page(frame: Frame, heading: string, ...content: (Html | false)[]): Answer {
  const { locale, registry, client, to, error, status = 200 } = frame
  const policy = [
    "default-src 'none'",
    `style-src 'sha256-${styleHash}'`,
    'img-src data:',
    `form-action 'self'${to && !isWeb(to) ? ` ${new URL(to).protocol}` : ''}`,
    "base-uri 'none'",
    "frame-ancestors 'none'",
  ]
  const headers = {
    'content-type': 'text/html; charset=utf-8',
    'content-language': locale,
    'content-security-policy': policy.join('; '),
    'cache-control': 'no-store',
    // With `no-referrer`, browsers send the form with `Origin: null`.
    'referrer-policy': 'same-origin',
  }
  const { text } = html`<!doctype html>
<html lang="${locale}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>${heading}${registry && ` · ${registry}`}</title><link rel="icon" href="data:,">${styleElement}</head>
<body><main>${registry !== undefined && html`<p>${registry}</p>`}<h1>${heading}</h1>
${client !== undefined && html`<p>${texts[locale].toContinue.replace('{0}', () => client)}</p>`}
${error !== undefined && html`<p role="alert">${error}</p>`}
${content}</main></body></html>
`
  return { status, headers, body: text }
}

/** Whether an address is on the web; others are of apps on devices. */
const isWeb = (uri: string) => /^https?:/i.test(uri)

/**
 * The answer to a form that sends its browser to an address: a page, because browsers apply `form-action` to each redirect after a
 * form, and clients redirect to origins of their own. Devices open apps only by the redirect, which such a page permits.
 */
export function goingOnPage({ status, headers }: Answer, locale: Locale, query: string): Answer | undefined {
  const { location = '', ...more } = headers
  if (status !== 303 || !isWeb(location)) return undefined
  const t = texts[locale]
  const shown = page({ locale, query }, t.continuing, link(location, t.continue))
  return { ...shown, headers: { ...more, ...shown.headers, refresh: `0; url=${location}` } }
}

/** A field of a form; the first one without a value gets the focus. */
interface Field {
  readonly name: string
  readonly label: string
  readonly autocomplete: string
  readonly type?: 'text' | 'password' | 'email'
  readonly value?: string
  readonly readonly?: boolean
}

const input = ({ name, label, autocomplete, type = 'text', value = '', readonly }: Field, focus: boolean) =>
  html`<label for="${name}">${label}</label><input id="${name}" name="${name}" type="${type}" autocomplete="${autocomplete}" autocapitalize="none" spellcheck="false" value="${value}" required${readonly && html` readonly`}${focus && html` autofocus`}>`

interface Form {
  readonly action: 'login' | 'recover' | 'logout'
  /** Name and value of the button, which say what it does. */
  readonly step?: string
  readonly fields?: readonly Field[]
  readonly content?: Html
  readonly button: string
}

function form({ query }: Frame, { action, step, fields = [], content, button }: Form): Html {
  const first = fields.find(({ value }) => !value)
  return html`<form method="post" action="${action}?${query}">${fields.map(field => input(field, field === first))}${content}
<button${step !== undefined && html` name="step" value="${step}"`}>${button}</button></form>
`
}

const link = (path: string, text: string) => html`<p><a href="${path}">${text}</a></p>`

/** A page with a form, what is to know about it, and a link elsewhere. */
const formPage = (frame: Frame, heading: string, about: string, asked: Form, path = '', text = '') =>
  page(frame, heading, about !== '' && html`<p>${about}</p>`, form(frame, asked), path !== '' && link(path, text))

const usernameField = ({ username: label }: Texts, value: string, readonly = false): Field => {
  return { name: 'username', label, autocomplete: 'username', value, readonly }
}

/** Asks for username and password. */
export function signInPage(frame: Frame, username = ''): Answer {
  const t = texts[frame.locale]
  const secret = { name: 'password', label: t.password, autocomplete: 'current-password', type: 'password' } as const
  const asked = { action: 'login', fields: [usernameField(t, username), secret], button: t.signIn } as const
  return formPage(frame, t.signIn, '', asked, `recover?${frame.query}`, t.forgotten)
}

/** Asks an administrator for a one-time code. */
export function codePage(frame: Frame): Answer {
  const t = texts[frame.locale]
  const fields = [{ name: 'code', label: t.code, autocomplete: 'one-time-code' }]
  const asked = { action: 'login', fields, button: t.continue } as const
  return formPage(frame, t.code, t.codeAbout, asked, signInAgain(frame), t.asOther)
}

/** Asks for the address to which a recovery key goes. */
export function recoveryPage(frame: Frame, username = '', email = ''): Answer {
  const t = texts[frame.locale]
  const address = { name: 'email', label: t.email, autocomplete: 'email', type: 'email', value: email } as const
  const fields = [usernameField(t, username), address]
  return page(
    frame,
    t.recover,
    html`<p>${t.mailAbout}</p>`,
    form(frame, { action: 'recover', step: 'mail', fields, button: t.sendKey }),
    html`<p>${t.noEmail}</p>`,
    form(frame, { action: 'recover', step: 'questions', button: t.answerQuestions }),
    link(`authorize?${frame.query}`, t.backToSignIn),
  )
}

/** Asks for the key that was mailed. */
export function keyPage(frame: Frame, username: string): Answer {
  const t = texts[frame.locale]
  const fields = [usernameField(t, username, true), { name: 'key', label: t.key, autocomplete: 'one-time-code' }]
  const asked = { action: 'recover', step: 'key', fields, button: t.continue } as const
  return formPage(frame, t.enterKey, t.keyAbout, asked, `recover?${frame.query}`, t.recover)
}

/** Asks for answers to two questions. */
export function questionsPage(frame: Frame, questions: readonly Question[], username = ''): Answer {
  const t = texts[frame.locale]
  const answers = [1, 2].map(n => {
    const options = questions.map(
      ({ id, question }, at) => html`<option value="${id}"${at === n - 1 && html` selected`}>${question}</option>`,
    )
    const label = t.question.replace('{0}', String(n))
    const field = { name: `answer${n}`, label: t.answer.replace('{0}', String(n)), autocomplete: 'off' }
    return html`<label for="question${n}">${label}</label><select id="question${n}" name="question${n}">${options}</select>${input(field, false)}`
  })
  const fields = [usernameField(t, username)]
  const asked = { action: 'recover', step: 'answers', fields, content: html`${answers}`, button: t.continue } as const
  return formPage(frame, t.answerQuestions, t.questionsAbout, asked, `recover?${frame.query}`, t.recover)
}

/** Asks for a new password. */
export function newPasswordPage(frame: Frame, username: string): Answer {
  const t = texts[frame.locale]
  const secret = { name: 'password', label: t.password2, autocomplete: 'new-password', type: 'password' } as const
  const fields = [usernameField(t, username, true), secret]
  return formPage(frame, t.newPassword, t.newPasswordAbout, {
    action: 'recover',
    step: 'password',
    fields,
    button: t.save,
  })
}

/** Says why a sign-in, or a sign-out, can't go on; `asOther` where another user can. */
export function stoppedPage(frame: Frame, { asOther = false, signOut = false } = {}): Answer {
  const t = texts[frame.locale]
  const again = asOther && link(signInAgain(frame), t.asOther)
  return page(frame, signOut ? t.notSignedOut : t.stopped, html`<p>${t.startAgain}</p>`, again)
}

/** Asks whether to sign out. */
export function signOutPage(frame: Frame): Answer {
  const t = texts[frame.locale]
  return formPage(frame, t.signOut, t.signOutAbout, { action: 'logout', step: 'confirmed', button: t.signOutYes })
}

/** Says that the user is signed out. */
export const signedOutPage = (frame: Frame): Answer => page(frame, texts[frame.locale].signedOut)

/** The request of the client, with the wish that another user signs in. */
function signInAgain({ query }: Frame): string {
  const parameters = new URLSearchParams(query)
  parameters.set('prompt', 'login')
  return `authorize?${parameters}`
}
