// The page of a work package: sign-up, activation, log-in and recovery by e-mail, against the gateway of a registry that allows
// this origin (AUTH_CORS_ORIGINS).

/** A refusal: a problem document (RFC 9457). */
interface Problem {
  readonly status: number
  readonly reason: string
  readonly detail: string
  /** Every invalid field. */
  readonly errors?: readonly { readonly field: string; readonly message: string }[]
}

/** The texts of this page for refusals; the registry's own text for all others. */
const texts: Record<string, string> = {
  INVALID_CREDENTIALS: 'Username or password is wrong.',
  INVALID_TOKEN: 'Your session has ended. Log in again.',
  ACTIVATION_REFUSED: 'This key can’t activate your account. Ask for another one.',
  INVALID_KEY: 'The key is wrong, used or expired. Request another one.',
  TOO_MANY_ATTEMPTS: 'Too many attempts. Try again later.',
}

class Refusal extends Error {
  constructor(readonly problem: Problem) {
    super(texts[problem.reason] ?? problem.detail)
  }
}

const registry = document.documentElement.dataset.registry ?? ''

/**
 * The last token, which authorizes calls. After log-out it still identifies this browser at the next log-in, so that others
 * can't lock its user out. It is kept in memory only: what is stored can be read by the next user of the computer.
 */
let token: string | undefined
let username = ''

/** Sends a request. Parameters are in the body, never in the URL, which ends up in logs. */
async function call(method: string, path: string, body?: BodyInit, type?: string): Promise<string> {
  const response = await fetch(registry + path, {
    method,
    ...(body !== undefined && { body }),
    headers: { ...(type && { 'content-type': type }), ...(token && { authorization: `Bearer ${token}` }) },
  })
  const text = await response.text()
  if (!response.ok) throw new Refusal(JSON.parse(text) as Problem)
  return text
}

const post = (path: string, fields: Record<string, string>) => call('POST', path, new URLSearchParams(fields))

function element<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T
}

function show(id: string): void {
  for (const form of document.forms) form.hidden = form.id !== id
  element(id).querySelector('input')?.focus()
}

/** Shows the account, or the form that activates it. */
async function welcome(): Promise<void> {
  const me = JSON.parse(await call('GET', '/users/me')) as Record<string, string | number>
  username = String(me.username)
  element('nickname').textContent = String(me.nickname)
  element('summary').textContent = `${me.role}, ${me.city}/${me.state}`
  show(me.active === 1 ? 'account' : 'activate')
}

/** Shows a refusal, and beside each invalid field what is wrong with it. */
function report(form: HTMLFormElement, error: unknown): void {
  const alert = form.querySelector('[role=alert]')
  if (alert) alert.textContent = error instanceof Refusal ? error.message : 'The registry can’t be reached. Try again.'
  for (const { field, message } of (error instanceof Refusal && error.problem.errors) || []) {
    const input = form.elements.namedItem(field)
    if (!(input instanceof HTMLInputElement)) continue
    const note = Object.assign(document.createElement('span'), { className: 'error', textContent: message })
    note.id = `${form.id}-${field}-error`
    input.setAttribute('aria-invalid', 'true')
    input.setAttribute('aria-describedby', note.id)
    input.after(note)
  }
}

function clear(form: HTMLFormElement): void {
  for (const note of form.querySelectorAll('.error')) note.remove()
  for (const input of form.querySelectorAll('[aria-invalid]')) {
    input.removeAttribute('aria-invalid')
    input.removeAttribute('aria-describedby')
  }
  const alert = form.querySelector('[role=alert]')
  if (alert) alert.textContent = ''
}

function onSubmit(id: string, send: (fields: Record<string, string>) => Promise<void>): void {
  const form = element<HTMLFormElement>(id)
  form.addEventListener('submit', async event => {
    event.preventDefault()
    clear(form)
    const button = form.querySelector('button')
    if (button) button.disabled = true
    try {
      await send(Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value)])))
      form.reset()
    } catch (error) {
      report(form, error)
    } finally {
      if (button) button.disabled = false
    }
  })
}

onSubmit('log-in', async fields => {
  token = await post('/users/login', fields)
  await welcome()
})

onSubmit('sign-up', async ({ termsofusage, email, ...fields }) => {
  const user = { ...fields, ...(email && { email }), termsofusage: termsofusage === 'on', roles: ['ROLE_CLIENT'] }
  token = await call('POST', '/users/signup', JSON.stringify(user), 'application/json')
  await welcome()
})

onSubmit('activate', async ({ activationkey = '' }) => {
  await post('/users/activate', { username, activationkey })
  await welcome()
})

onSubmit('recover', async ({ username: name = '', email = '' }) => {
  await post('/forgotpasswords/sendkeybyemail', { username: name, email })
  username = name
  show('new-password')
})

onSubmit('new-password', async ({ key = '', newPassword = '' }) => {
  // A key is good once, so that a refused password doesn't need another one.
  if (key) token = await post('/forgotpasswords/loginbyusernameandkey', { username, key })
  const field = element<HTMLFormElement>('new-password').elements.namedItem('key') as HTMLInputElement
  field.value = ''
  field.disabled = true
  await post('/forgotpasswords/passwordupdatebyusername', { newPassword })
  field.disabled = false
  // The update has ended all tokens of the user, this one too.
  token = await post('/users/login', { username, password: newPassword })
  await welcome()
})

onSubmit('account', async () => {
  await call('POST', '/users/revokemytokens')
  show('log-in')
})

const showTarget = () => show(['#sign-up', '#recover'].includes(location.hash) ? location.hash.slice(1) : 'log-in')
addEventListener('hashchange', showTarget)
showTarget()

export {}
