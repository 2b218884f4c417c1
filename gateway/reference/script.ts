/** The script of the reference: signs in, tries calls, and copies them as commands of curl. It runs in browsers. */
import { type Call, callOf, toCurl } from './call.js'

const texts = document.body.dataset
/** The URL of `/`, without the slash: the page may be below the path prefix of a proxy. */
const root = new URL(texts.root!, location.href).href.replace(/\/$/, '')
const signIn = document.getElementById('sign-in') as HTMLFormElement
/** A token or the key of a service, in this page only: its form has the method `dialog`, which sends nothing. */
const credential = document.getElementById('credential') as HTMLInputElement

const fieldsOf = (form: HTMLFormElement) =>
  [...form.querySelectorAll('input')].map(({ name, value }) => [name, value] as const)

/** The call that a form describes. Empty fields aren't sent. */
function read(form: HTMLFormElement, token: string): Call {
  const { method = '', base = '', path = '', token: needsToken, form: inForm } = form.dataset
  return callOf({
    method,
    base: root + base,
    path,
    values: fieldsOf(form).filter(([, value]) => value !== ''),
    inForm: inForm === 'true',
    token: needsToken === 'true' ? token : undefined,
    json: form.querySelector('textarea')?.value,
  })
}

/** Sends a request, and shows the answer, or that there is none. Returns the body of a 200. */
async function send({ method, url, headers, form, json }: Call, output: Element): Promise<string | undefined> {
  output.textContent = '…'
  try {
    const response = await fetch(url, {
      method,
      headers,
      ...(form && { body: new URLSearchParams(form.map(pair => [...pair])) }),
      ...(json !== undefined && { body: json }),
    })
    const { status, statusText, ok } = response
    const text = await response.text()
    const isJson = /json/.test(response.headers.get('content-type') ?? '') && text !== ''
    const shown = isJson ? JSON.stringify(JSON.parse(text), undefined, 2) : text
    output.textContent = `${status} ${statusText}\nx-request-id: ${response.headers.get('x-request-id')}\n\n${shown}`
    return ok ? text : undefined
  } catch {
    output.textContent = texts.unreachable ?? ''
    return undefined
  }
}

signIn.addEventListener('submit', async event => {
  event.preventDefault()
  const output = signIn.querySelector('output')!
  const login = { method: 'POST', base: root, path: '/users/login', values: fieldsOf(signIn), inForm: true }
  const token = await send(callOf(login), output)
  if (token === undefined) return
  credential.value = token
  output.textContent = texts.signedIn ?? ''
  signIn.reset()
})

for (const command of document.querySelectorAll('.curl'))
  command.textContent = command.textContent.replace('http://127.0.0.1:8080', root)

for (const form of document.querySelectorAll<HTMLFormElement>('form.try')) {
  const command = form.parentElement!.querySelector('.curl')!
  form.addEventListener('input', () => {
    command.textContent = toCurl(read(form, '$TOKEN'))
  })
  form.addEventListener('submit', event => {
    event.preventDefault()
    void send(read(form, credential.value), form.querySelector('output')!)
  })
  form.querySelector('.copy')!.addEventListener('click', async () => {
    const status = form.querySelector('[role=status]')!
    try {
      await navigator.clipboard.writeText(command.textContent)
      status.textContent = texts.copied ?? ''
    } catch {
      // Without HTTPS there is no clipboard.
      getSelection()?.selectAllChildren(command)
      status.textContent = texts.selected ?? ''
    }
  })
}

for (const hidden of document.querySelectorAll<HTMLElement>('[data-script]')) hidden.hidden = false
// A long list before the text.
if (matchMedia('(max-width: 60rem)').matches) document.querySelector('nav details')?.removeAttribute('open')
