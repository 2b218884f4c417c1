/** What admission knows of client addresses, on real buckets. */
import test from 'ava'
import { createAdmission } from '../../server/access/admission.js'
import { openModels } from '../_helpers/models.js'

test('an address’s sign-ups and failures count together', async t => {
  const admission = createAdmission({ ...(await openModels(t)), factor: 0.1, now: () => 1 })
  const [one, other] = ['192.0.2.1', '192.0.2.2']
  for (let times = 0; times < 3; times++) await admission.addFailure(one)
  await admission.take('signUps', one)
  await admission.addFailure(other)
  for (let times = 0; times < 6; times++) await admission.take('signUps', other)
  t.deepEqual(
    [one, other, '192.0.2.3'].map(address => Math.round(admission.usedOf(address))),
    [4, 7, 0],
  )
})
