/** Generated requests, the same ones every time; many more of them are in fuzz.long.test.ts. */
import test from 'ava'
import { fuzzGrpc, fuzzHttp } from '../_helpers/fuzz-run.js'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()

test.serial('whatever is sent over HTTP is answered as documented', t =>
  fuzzHttp(t, service, { seed: 20_190_417, requests: 500 }),
)

test.serial('whatever is sent over gRPC is answered with a reason', t =>
  fuzzGrpc(t, service, { seed: 20_190_417, requests: 250 }),
)

test.serial('after all that everything works', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  t.truthy(await service.login(username))
  t.is((await service.registry.audit.verify()).broken, undefined)
})
