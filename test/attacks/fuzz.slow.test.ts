/** Generated requests, the same in every run. */
import test from 'ava'
import { fuzzGrpc, fuzzHttp } from '../_helpers/fuzz-run.js'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()

test.serial('every input over HTTP gets a documented answer', t =>
  fuzzHttp(t, service, { seed: 20_190_417, requests: 500 }),
)

test.serial('every input over gRPC gets an answer with a reason', t =>
  fuzzGrpc(t, service, { seed: 20_190_417, requests: 250 }),
)

test.serial('after all fuzzed requests every operation works', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  t.truthy(await service.login(username))
  t.is((await service.registry.audit.verify()).broken, undefined)
})
