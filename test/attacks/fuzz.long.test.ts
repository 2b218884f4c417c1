/** Many generated requests, different in every run; a failure names the seed. */
import { randomInt } from 'node:crypto'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import test from 'ava'
import { fuzzGrpc, fuzzHttp } from '../_helpers/fuzz-run.js'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const batches = 10
const heaps: number[] = []

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

for (let batch = 1; batch <= batches; batch++) {
  test.serial(`batch ${batch}: every input over HTTP gets a documented answer`, async t => {
    t.timeout(300_000)
    await fuzzHttp(t, service, { seed: randomInt(2 ** 31), requests: 1600 })
  })
  test.serial(`batch ${batch}: every input over gRPC gets an answer with a reason`, async t => {
    t.timeout(300_000)
    await fuzzGrpc(t, service, { seed: randomInt(2 ** 31), requests: 600 })
    collect()
    heaps.push(process.memoryUsage().heapUsed)
  })
}

test.serial('memory use doesn’t grow', t => {
  const megabytes = heaps.map(bytes => Math.round(bytes / 2 ** 20))
  t.log(megabytes)
  const [first, last] = [megabytes[1]!, megabytes.at(-1)!]
  t.true(last - first < 40, `${first} MB after the second batch, ${last} MB after the last`)
})
