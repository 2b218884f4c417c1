/** A clock of the database that was ahead, and is set back, leaves no lock, wait or age that outlasts its own length. */
import test from 'ava'
import { createClock } from '../_helpers/clock.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { signUpForm, startTestService } from '../_helpers/service.js'

const hour = 3600

for (const [ahead, seconds] of Object.entries({
  '20 min': 1200,
  '3 h': 3 * hour,
  '2 d': 48 * hour,
  '400 d': 9600 * hour,
}))
  test(`a clock that was ${ahead} ahead for some failures and a sign-up holds up nobody once it is corrected`, async t => {
    const url = await freshDatabase(t, { from: 'template0' })
    const clock = await createClock(url)
    await clock.pass(seconds)
    // The first start, so that the signing key lies ahead as well.
    const { request, signUp, login } = await startTestService(t, { DATABASE_URL: url })
    const { username } = await signUp('ROLE_CLIENT')
    const wrong = () =>
      request('POST', '/users/login', { query: { username, password: 'wrong password 1' }, once: true })
    for (let n = 0; n < 11; n++) await wrong()
    await clock.pass(-seconds)
    const locked = await wrong()
    t.is(locked.status, 429)
    t.true(Number(locked.headers.get('retry-after')) <= 900)
    const other = signUpForm()
    t.is((await request('POST', '/users/signup', { body: other, once: true })).status, 200)
    t.truthy(await login(other.username))
    t.deepEqual(await ask(url, 'SELECT count(*)::int AS users FROM users'), [{ users: 3 }])
  })
