/** What pages of other sites can make the browsers of their visitors do. */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { browserTest, openPage } from '../_helpers/browser.js'
import { signUpForm, startTestService } from '../_helpers/service.js'

browserTest(
  'a page of another site can’t sign its visitor up by a form, and a page of the same origin can',
  async t => {
    const service = await startTestService(t)
    const server = createServer((_, response) => response.writeHead(200, { 'content-type': 'text/html' }).end())
    await once(server.listen(0, '127.0.0.1'), 'listening')
    t.teardown(() => void server.close())
    // Another site than 127.0.0.1.
    const foreign = `http://localhost:${(server.address() as AddressInfo).port}`
    const exists = async (username: string) =>
      (await service.request('POST', '/users/existsByUsername', { body: { username } })).json
    for (const [from, inQuery, status] of [
      [foreign, false, 403],
      [foreign, true, 403],
      [`${service.http}/healthz`, false, 200],
    ] as const) {
      const { page } = await openPage(t, [foreign, service.http])
      await page.goto(from)
      const username = randomUUID()
      const {
        termsofusage: _,
        roles: [role],
        ...fields
      } = signUpForm({ username, nickname: username })
      const pairs = Object.entries({ ...fields, termsofusage: 'true', roles: role })
      const answered = page.waitForResponse(answer => answer.url().includes('/users/signup'))
      await page.evaluate(
        ({ pairs, action, inQuery }) => {
          const form = document.createElement('form')
          form.method = 'POST'
          form.action = inQuery ? `${action}?${new URLSearchParams(pairs as [string, string][])}` : action
          for (const [name, value] of inQuery ? [] : pairs) {
            const input = document.createElement('input')
            Object.assign(input, { name, value })
            form.append(input)
          }
          document.body.append(form)
          form.submit()
        },
        { pairs, action: `${service.http}/users/signup`, inQuery },
      )
      t.is((await answered).status(), status, `${from} ${inQuery}`)
      t.is(await exists(username), status === 200)
    }
  },
)
