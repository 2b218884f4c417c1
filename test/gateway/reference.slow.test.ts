/** The reference in a browser. */
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { promisify } from 'node:util'
import { accessibilityViolations, browserTest, openPage } from '../_helpers/browser.js'
import { password, serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()

const pages = [
  '/',
  ...['1.0.0', '1.0.2'].flatMap(revision => ['en', 'pt-BR'].map(locale => `/docs/${revision}/${locale}`)),
]

for (const colorScheme of ['light', 'dark'] as const) {
  browserTest(
    `no page has an error, an accessibility violation or a request to another host, in ${colorScheme} colors`,
    async t => {
      // The axe-core library looks at all colors of a page for seconds.
      t.timeout(300_000)
      for (const [locale, paths] of [
        ['en', pages],
        ['pt-BR', ['/']],
      ] as const) {
        const { page, faults } = await openPage(t, [service.http], { colorScheme, locale })
        for (const path of paths) {
          await page.goto(service.http + path)
          for (const each of await page.locator('details').all()) await each.evaluate('(each) => { each.open = true }')
          t.deepEqual(await accessibilityViolations(page), [], path)
        }
        t.deepEqual(faults, [])
      }
    },
  )
}

browserTest('a reader signs in and calls me in the page', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const { page, faults } = await openPage(t, [service.http], { expected: /status of (403|404)/ })
  await page.goto(`${service.http}/docs/1.0.0/pt-BR`)
  const me = page.locator('#getMe')
  const result = me.locator('output')
  await me.getByText('Experimentar').click()
  await me.getByRole('button', { name: 'Enviar' }).click()
  await result.getByText('ACCESS_DENIED').waitFor()

  const session = page.locator('#session')
  await session.getByLabel('Nome de usuário').fill(username)
  await session.getByLabel('Senha').fill('wrong')
  await session.getByRole('button', { name: 'Entrar' }).click()
  await session.getByText('INVALID_CREDENTIALS').waitFor()
  await session.getByLabel('Senha').fill(password)
  const login = page.waitForRequest(/users\/login/)
  await session.getByRole('button', { name: 'Entrar' }).click()
  await session.getByText('Sessão iniciada.').waitFor()
  t.is(new URL((await login).url()).search, '', 'the password isn’t in the URL')
  t.false((await session.innerText()).includes('eyJ'), 'the token isn’t shown')

  const request = page.waitForRequest(/users\/me/)
  await me.getByRole('button', { name: 'Enviar' }).click()
  t.is(new URL((await request).url()).pathname, '/1.0.0/users/me')
  await result.getByText(`"username": "${username}"`).waitFor()
  t.deepEqual(faults, [])
})

