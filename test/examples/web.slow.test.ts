/** The page of a work package in docs/examples/web, from a different origin than the gateway. */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { ExecutionContext } from 'ava'
import { buildSync } from 'esbuild'
import { accessibilityViolations, browserTest, openPage } from '../_helpers/browser.js'
import { example } from '../_helpers/examples.js'
import { openMailbox } from '../_helpers/mailbox.js'
import { startTestService } from '../_helpers/service.js'

/** Serves the page to a service that allows its origin, and opens it in a browser. */
async function scene(t: ExecutionContext) {
  const mailbox = await openMailbox(t)
  let registry = ''
  const built = buildSync({ entryPoints: [example('web/page.ts')], bundle: true, format: 'esm', write: false })
  const script = built.outputFiles[0]!.text
  const server = createServer(async ({ url }, response) => {
    const [type, body] =
      url === '/page.js'
        ? ['text/javascript', script]
        : url === '/page.css'
          ? ['text/css', await readFile(example('web/page.css'))]
          : [
              'text/html',
              (await readFile(example('web/index.html'), 'utf8')).replaceAll('http://127.0.0.1:8080', registry),
            ]
    response.writeHead(200, { 'content-type': type }).end(body)
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => void server.close())
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const service = await startTestService(t, { AUTH_CORS_ORIGINS: origin, SMTP_URL: mailbox.url })
  registry = service.http
  const { page, faults } = await openPage(t, [origin, registry], { expected: /status of (404|422)/ })
  await page.goto(origin)
  return { service, mailbox, page, form: page.locator('form:not([hidden])'), faults }
}

const password = 'tuiuiú no brejo 8'

browserTest('the web page of the examples signs up, activates and logs in, and shows errors', async t => {
  const { service, page, form, faults } = await scene(t)
  const { providerKey } = await service.institution(await service.organization())
  const username = randomUUID()
  await page.getByRole('link', { name: 'Sign up' }).click()
  // The form of the login has such a field, too.
  await page.locator('#sign-up').getByLabel('Username').fill(username)
  await form.getByLabel('Nickname').fill('Ana')
  await form.locator('[name=password]').fill('12345678')
  await form.getByLabel('City').fill('Palmas')
  await form.getByLabel('State').fill('TO')
  await form.getByLabel('I accept').check()
  await form.getByRole('button', { name: 'Sign up' }).click()
  await page.locator('#sign-up [name=password][aria-invalid]').waitFor()
  t.deepEqual(await accessibilityViolations(page), [])
  await form.locator('[name=password]').fill(password)
  const { nickname } = await service.signUp('ROLE_CLIENT')
  await form.getByLabel('Nickname').fill(nickname)
  await form.getByRole('button', { name: 'Sign up' }).click()
  const [, free = ''] = /, (.*) is free/.exec((await page.locator('#sign-up-nickname-error').textContent()) ?? '') ?? []
  await form.getByLabel('Nickname').fill(free)
  await form.getByRole('button', { name: 'Sign up' }).click()

  await form.getByLabel('Activation key').fill(randomUUID())
  await form.getByRole('button', { name: 'Activate' }).click()
  await page.getByText('This key can’t activate your account').waitFor()
  await form.getByLabel('Activation key').fill(providerKey)
  await form.getByRole('button', { name: 'Activate' }).click()
  await page.getByText('ROLE_CLIENT, Palmas/TO').waitFor()
  await page.reload()
  await page.getByText(`Welcome, ${free}`).waitFor()
  const token = await service.login(username, password)
  await form.getByRole('button', { name: 'Log out everywhere' }).click()

  await form.getByLabel('Username').fill(username)
  await form.locator('[name=password]').fill('wrong')
  await form.getByRole('button', { name: 'Log in' }).click()
  await page.getByText('Username or password is wrong.').waitFor()
  t.is((await service.request('GET', '/users/me', { token })).status, 500, 'all sessions have ended')
  await form.locator('[name=password]').fill(password)
  await form.getByRole('button', { name: 'Log in' }).click()
  await page.getByText(`Welcome, ${free}`).waitFor()
  t.deepEqual(faults, [])
})

browserTest('the web page of the examples recovers an account by e-mail', async t => {
  const { service, mailbox, page, form, faults } = await scene(t)
  const email = `${randomUUID()}@example.org`
  const { username } = await service.signUp('ROLE_CLIENT', { email })
  const enterKey = async () => {
    await page.locator('#recover').getByLabel('Username').fill(username)
    await form.getByLabel('E-mail').fill(email)
    await form.getByRole('button', { name: 'Send me a key' }).click()
    // Notices come between.
    let key: string | undefined
    while (!key) key = /: (\w{8})$/m.exec((await mailbox.nextEmail(email)).text ?? '')?.[1]
    await form.getByLabel('Key', { exact: true }).fill(key)
  }
  await page.getByRole('link', { name: 'Forgot' }).click()
  await enterKey()
  await form.getByLabel('New password').fill('12345678')
  await form.getByRole('button', { name: 'Set the password' }).click()
  // The key is used, and needn't be typed again.
  await form.locator('[name=key]:disabled').waitFor()
  // Another one can be.
  await page.goBack()
  await page.goForward()
  await enterKey()
  await form.getByLabel('New password').fill(password)
  await form.getByRole('button', { name: 'Set the password' }).click()
  await form.getByRole('heading', { name: 'Activate your account' }).waitFor()
  t.truthy(await service.login(username, password))
  t.deepEqual(await accessibilityViolations(page), [])
  t.deepEqual(
    faults.filter(fault => !fault.includes('400')),
    [],
  )
})
