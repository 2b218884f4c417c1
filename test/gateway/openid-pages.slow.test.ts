/** The pages of the sign-in in Chromium, with and without scripts, at the width of a small telephone. */
import { once } from 'node:events'
import { createServer } from 'node:http'
import test, { type ExecutionContext } from 'ava'
import type { Page } from 'playwright-core'
import { accessibilityViolations, browserTest, openPage } from '../_helpers/browser.js'
import { askFor, type Provider, registerClient, startProvider } from '../_helpers/provider.js'
import { password, teardownOfFile } from '../_helpers/service.js'

const provider = {} as Provider
const hooks = teardownOfFile()
test.before(async () => {
  Object.assign(provider, await startProvider(hooks))
  // The client, which redirects further to an origin of its own.
  const server = createServer(({ headers, url }, response) =>
    headers.host === client
      ? response.writeHead(302, { location: `${further}${url}` }).end()
      : response.writeHead(200, { 'content-type': 'text/html' }).end('<title>in'),
  )
  await once(server.listen(26_469, '127.0.0.1'), 'listening')
  hooks.teardown(async () => void server.close())
})

const client = '127.0.0.1:26469'
const further = 'http://localhost:26469'
const origins = () => [provider.issuer, `http://${client}`, further]

/** Checks that a page is readable, by axe and without scrolling sideways. */
async function check(t: ExecutionContext, page: Page, heading: string): Promise<void> {
  t.is(await page.textContent('h1'), heading)
  t.deepEqual(await accessibilityViolations(page), [])
  t.true(await page.evaluate('document.documentElement.scrollWidth <= document.documentElement.clientWidth'), heading)
}

const words = {
  en: {
    in: 'Sign in',
    forgotten: 'Forgot',
    recover: 'Recover your access',
    by: 'Answer security questions',
    out: 'Sign out?',
  },
  'pt-BR': {
    in: 'Entrar',
    forgotten: 'Esqueceu',
    recover: 'Recuperar o acesso',
    by: 'Responder a perguntas de segurança',
    out: 'Sair?',
  },
}

for (const locale of ['en', 'pt-BR'] as const)
  for (const colorScheme of ['light', 'dark'] as const)
    browserTest(`every page is accessible at 320 px in ${locale}, ${colorScheme}`, async t => {
      const { url } = await askFor(await registerClient(provider))
      const viewport = { width: 320, height: 640 }
      const { page, faults } = await openPage(t, origins(), { locale, colorScheme, viewport })
      const say = words[locale]
      await page.goto(url.href)
      t.is(await page.getAttribute('html', 'lang'), locale)
      await check(t, page, say.in)
      await page.fill('#username', 'nobody')
      await page.fill('#password', 'wrong')
      await page.keyboard.press('Enter')
      await page.waitForSelector('[role=alert]')
      await check(t, page, say.in)
      await page.click(`text=${say.forgotten}`)
      await check(t, page, say.recover)
      await page.click(`button:has-text("${say.by}")`)
      await check(t, page, say.by)
      await page.goBack()
      await page.fill('#username', 'nobody')
      await page.fill('#email', 'nobody@example.org')
      await page.keyboard.press('Enter')
      await page.waitForSelector('#key')
      t.deepEqual(await accessibilityViolations(page), [])
      t.deepEqual(faults, [])
    })

for (const javaScriptEnabled of [true, false])
  browserTest(`a user signs in by keyboard and out ${javaScriptEnabled ? 'with' : 'without'} JavaScript`, async t => {
    const tool = await registerClient(provider)
    const { username } = await provider.institution(await provider.organization())
    const { page, faults } = await openPage(t, origins(), { javaScriptEnabled, locale: 'en' })
    await page.goto((await askFor(tool)).url.href)
    // A page is loaded before its field has the focus.
    await page.waitForSelector('#username:focus')
    await page.keyboard.type(username)
    await page.keyboard.press('Tab')
    await page.keyboard.type(password)
    await page.keyboard.press('Enter')
    await page.waitForURL(/26469\/callback\?code=/)
    const [cookie] = await page.context().cookies(provider.issuer)
    t.like(cookie, { httpOnly: true, sameSite: 'Lax', path: '/' })

    // A client may send its request by a form, which browsers send without the cookie.
    await page.goto((await askFor(tool, { prompt: 'none' })).url.href)
    t.regex(page.url(), /26469\/callback\?code=/)

    await page.goto(`${provider.issuer}/oauth/logout?client_id=${tool.name}&post_logout_redirect_uri=${tool.uri}%3Fout`)
    t.is(await page.textContent('h1'), 'Sign out?')
    await page.keyboard.press('Tab')
    await page.keyboard.press('Enter')
    await page.waitForURL(/26469\/callback\?out/)
    t.deepEqual(await page.context().cookies(provider.issuer), [])
    t.deepEqual(faults, [])
  })

browserTest('a page of another site can neither sign its visitor in nor frame the page', async t => {
  const tool = await registerClient(provider)
  const { username } = await provider.institution(await provider.organization())
  const { page } = await openPage(t, origins())
  await page.goto(further)
  const { url } = await askFor(tool)
  const answered = page.waitForResponse(answer => answer.url().includes('/oauth/login'))
  await page.evaluate(
    ({ action, fields }) => {
      const form = Object.assign(document.createElement('form'), { method: 'POST', action })
      for (const [name, value] of Object.entries(fields))
        form.append(Object.assign(document.createElement('input'), { name, value }))
      document.body.append(form)
      form.submit()
    },
    { action: `${provider.issuer}/oauth/login${url.search}`, fields: { username, password } },
  )
  t.is((await answered).status(), 403)
  // The browser shows the answer before it goes elsewhere.
  await page.waitForURL(/\/oauth\/login/)
  t.deepEqual(await page.context().cookies(provider.issuer), [])

  await page.goto(further)
  await page.setContent(`<iframe src="${url.href.replaceAll('&', '&amp;')}"></iframe>`)
  const frame = page.frames()[1]
  t.notRegex((await frame?.textContent('body').catch(() => '')) ?? '', /Sign in|Entrar/)
})
