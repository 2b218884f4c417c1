/** What an attempt to sign in counts for, and what it must wait for, on a real database. */
import test from 'ava'
import { type Device, knowableNetworks, obstacleOf } from '../../server/models/attempt.js'
import { addUser, openModels } from '../_helpers/models.js'

/** The account knows these; its counter has so many failures and attempts in flight. All other counters are beyond 10. */
const table = `
  the account knows        proof     bucket  failed  in flight  counter  it waits for
  device                   password  full    9       0          device   nothing
  device                   password  full    9       1          device   attempts
  device                   password  room    0       10         device   attempts
  device                   password  room    10      0          device   failures
  device,address,network   password  full    9       0          device   nothing
  address,network          answers   full    9       0          address  nothing
  address,network          answers   full    8       2          address  attempts
  address                  answers   full    10      3          address  failures
  network                  password  full    0       9          network  nothing
  network                  password  full    9       1          network  attempts
  network                  password  room    11      0          network  failures
  nothing                  password  room    9       0          account  nothing
  nothing                  password  room    9       1          account  attempts
  nothing                  password  room    10      0          account  failures
  nothing                  password  full    0       0          account  address
  nothing                  password  full    10      0          account  address
  other’s device           password  room    9       0          account  nothing
  other’s device           password  full    9       0          account  address
  device                   none      full    0       0          none     nothing
  address                  none      full    0       0          none     nothing
  network                  none      full    0       0          none     nothing
  nothing                  none      room    0       0          none     nothing
  nothing                  none      full    0       0          none     address`

test('an attempt counts where the account knows it, and begins unless its counter or the bucket of an unknown address is full', async t => {
  const models = await openModels(t)
  const { database, attempts, counterKeys } = models
  const limits = { max: 10, bucket: { capacity: 300, perSecond: 1e-9 } }
  const write = (text: string, values: unknown[]) => database.run({ text, values })
  for (const [number, row] of table.trim().split('\n').slice(1).entries()) {
    const [knows = '', way = '', bucket, failed, inFlight, ofCounter = '', waitsFor] = row.trim().split(/ {2,}/)
    const name = `user ${number}`
    const id = await addUser(models, name)
    const address = `192.0.${number}.1`
    const proof = way === 'none' ? undefined : (way as 'password' | 'answers')
    const hasDevice = knows.includes('device')
    const device: Device = { userId: knows.startsWith('other') ? 0 : id, usernameKey: name, active: true, session: 's' }
    const networks = knowableNetworks(address)
    const [inner, outer] = [counterKeys.knownNetwork(networks[0]), counterKeys.knownNetwork(networks[1])]
    const known = [knows.includes('address') && inner, knows.includes('network') && outer].filter(Boolean)
    for (const network of known)
      await write('INSERT INTO known_addresses (user_id, address) VALUES ($1, $2)', [id, network])
    const counters = proof && {
      device: counterKeys.device(proof, { ...device, userId: id }),
      address: counterKeys.known(proof, name, inner),
      network: counterKeys.known(proof, name, outer),
      account: counterKeys.account(proof, name),
    }
    for (const [which, subject] of Object.entries(counters ?? {})) {
      const [count, flying] = which === ofCounter ? [failed, inFlight] : [11, 11]
      await write(
        `INSERT INTO attempts (subject, count, window_ends, in_flight, in_flight_until)
          VALUES ($1, $2, now() + interval '1 hour', $3, now() + interval '1 hour')`,
        [subject, count, flying],
      )
    }
    const level = bucket === 'full' ? 299.5 : 299
    const ofAddress = counterKeys.address('failures', address)
    await write('INSERT INTO buckets (subject, level, updated_at) VALUES ($1, $2, now())', [ofAddress, level])

    const asked = { usernameKey: name, proof, address, device: hasDevice ? device : undefined, limits }
    const start = await attempts.begin(asked)
    t.deepEqual(start.counter?.subject, counters?.[ofCounter as keyof typeof counters], row)
    t.is(obstacleOf(start, limits) ?? 'nothing', waitsFor as string, row)
    t.is(start.begun, waitsFor === 'nothing', row)
    t.is(start.account?.id, id)
  }
})

test('an unknown name has the counters of an account that knows nothing', async t => {
  const { attempts, counterKeys } = await openModels(t)
  const limits = { max: 1, bucket: { capacity: 300, perSecond: 1 } }
  const ask = () =>
    attempts.begin({ usernameKey: 'nobody', proof: 'password', address: '192.0.2.1', device: undefined, limits })
  const [first, second] = [await ask(), await ask()]
  t.deepEqual(first.counter, { subject: counterKeys.account('password', 'nobody'), account: null })
  t.deepEqual([first.begun, second.begun, obstacleOf(second, limits)], [true, false, 'attempts'])
  t.is(first.account, undefined)
})
