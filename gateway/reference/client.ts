/** The script of the reference: signs in, tries calls, and copies them as commands of curl. It runs in browsers. */
import { type Call, toCurl } from './curl.js'

const texts = document.body.dataset
const signIn = document.getElementById('sign-in') as HTMLFormElement
/** A token or the key of a service, in this page only. */
const credential = document.getElementById('credential') as HTMLInputElement

const fieldsOf = (form: HTMLFormElement) =>
  [...form.querySelectorAll('input')].map(({ name, value }) => [name, value] as const)

/** The call that a form describes. */
function callOf(form: HTMLFormElement, authorization: string): Call {
  const { method = '', base = '', path = '', token, body } = form.dataset
  const fields = fieldsOf(form)
  const value = (name: string) => fields.find(([each]) => each === name)?.[1] ?? ''
  const filled = path.replace(/\{(\w+)\}/, (_, name) => encodeURIComponent(value(name)))
  const given = fields.filter(([name, value]) => value !== '' && !path.includes(`{${name}}`))
  const query = body === 'form' || given.length === 0 ? '' : `?${new URLSearchParams(given.map(pair => [...pair]))}`
  const json = form.querySelector('textarea')?.value
  return {
    method,
    url: location.origin + base + filled + query,
    ...(token === 'true' && authorization !== '' && { authorization: `Bearer ${authorization}` }),
    ...(body === 'form' && { form: given }),
    ...(json !== undefined && { json }),
  }
}

/** Sends a request, and shows the answer, or that there is none. Returns the body of a 200. */
async function send({ method, url, authorization, form, json }: Call, output: Element): Promise<string | undefined> {
  output.textContent = '…'
  try {
    const response = await fetch(url, {
      method,
      headers: {
        ...(authorization && { authorization }),
        ...(json !== undefined && { 'content-type': 'application/json' }),
      },
      ...(form && { body: new URLSearchParams(form.map(pair => [...pair])) }),
      ...(json !== undefined && { body: json }),
    })
    const { status, statusText, headers, ok } = response
    const text = await response.text()
    const isJson = /json/.test(headers.get('content-type') ?? '') && text !== ''
    const shown = isJson ? JSON.stringify(JSON.parse(text), undefined, 2) : text
    output.textContent = `${status} ${statusText}\nx-request-id: ${headers.get('x-request-id')}\n\n${shown}`
    return ok ? text : undefined
  } catch {
    output.textContent = texts.unreachable ?? ''
    return undefined
  }
}

signIn.addEventListener('submit', async event => {
  event.preventDefault()
  const output = signIn.querySelector('output')!
  const token = await send({ method: 'POST', url: `${location.origin}/users/login`, form: fieldsOf(signIn) }, output)
  if (token === undefined) return
  credential.value = token
  output.textContent = texts.signedIn ?? ''
  signIn.reset()
})

for (const form of document.querySelectorAll<HTMLFormElement>('form.try')) {
  const command = form.parentElement!.querySelector('.curl')!
  command.textContent = command.textContent.replace('http://127.0.0.1:8080', location.origin)
  form.addEventListener('input', () => {
    command.textContent = toCurl(callOf(form, '$TOKEN'))
  })
  form.addEventListener('submit', event => {
    event.preventDefault()
    void send(callOf(form, credential.value), form.querySelector('output')!)
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
