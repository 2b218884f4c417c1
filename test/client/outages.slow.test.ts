/** Verifiers during faults: no registry, no sealing, a wrong clock, a restored registry. */
import test from 'ava'
import type { Warning } from '../../proto/client/index.js'
import { openLocal } from '../_helpers/administration.js'
import { freshDatabase, hold, installed } from '../_helpers/database.js'
import { type SignedUp, serviceForFile, startTestService, teardownOfFile } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { spawnService } from '../_helpers/spawned.js'
import { forge, headerOf, nowInSeconds } from '../_helpers/tokens.js'
import { createNetwork, outcome, paths, revoke, verifierOf, withClocks } from '../_helpers/verifiers.js'
import { waitForValue } from '../_helpers/wait.js'

// These tests move the clock of this process.
const serial = test.serial

const service = serviceForFile(() => ({ AUTH_LIMIT_FACTOR: '1000' }))
/** Another process of it, whose clock the tests don’t move. */
let issuer = ''
const hooks = teardownOfFile()
serial.before(async () => {
  const { http } = await spawnService(hooks, { DATABASE_URL: service.env.DATABASE_URL!, AUTH_LIMIT_FACTOR: '1000' })
  issuer = http
})

serial('while the registry is unavailable for 50 s, valid tokens are accepted and revoked ones refused', async t => {
  const network = createNetwork()
  const verifier = await verifierOf(t, service, { url: issuer, fetch: network.fetch })
  const users: SignedUp[] = []
  for (let number = 0; number < 4; number++) users.push(await service.institution(await service.organization()))
  const [seen, unseen, revoked, late] = users.map(({ token }) => token) as [string, string, string, string]
  t.is(await outcome(verifier, seen), 'signature')
  t.is(await outcome(verifier, late), 'signature')
  await revoke(issuer, revoked)
  await waitForValue(() => outcome(verifier, revoked), 'INVALID_TOKEN')

  network.away(true)
  await revoke(issuer, late)
  await withClocks({ wall: 45_000, monotonic: 45_000 }, async () => {
    t.is((await verifier.verify(seen)).source, 'cache')
    t.true(verifier.ageMs >= 45_000)
    t.is(await outcome(verifier, unseen), 'signature')
    t.is(await outcome(verifier, revoked), 'INVALID_TOKEN')
    // Its revocation isn’t known yet.
    t.is(await outcome(verifier, late), 'cache')
  })
  await withClocks({ wall: 61_000, monotonic: 61_000 }, async () => {
    for (const token of [seen, unseen, revoked, late]) t.is(await outcome(verifier, token), 'UNAVAILABLE')
    t.is(await outcome(verifier, 'x'), 'INVALID_TOKEN')
  })
  network.away(false)
  await waitForValue(() => outcome(verifier, late), 'INVALID_TOKEN')
  t.is(await outcome(verifier, seen), 'cache')
  t.true(verifier.ageMs < 20_000)
})

serial('while no event is sealed the age grows, and beyond the limit the verifier asks the registry', async t => {
  const network = createNetwork()
  const verifier = await verifierOf(t, service, { url: issuer, fetch: network.fetch, maxStaleMs: 11_000 })
  const age = () => verifier.ageMs
  const { token } = await service.institution(await service.organization())
  const other = await service.institution(await service.organization())
  t.is(await outcome(verifier, token), 'signature')
  const sealer = await hold(t, service.env.DATABASE_URL!)
  await sealer.query('SELECT pg_advisory_lock(7264004)')
  await revoke(issuer, other.token)
  // Polls are still answered, but as_of doesn't advance.
  await waitForValue(age, ms => ms > 11_000)
  t.is(await outcome(verifier, token), 'registry')
  t.is(await outcome(verifier, other.token), 'INVALID_TOKEN')
  // A verifier that starts now has the same state.
  const another = await verifierOf(t, service, { url: issuer, maxStaleMs: 11_000 })
  t.true(another.ageMs > 11_000, String(another.ageMs))
  t.is(await outcome(another, other.token), 'INVALID_TOKEN')
  await sealer.query('SELECT pg_advisory_unlock(7264004)')
  await waitForValue(age, ms => ms < 11_000)
  t.is(await outcome(verifier, token), 'cache')
  t.is(await outcome(verifier, other.token), 'INVALID_TOKEN')
})

serial('a verifier whose clock is off by an hour refuses no valid token and accepts no expired one', async t => {
  const network = createNetwork()
  const { token } = await service.institution(await service.organization())
  const expired = await forge(service, token, { exp: nowInSeconds() - 5, iat: nowInSeconds() - 3_600 })
  const brief = await forge(service, token, { exp: nowInSeconds() + 1_800 })
  const options = { url: issuer, fetch: network.fetch }
  const verifier = await verifierOf(t, service, options)
  const judged = () => outcome(verifier, brief)
  const local = (value: string) => /signature|cache/.test(value)
  for (const by of [3_600_000, -3_600_000]) {
    await withClocks({ wall: by }, async () => {
      // A clock ahead looks like a suspended machine: the verifier asks the registry until the next response of the feed.
      t.regex(await outcome(verifier, brief), by > 0 ? /registry/ : /signature|cache/)
      t.is(await outcome(verifier, expired), 'INVALID_TOKEN')
      await waitForValue(judged, local)
      t.is(await outcome(verifier, expired), 'INVALID_TOKEN')
      const another = await verifierOf(t, service, options)
      t.is(await outcome(another, brief), 'signature')
      t.is(await outcome(another, expired), 'INVALID_TOKEN')
    })
    await waitForValue(judged, local)
  }
  t.is(await outcome(verifier, token), 'signature')
})

