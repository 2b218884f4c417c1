/** What admission knows of client addresses, on real buckets. */
import test from 'ava'
import { createAdmission } from '../../server/access/admission.js'
import { openModels } from '../_helpers/models.js'

test('the sign-ups and failures of a network count together, and make up the count of the outer one', async t => {
  const admission = createAdmission({ ...(await openModels(t)), factor: 0.1, now: () => 1 })
  const [one, other] = ['192.0.2.1', '192.0.2.2']
  for (let times = 0; times < 3; times++) await admission.addFailure(one)
  await admission.take('signUps', one)
  await admission.addFailure(other)
  for (let times = 0; times < 6; times++) await admission.take('signUps', other)
  t.deepEqual([one, other, '192.0.2.3', '192.0.2.0/24', '198.51.100.0/24'].map(admission.recentCount), [4, 7, 0, 11, 0])
  // What there was no room for doesn't count, nor do requests for recovery keys.
  await admission.refund('signUps', one)
  await admission.take('recoveryRequests', other)
  t.deepEqual([one, other, '192.0.2.0/24'].map(admission.recentCount), [3, 7, 10])
})
