/** What becomes of hashes on a machine that is busy with other work. It is that work itself, so it runs alone. */
import { spawn } from 'node:child_process'
import { availableParallelism } from 'node:os'
import test from 'ava'
import { createPool } from '../../server/passwords/pool.js'

test('neighbours that keep every core busy don’t starve the threads', async t => {
  const pool = createPool({ count: 2, cost: 10 })
  t.teardown(() => pool.close())
  const hash = (account: string) => {
    const job = { kind: 'hash', text: 'x', cost: 10 } as const
    return pool.run([job], { known: false, address: '', account, deadline: Number.POSITIVE_INFINITY }).then(
      () => 'done',
      error => String(error),
    )
  }
  await Promise.all([hash('a'), hash('b')])
  const neighbours = Array.from({ length: 3 * availableParallelism() }, () =>
    spawn(process.execPath, ['-e', 'for (;;);'], { stdio: 'ignore' }),
  )
  t.teardown(() => {
    for (const neighbour of neighbours) neighbour.kill('SIGKILL')
  })
  const results = await Promise.all(Array.from({ length: 6 }, (_, index) => hash(String(index))))
  t.deepEqual([...new Set(results)], ['done'])
})
