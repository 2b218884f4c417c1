/** The session client in browsers, and beside a service that is killed. */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import test, { type ExecutionContext } from 'ava'
import { buildSync } from 'esbuild'
import type { Page } from 'playwright-core'
import { createSession, type Session } from '../../proto/client/session/index.js'
import { browserTest, openPage } from '../_helpers/browser.js'
import { freePort } from '../_helpers/relay.js'
import { createRequest, password, serviceWithClock, signUpForm } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { root } from '../_helpers/versions.js'
import { waitForValue } from '../_helpers/wait.js'

const clients = readFileSync(join(root, 'docs/clients.md'), 'utf8')
/** The block of docs/clients.md that has a text. */
const blockWith = (text: string) =>
  [...clients.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, block = '']) => block).find(block => block.includes(text))!

/** What the scripts of the tests offer to these. */
interface App {
  readonly session: Session
  readonly calls: string[]
  readonly reported: (string | undefined)[]
  readonly get: (times: number) => Promise<number[]>
}
declare const app: App

/** The script of an app: `prelude` runs before it. */
function appFor(registry: string, prelude: string, then = ''): string {
  const contents = `
    import { createSession } from './index.js'
    ${blockWith('indexedDB')
      .replace(/^import.*$/gm, '')
      .replace(/: [A-Z]\w+(<[^=;]*?>)?(?= =|,|\))/g, '')}
    const app = (globalThis.app = { calls: [], reported: [] })
    app.session = createSession({
      url: '${registry}',
      store,
      fetch(input, init) {
        app.calls.push(new URL(input.url ?? input).pathname)
        return fetch(input, init)
      },
      onChange: (user, cause) => app.reported.push(user?.username ?? cause.code),
    })
    const get = () => app.session.fetch('${registry}/users/me').then(({ status }) => status, ({ code }) => code)
    app.get = times => Promise.all(Array.from({ length: times }, get))
    ${then}`
  const stdin = { contents, resolveDir: join(root, 'dist/proto/client/session'), loader: 'ts' as const }
  return `${prelude}\n${buildSync({ stdin, bundle: true, write: false, format: 'esm' }).outputFiles[0]!.text}`
}

const answerMessages = `addEventListener('message', async ({ data, ports: [port] }) => port.postMessage(await app.get(data)))`

