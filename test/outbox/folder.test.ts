/** The folder that e-mails go to where there is no mail server. */
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import { createRequest, password } from '../_helpers/service.js'
import { serviceEnv, spawnService } from '../_helpers/spawned.js'
import { waitFor } from '../_helpers/wait.js'

test('where the folder is full, e-mails wait, nothing half written stays behind, and the log says why once', async t => {
  const env = await serviceEnv(t)
  // A file may be made, but nothing written to it.
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
  // All three, and the first of them again.
  await waitFor(() => lines('e-mail delayed').length > 3, service.output)
  const told = lines('the mail folder isn’t writable')
  t.is(told.length, 1)
  t.like(JSON.parse(told[0]!), { level: 'error', folder: join(env.AUTH_DATA_DIR!, 'mail'), code: 'EFBIG' })
  // The next attempt may be in flight.
  await waitFor(async () => (await readdir(join(env.AUTH_DATA_DIR!, 'mail'))).length === 0)
})