browserTest(
  'below a path prefix of a proxy, every page has its style, script and links, and calls are sent there',
  async t => {
    const { username } = await service.signUp('ROLE_CLIENT')
    const proxy = createServer(({ method, url = '', headers }, response) => {
      if (!url.startsWith('/auth/')) return void response.writeHead(404).end()
      const to = request(service.http + url.slice('/auth'.length), { method, headers }, answer => {
        response.writeHead(answer.statusCode!, answer.headers)
        answer.pipe(response)
      })
      response.req.pipe(to)
    })
    await once(proxy.listen(0, '127.0.0.1'), 'listening')
    t.teardown(() => proxy.close())
    const origin = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`
    const { page, faults } = await openPage(t, [origin])
    for (const path of ['/docs', ...pages]) {
      await page.goto(`${origin}/auth${path}`)
      t.not(await page.evaluate('getComputedStyle(document.body).maxWidth'), 'none', path)
      const links: string[] = await page.locator('a').evaluateAll('all => all.map(each => each.href.split("#")[0])')
      for (const link of new Set(links)) t.is((await fetch(link)).status, 200, `${link} in ${path}`)
      if (path === '/') continue
      await page.locator('#sign-in [name=username]').fill(username)
      await page.locator('#sign-in [name=password]').fill(password)
      await page.locator('#sign-in button').click()
      await page
        .locator('#sign-in output')
        .getByText(/^(Signed in|Sessão iniciada)\.$/)
        .waitFor()
      await page.locator('#getMe summary').click()
      const sent = page.waitForRequest(/users\/me/)
      await page.locator('#getMe form button:not(.copy)').click()
      const revision = /1\.0\.\d/.exec(path)?.[0] ?? '1.0.2'
      t.is((await sent).url(), `${origin}/auth/${revision}/users/me`)
      await page.locator('#getMe output').getByText(`"username": "${username}"`).waitFor()
      t.true((await page.locator('#getMe .curl').innerText()).includes(`${origin}/auth/${revision}/users/me`))
    }
    t.deepEqual(faults, [])
  },
)

browserTest('a reader can enter a token, and Enter doesn’t reload the page', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const { page, faults } = await openPage(t, [service.http])
  await page.goto(`${service.http}/docs/1.0.2/en`)
  const me = page.locator('#getMe')
  await me.getByText('Try it').click()
  await page.getByLabel('Token, or key of a service').fill(token)
  await page.keyboard.press('Enter')
  await me.getByRole('button', { name: 'Send' }).click()
  await me.locator('output').getByText(`"username": "${username}"`).waitFor()
  t.is(page.url(), `${service.http}/docs/1.0.2/en`)
  t.deepEqual(faults, [])
})

browserTest('a reader can sign in and call me by keyboard only', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const { page, faults } = await openPage(t, [service.http])
  await page.goto(`${service.http}/docs`)
  await page.keyboard.press('Tab')
  t.is(await page.evaluate('document.activeElement.textContent'), 'Skip to the content')
  await page.keyboard.press('Enter')
  // Past the links of the introduction.
  for (let times = 0; times < 10; times++) {
    await page.keyboard.press('Tab')
    if (await page.evaluate('document.activeElement.name === "username"')) break
  }
  await page.keyboard.type(username)
  await page.keyboard.press('Tab')
  await page.keyboard.type(password)
  await page.keyboard.press('Enter')
  await page.getByText('Signed in.').waitFor()
  // To the operation, with only the Tab key.
  for (let times = 0; times < 200; times++) {
    await page.keyboard.press('Tab')
    if (await page.evaluate('document.activeElement.matches("#getMe summary")')) break
  }
  const outline = await page.evaluate('getComputedStyle(document.activeElement).outlineStyle')
  t.not(outline, 'none', 'the focus is visible')
  await page.keyboard.press('Enter')
  await page.keyboard.press('Tab')
  await page.keyboard.press('Enter')
  await page.locator('#getMe output').getByText(`"username": "${username}"`).waitFor()
  t.deepEqual(faults, [])
})

browserTest('a call can be copied as a curl command with the same effect', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT', { nickname: `d'Ávila $(id) ${Date.now()}` })
  const { page } = await openPage(t, [service.http], { permissions: ['clipboard-read', 'clipboard-write'] })
  await page.goto(`${service.http}/docs/1.0.2/en`)
  await page.locator('#introduction').getByText(`URL=${service.http}/1.0.2`).waitFor()
  const copied = async (operation: string) => {
    await page.locator(`#${operation} .copy`).click()
    await page.locator(`#${operation}`).getByText('Copied.').waitFor()
    return (await page.evaluate('navigator.clipboard.readText()')) as string
  }
  const run = async (command: string) =>
    (await promisify(execFile)('sh', ['-c', command], { env: { PATH: process.env.PATH, TOKEN: token } })).stdout

  t.like(JSON.parse(await run(await copied('getMe'))), { username })
  await page.locator('#login summary').click()
  await page.locator('#login [name=username]').fill(username)
  await page.locator('#login [name=password]').fill(password)
  t.regex(await run(await copied('login')), /^eyJ/)
  const nickname = (await service.request('GET', '/users/me', { token })).json.nickname
  await page.locator('#existsByNickname summary').click()
  await page.locator('#existsByNickname [name=nickname]').fill(nickname)
  t.is(await run(await copied('existsByNickname')), 'true')
  await page.locator('#updateMe summary').click()
  await page.locator('#updateMe textarea').fill(JSON.stringify({ record: { city: "Olho d'Água" } }))
  t.like(JSON.parse(await run(await copied('updateMe'))), { city: "Olho d'Água" })
  await page.locator('#getUser summary').click()
  await page.locator('#getUser [name=username]').fill(username)
  t.like(JSON.parse(await run(await copied('getUser'))), { username })
})

browserTest('without JavaScript the reference is readable, and has no controls without a function', async t => {
  const { page, faults } = await openPage(t, [service.http], { javaScriptEnabled: false })
  await page.goto(`${service.http}/docs/1.0.2/en`)
  for (const text of [
    'Exchanges username and password for a token.',
    "Username and password don't match.",
    'Enter them again, or recover the account.',
    "curl -sS 'http://127.0.0.1:8080/1.0.2/users/login'",
  ])
    t.true(await page.getByText(text).first().isVisible(), text)
  t.true(await page.getByRole('link', { name: 'POST /users/login' }).isVisible())
  for (const control of await page.locator('form, input, button, textarea').all()) t.false(await control.isVisible())
  t.deepEqual(faults, [])
})

browserTest('on a narrow screen no content is cut off, and the table of contents is closed', async t => {
  const { page } = await openPage(t, [service.http], { viewport: { width: 320, height: 640 } })
  for (const path of pages) {
    await page.goto(service.http + path)
    for (const each of await page.locator('form details').all()) await each.evaluate('(each) => { each.open = true }')
    t.is(await page.evaluate('document.documentElement.scrollWidth'), 320, path)
    t.is(await page.locator('nav details[open]').count(), 0)
  }
})
