/** Admission by client address, on real buckets. */
import test from 'ava'
import { createAdmission } from '../../server/access/admission.js'
import { openModels } from '../_helpers/models.js'

test('a network’s sign-ups and failures share one count, and an outer network’s count is the sum of its inner ones', async t => {
  const admission = createAdmission({ ...(await openModels(t)), factor: 0.1, now: () => 1 })
  const [one, other] = ['192.0.2.1', '192.0.2.2']
  for (let times = 0; times < 3; times++) await admission.addFailure(one)
  admission.countSignUp(one)
  await admission.addFailure(other)
  for (let times = 0; times < 6; times++) admission.countSignUp(other)
  t.deepEqual([one, other, '192.0.2.3', '192.0.2.0/24', '198.51.100.0/24'].map(admission.recentCount), [4, 7, 0, 11, 0])
  // A sign-up that isn't hashed yet doesn't count, nor does a request for a recovery key.
  await admission.take('signUps', one)
  await admission.take('recoveryRequests', other)
  t.deepEqual([one, other, '192.0.2.0/24'].map(admission.recentCount), [4, 7, 11])
})
