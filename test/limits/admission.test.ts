/** Admission by client address, on real buckets. */
import test from 'ava'
import { createAdmission } from '../../server/limits/admission.js'
import { openModels } from '../_helpers/models.js'

test('a network’s failures and sign-ups share one count, of which an outer network’s is the sum, and refusals are half', async t => {
  const admission = createAdmission({ ...(await openModels(t)), factor: 0.1, now: () => 1 })
  const [one, other] = ['192.0.2.1', '192.0.2.2']
  for (let times = 0; times < 3; times++) await admission.addFailure(one)
  admission.countSignUp(one)
  await admission.addFailure(other)
  for (let times = 0; times < 6; times++) admission.countSignUp(other)
  const counts = (...networks: string[]) =>
    networks.map(network => Math.round(admission.recentCount(network) * 1000) / 1000)
  t.deepEqual(counts(one, other, '192.0.2.3', '192.0.2.0/24', '198.51.100.0/24'), [3.333, 3, 0, 6.333, 0])
  // A sign-up that isn't hashed yet doesn't count, nor does a request for a recovery key.
  await admission.take('signUps', one)
  await admission.take('recoveryRequests', other)
  for (let times = 0; times < 5; times++) admission.countRefusal([one, '203.0.113.1', '203.0.113.0/24'])
  t.deepEqual(counts(one, other, '192.0.2.0/24', '203.0.113.1', '203.0.113.0/24'), [3.333, 3, 6.333, 0.5, 0.5])
})
