// The page of a work package: sign-up, activation, log-in and recovery by e-mail, against the gateway of a registry that allows
// this origin (AUTH_CORS_ORIGINS). The session keeps the user signed in until this tab is closed.
import { createSession, SessionError, type User } from 'auth-registry-client/session'

/** The texts of this page for refusals, and for the end of a session; the registry's own text for all others. */
const texts: Record<string, string> = {
  INVALID_CREDENTIALS: 'Username or password is wrong.',
  ACTIVATION_REFUSED: 'This key can’t activate your account. Ask for another one.',
  INVALID_KEY: 'The key is wrong, used or expired. Request another one.',
  INVALID_TOKEN: 'The key was used too long ago. Request another one.',
  TOO_MANY_ATTEMPTS: 'Too many attempts. Try again later.',
  ENDED: 'Your session has ended. Log in again.',
  SUSPENDED: 'Your account is suspended. Ask your school.',
  OFFLINE: 'The registry can’t be reached. Try again.',
}

const textOf = ({ code, message }: SessionError) => texts[code] ?? message

const registry = document.documentElement.dataset.registry ?? ''
const session = createSession({ url: registry, store: sessionStorage, onChange: welcome })

function element<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T
}

function show(id: string): void {
  for (const form of document.forms) form.hidden = form.id !== id
  element(id).querySelector('input')?.focus()
}

function alertIn(form: HTMLFormElement, text: string): void {
  form.querySelector('[role=alert]')!.textContent = text
}

/** Shows the account, or the form that activates it; without a user, the form that the address names, with why a session ended. */
async function welcome(user: User | undefined, cause?: SessionError): Promise<void> {
  if (user?.active === false) return show('activate')
  if (!user) {
    show(['#sign-up', '#recover'].includes(location.hash) ? location.hash.slice(1) : 'log-in')
    alertIn(element('log-in'), cause && cause.code !== 'SIGNED_OUT' ? textOf(cause) : '')
    return
  }
  show('account')
  element('nickname').textContent = user.username
  const response = await session.fetch(`${registry}/users/me`)
  if (!response.ok) return
  const { nickname, role, city, state } = (await response.json()) as Record<string, string>
  element('nickname').textContent = nickname!
  element('summary').textContent = `${role}, ${city}/${state}`
}

/** Shows a refusal, and beside each invalid field what is wrong with it, and what would be right. */
function report(form: HTMLFormElement, error: unknown): void {
  if (!(error instanceof SessionError)) throw error
  alertIn(form, textOf(error))
  for (const { field, message, suggestion } of error.errors ?? []) {
    const input = form.elements.namedItem(field)
    if (!(input instanceof HTMLInputElement)) continue
    const note = Object.assign(document.createElement('span'), { className: 'error', textContent: message })
    note.id = `${form.id}-${field}-error`
    input.setAttribute('aria-invalid', 'true')
    input.setAttribute('aria-describedby', note.id)
    input.after(note)
    if (!suggestion) continue
    // Such as a free nickname.
    const use = Object.assign(document.createElement('button'), { type: 'button', textContent: `Use ${suggestion}` })
    use.addEventListener('click', () => {
      input.value = suggestion
    })
    note.append(' ', use)
  }
}

function clear(form: HTMLFormElement): void {
  for (const note of form.querySelectorAll('.error')) note.remove()
  for (const input of form.querySelectorAll('[aria-invalid]')) {
    input.removeAttribute('aria-invalid')
    input.removeAttribute('aria-describedby')
  }
  alertIn(form, '')
}

function onSubmit(id: string, send: (fields: Record<string, string>) => Promise<unknown>): void {
  const form = element<HTMLFormElement>(id)
  form.addEventListener('submit', async event => {
    event.preventDefault()
    clear(form)
    const button = form.querySelector<HTMLButtonElement>('button[type=submit]')!
    button.disabled = true
    try {
      await send(Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value)])))
      form.reset()
    } catch (error) {
      report(form, error)
    } finally {
      button.disabled = false
    }
  })
}

onSubmit('log-in', ({ username = '', password = '' }) => session.signIn({ username, password }))

onSubmit('sign-up', ({ username = '', nickname = '', password = '', email, termsofusage, ...fields }) => {
  const rest = { ...fields, ...(email && { email }), termsofusage: termsofusage === 'on', roles: ['ROLE_CLIENT'] }
  return session.signUp({ username, nickname, password, ...rest })
})

onSubmit('activate', ({ activationkey = '' }) => session.activate(activationkey))

const keyField = element<HTMLFormElement>('new-password').elements.namedItem('key') as HTMLInputElement
let recovering = ''
onSubmit('recover', async ({ username = '', email = '' }) => {
  const body = new URLSearchParams({ username, email })
  const response = await session.fetch(`${registry}/forgotpasswords/sendkeybyemail`, { method: 'POST', body })
  if (!response.ok) return alertIn(element('recover'), texts.TOO_MANY_ATTEMPTS!)
  recovering = username
  keyField.disabled = false
  show('new-password')
})

onSubmit('new-password', async ({ key = '', newPassword = '' }) => {
  // A key is good once, so that a refused password doesn't need another one.
  if (key) await session.signInByKey({ username: recovering, key })
  keyField.value = ''
  keyField.disabled = true
  await session.setPassword(newPassword)
  keyField.disabled = false
})

onSubmit('account', async () => {
  location.hash = 'log-in'
  await session.signOut({ everywhere: true })
})

addEventListener('hashchange', () => welcome(session.user))