serial('if keys can’t be refreshed, they are used for a minute beyond their max-age, and no longer', async t => {
  const network = createNetwork()
  const verifier = await verifierOf(t, service, { url: issuer, fetch: network.fetch })
  const users: SignedUp[] = []
  for (let number = 0; number < 4; number++) users.push(await service.institution(await service.organization()))
  const [seen, unseen, ...revoked] = users.map(({ token }) => token) as [string, string, ...string[]]
  t.is(await outcome(verifier, seen), 'signature')
  const reads = () => network.calls.filter(path => path === paths.keys).length
  network.broken.add(paths.keys)
  const before = reads()
  const after = (ms: number, work: () => Promise<void>) =>
    withClocks({ wall: ms, monotonic: ms }, async () => {
      // Ends the poll, whose answer makes the revocations recent.
      await revoke(issuer, revoked.pop()!)
      await waitForValue(
        () => verifier.ageMs,
        value => value < 20_000,
      )
      await work()
    })
  // The registry says 300 s.
  await after(330_000, async () => {
    t.is(await outcome(verifier, seen), 'cache')
    t.is(await outcome(verifier, unseen), 'signature')
  })
  await after(390_000, async () => {
    for (const token of [seen, unseen]) t.is(await outcome(verifier, token), 'registry')
    await waitForValue(reads, value => value > before)
    network.broken.clear()
    await waitForValue(
      () => outcome(verifier, unseen),
      value => /cache|signature/.test(value),
    )
  })
  t.true(reads() - before < 10, String(reads() - before))
})

serial(
  'after a suspension of the machine, in which only the wall clock advances, the verifier asks the registry',
  async t => {
    const network = createNetwork()
    const verifier = await verifierOf(t, service, { url: issuer, fetch: network.fetch })
    const { token } = await service.institution(await service.organization())
    t.is(await outcome(verifier, token), 'signature')
    await withClocks({ wall: 90_000 }, async () => {
      t.is(await outcome(verifier, token), 'registry')
      t.true(network.calls.includes(paths.verify))
    })
  },
)

serial('a restore of the registry is detected, and its state applies from then on', async t => {
  const url = await freshDatabase(t, { from: installed })
  const ends: (() => Promise<void>)[] = []
  const yesterday = await startTestService({ teardown: end => void ends.push(end) }, { DATABASE_URL: url })
  const key = await serviceKey(yesterday, ['tokens.watch'])
  const revokedBefore = await yesterday.institution(await yesterday.organization())
  const revokedAfter = await yesterday.institution(await yesterday.organization())
  const other = await yesterday.institution(await yesterday.organization())
  await revoke(yesterday.http, revokedBefore.token)
  for (const end of ends.reverse()) await end()
  const copy = await freshDatabase(t, { from: new URL(url).pathname.slice(1) })

  const today = await startTestService(t, { DATABASE_URL: url })
  const network = createNetwork()
  const warnings: Warning['code'][] = []
  const onWarning = ({ code }: Warning) => void warnings.push(code)
  const verifier = await verifierOf(t, today, { key, fetch: network.fetch, onWarning })
  t.is(await outcome(verifier, revokedBefore.token), 'INVALID_TOKEN')
  t.is(await outcome(verifier, other.token), 'signature')
  await revoke(today.http, revokedAfter.token)
  await waitForValue(() => outcome(verifier, revokedAfter.token), 'INVALID_TOKEN')
  // The backup still has the key that signed all of them.
  const { kid } = headerOf(other.token)
  await (await openLocal(t, today, { reason: 'a test' })).retireSigningKey({ kid, confirm: kid })
  await waitForValue(() => outcome(verifier, other.token), 'INVALID_TOKEN')
  t.deepEqual(warnings, [])

  const restored = await startTestService(t, { DATABASE_URL: copy })
  network.redirect(restored.http)
  await waitForValue(
    () => warnings,
    value => value.includes('CURSOR_LOST'),
  )
  await waitForValue(() => outcome(verifier, revokedAfter.token), 'signature')
  t.is(await outcome(verifier, revokedBefore.token), 'INVALID_TOKEN')
  t.regex(await outcome(verifier, other.token), /cache|signature/)
  await revoke(restored.http, other.token)
  await waitForValue(() => outcome(verifier, other.token), 'INVALID_TOKEN')
  t.is(warnings.filter(code => code === 'CURSOR_LOST').length, 1)
})

serial('tokens of a key that was retired at once are refused, and those of the next key accepted', async t => {
  const verifier = await verifierOf(t, service)
  // This one gets a token of the next key before it knows of the retirement.
  const other = await verifierOf(t, service)
  const { token, username } = await service.institution(await service.organization())
  const { kid } = headerOf(token)
  t.is(await outcome(verifier, token), 'signature')
  await (await openLocal(t, service, { reason: 'a test' })).retireSigningKey({ kid, confirm: kid })
  const startedAt = performance.now()
  const next = await service.login(username)
  t.not(headerOf(next).kid, kid)
  t.regex(await outcome(other, next), /signature|registry/)
  await waitForValue(() => outcome(verifier, token), 'INVALID_TOKEN')
  // Less than a poll waits without a change.
  t.true(performance.now() - startedAt < 9_000)
  t.regex(await outcome(verifier, next), /signature|registry/)
  t.is(await outcome(verifier, await forge(service, next, {}, { kid: 'unknown' })), 'INVALID_TOKEN')
})
