import test from 'ava'
import { freshDatabase } from '../_helpers/database.js'
import { freePort, withPort } from '../_helpers/relay.js'
import { launch, serviceEnv } from '../_helpers/spawned.js'

test('a start fails after a minute without the database, and names it without the password', async t => {
  const port = await freePort()
  const url = await freshDatabase(t)
  const program = launch(t, await serviceEnv(t, { DATABASE_URL: withPort(url, port) }))
  t.is(await program.ended, 1)
  const { username, pathname, password: secret } = new URL(url)
  const at = `postgres://${username}@127.0.0.1:${port}${pathname}`
  const last = program.output().trim().split('\n').at(-1)
  t.is(
    last,
    `The database that DATABASE_URL names (${at}) has not been ready for a minute (ECONNREFUSED): check that PostgreSQL runs there and accepts writes.`,
  )
  t.is(program.output().split('waiting for the database').length, 2)
  t.false(program.output().includes(secret))
})