/** A site with an app and its service worker, and a registry with a clock that allows its origin. */
async function site(t: ExecutionContext, prelude = '') {
  let registry = ''
  const server = createServer(({ url }, response) => {
    const scripts: Record<string, string> = { '/app.js': '', '/worker.js': answerMessages }
    const then = scripts[url!]
    const [type, body] =
      then === undefined
        ? ['text/html', '<!doctype html><link rel="icon" href="data:,"><script type="module" src="/app.js"></script>']
        : ['text/javascript', appFor(registry, prelude, then)]
    response.writeHead(200, { 'content-type': type }).end(body)
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => void server.close())
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const service = await serviceWithClock(t, { AUTH_CORS_ORIGINS: origin, AUTH_LIMIT_FACTOR: '1000' })
  registry = service.http
  const { page, faults } = await openPage(t, [origin, registry], { expected: /status of (403|500)/ })
  const open = async (page: Page) => {
    await page.goto(origin)
    await page.waitForFunction('globalThis.app !== undefined')
    return page
  }
  const { token, username } = await service.signUp('ROLE_INSTITUTION')
  const { activationkey } = await service.organization()
  await service.request('POST', '/users/activate', { token, query: { username, activationkey } })
  const copies = async () => {
    const { json } = await service.request('GET', '/users/me/events', { token: await service.login(username) })
    return json.events.filter(({ action }: { action: string }) => action === 'session.end').length
  }
  return { service, username, page, open, faults, copies }
}

const count = (page: Page, path: string) => page.evaluate(path => app.calls.filter(each => each === path).length, path)
const signIn = (page: Page, username: string) =>
  page.evaluate(credentials => app.session.signIn(credentials).then(({ username }) => username), { username, password })

for (const [locks, prelude] of [
  ['Web Locks', ''],
  ['no Web Locks', `Object.defineProperty(navigator, 'locks', { value: undefined })`],
] as const)
  browserTest(
    `two tabs and a service worker with ${locks} stay signed in by one store, and sign out together`,
    async t => {
      const { service, username, page, open, faults, copies } = await site(t, prelude)
      await open(page)
      t.is(await page.evaluate('navigator.locks === undefined'), prelude !== '')
      t.is(await signIn(page, username), username)
      const other = await open(await page.context().newPage())
      await page.evaluate(async () => {
        await navigator.serviceWorker.register('/worker.js', { type: 'module' })
        await navigator.serviceWorker.ready
      })
      const inWorker = () =>
        page.evaluate(async () => {
          const { active } = await navigator.serviceWorker.ready
          const { port1, port2 } = new MessageChannel()
          active!.postMessage(20, [port2])
          return new Promise<number[]>(resolve => {
            port1.onmessage = ({ data }) => resolve(data)
          })
        })
      const inTab = (tab: Page) => tab.evaluate(() => app.get(20))
      for (let round = 1; round <= 3; round++) {
        const statuses = (await Promise.all([inTab(page), inTab(other), inWorker()])).flat()
        t.deepEqual(statuses, Array(60).fill(200))
        for (const tab of [page, other]) {
          const refreshes = await count(tab, '/oauth/token')
          // Without locks a tab refreshes again if another one did meanwhile.
          t.true(prelude === '' ? refreshes === round : refreshes >= round)
        }
        await service.clock.pass(3601)
      }
      t.is(await copies(), 0)
      await page.evaluate(() => app.session.signOut())
      await waitForValue(() => other.evaluate(() => app.reported), [username, 'SIGNED_OUT'])
      t.deepEqual((await Promise.all([inTab(other), inWorker()])).flat(), Array(40).fill(403))
      t.deepEqual(faults, [])
    },
  )

for (const days of [-1, 1])
  browserTest(`the clock of a device may be wrong by ${days} day, and be set`, async t => {
    const { username, page, open, faults } = await site(t)
    await page.addInitScript(`
      let skew = ${days} * 86400000, ahead = 0
      const RealDate = Date, now = performance.now.bind(performance)
      globalThis.Date = class extends RealDate {
        constructor(...given) { given.length === 0 ? super(Date.now()) : super(...given) }
        static now() { return RealDate.now() + skew }
      }
      performance.now = () => now() + ahead
      globalThis.set = days => void (skew = days * 86400000)
      globalThis.pass = seconds => void (ahead += seconds * 1000)`)
    await open(page)
    await signIn(page, username)
    const get = () => page.evaluate(() => app.get(2))
    const refreshes = () => count(page, '/oauth/token')
    for (let n = 0; n < 2; n++) t.deepEqual([await get(), await refreshes()], [[200, 200], 1])
    // A minute before the end, not earlier.
    await page.evaluate('pass(3500)')
    t.deepEqual([await get(), await refreshes()], [[200, 200], 1])
    await page.evaluate('pass(60)')
    t.deepEqual([await get(), await refreshes()], [[200, 200], 2])
    await page.evaluate(`set(${days - 1})`)
    t.deepEqual([await get(), await refreshes()], [[200, 200], 2])
    await page.evaluate(`set(${days + 1})`)
    for (let n = 0; n < 2; n++) t.deepEqual(await get(), [200, 200])
    // At most one more than needed.
    t.true((await refreshes()) <= 3)
    t.is(await count(page, '/users/me'), 14)
    t.deepEqual(faults, [])
  })

test.serial('a service that is killed during refreshes, again and again, signs no user out', async t => {
  const env = { AUTH_HTTP_ADDRESS: `127.0.0.1:${await freePort()}` }
  let service = await spawnService(t, env)
  const items = new Map<string, string>()
  const store = {
    getItem: async (key: string) => items.get(key),
    setItem: async (key: string, text: string) => items.set(key, text),
    removeItem: async (key: string) => items.delete(key),
  }
  const reported: (string | undefined)[] = []
  const tabs = [1, 2].map(() =>
    createSession({ url: service.http, store, onChange: (user, cause) => reported.push(user ? 'user' : cause?.code) }),
  )
  const { username, ...form } = signUpForm()
  await tabs[0]!.signUp({ ...form, username, nickname: randomUUID(), password })
  const { databaseUrl: DATABASE_URL, dataDir: AUTH_DATA_DIR } = service
  let ended = false
  let answered = 0
  const codes = new Set<string>()
  const use = async (tab: Session) => {
    for (let last: string | undefined; !ended; await sleep(5)) {
      try {
        // One refreshes each time; without locks two can't do so faster than the answers arrive.
        last = await tab.token(tab === tabs[0] ? last : undefined)
        answered++
      } catch (error) {
        codes.add((error as { code: string }).code)
      }
    }
  }
  const using = tabs.map(use)
  for (let kills = 0; kills < 4; kills++) {
    const before = answered
    await waitForValue(
      () => answered,
      value => value > before + 20,
    )
    service.child.kill('SIGKILL')
    await service.ended
    service = await spawnService(t, { ...env, DATABASE_URL, AUTH_DATA_DIR })
  }
  const before = answered
  await waitForValue(
    () => answered,
    value => value > before + 20,
  )
  ended = true
  await Promise.all(using)
  codes.delete('OFFLINE')
  t.deepEqual([...codes], [])
  t.deepEqual(
    tabs.map(({ user }) => user?.username),
    [username, username],
  )
  t.false(reported.slice(2).includes('SIGNED_OUT') || reported.includes('ENDED'))
  const request = createRequest(service.http)
  t.is((await request('GET', '/users/me', { token: await tabs[1]!.token() })).status, 200)
})
