/** The folder of e-mails if there is no mail server. */
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import { createRequest, password } from '../_helpers/service.js'
import { serviceEnv, spawnService } from '../_helpers/spawned.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

test('when the folder is full, e-mails wait, no partial file remains, and the log gives the cause once', async t => {
  const env = await serviceEnv(t)
  // A file can be created, but not written to.
  const service = await spawnService(t, env, { before: 'ulimit -f 0' })
  const request = createRequest(service.http)
  for (const number of [1, 2, 3]) {
    const username = `(11)98765-432${number}`
    const form = { username, nickname: `Ana ${number}`, password, state: 'SP', city: 'Bauru', termsofusage: true }
    const email = `ana${number}@example.org`
    const signedUp = await request('POST', '/users/signup', { body: { ...form, email, roles: ['ROLE_CLIENT'] } })
    t.is(signedUp.status, 200, signedUp.text)
    t.is((await request('POST', '/forgotpasswords/sendkeybyemail', { body: { username, email } })).status, 200)
  }
  const lines = (text: string) =>
    service
      .output()
      .split('\n')
      .filter(line => line.includes(text))
  // All three, and the first one again.
  await waitFor(() => lines('e-mail delayed').length > 3, service.output)
  const written = lines('the mail folder isn’t writable')
  t.is(written.length, 1)
  t.like(JSON.parse(written[0]!), { level: 'error', folder: join(env.AUTH_DATA_DIR!, 'mail'), code: 'EFBIG' })
  // The next attempt may be in progress.
  await waitForValue(async () => (await readdir(join(env.AUTH_DATA_DIR!, 'mail'))).length, 0)
})
