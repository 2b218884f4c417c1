import test from 'ava'
import { createPasswords } from '../../server/passwords/hash.js'
import { createPool } from '../../server/passwords/pool.js'

const cost = 5
const pool = createPool({ cost, count: 2 })
const passwords = createPasswords({ pepper: () => Buffer.alloc(32, 1), cost, pool })
const waiter = { kind: 'other', networks: [], account: 'a', deadline: Number.POSITIVE_INFINITY } as const
type Context = 'password' | 'answer'
const hash = async (text: string, context: Context = 'password', by = passwords) =>
  (await by.hash([{ context, text }], waiter))[0]!
const verify = async (text: string, stored: string | undefined, context: Context = 'password', by = passwords) =>
  (await by.verify([{ context, text, stored }], waiter))[0]
test.after.always(() => pool.close())

const yes = { correct: true, renew: false }
const no = { correct: false, renew: false }

test('a hash of another cost is to be renewed once it matches', async t => {
  for (const other of [4, 6]) {
    const stored = await hash(
      'abc',
      'password',
      createPasswords({ pepper: () => Buffer.alloc(32, 1), cost: other, pool }),
    )
    t.deepEqual(await verify('abc', stored), { correct: true, renew: true })
    t.deepEqual(await verify('abd', stored), no)
  }
})

test('a text that can’t match is not hashed', async t => {
  await t.throwsAsync(hash('a\u0000b'))
  await t.throwsAsync(hash(' ', 'answer'))
})

test('several texts are hashed and compared together', async t => {
  const stored = await passwords.hash(
    [
      { context: 'password', text: 'abc' },
      { context: 'answer', text: 'Rex' },
    ],
    waiter,
  )
  const claims = stored.map(each => ({ context: 'answer', text: 'rex', stored: each }) as const)
  t.deepEqual(
    (await passwords.verify(claims, waiter)).map(({ correct }) => correct),
    [false, true],
  )
})

test('a renewed hash is of the same text', async t => {
  const stored = await passwords.renew({ context: 'password', text: 'abc' })
  t.deepEqual(await verify('abc', stored), yes)
})
