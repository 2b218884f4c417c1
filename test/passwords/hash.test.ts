import test from 'ava'
import bcrypt from 'bcrypt'
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

test('a password matches its own hash and no other', async t => {
  const stored = await hash('correct horse')
  t.regex(stored, /^hmac1:\$2b\$05\$[./\w]{53}$/)
  t.deepEqual(await verify('correct horse', stored), yes)
  t.deepEqual(await verify('Correct horse', stored), no)
  t.deepEqual(await verify('correct horse ', stored), no)
  t.not(await hash('correct horse'), stored)
})

test('every character of a long password is significant', async t => {
  const stored = await hash('é'.repeat(255))
  t.deepEqual(await verify('é'.repeat(255), stored), yes)
  t.deepEqual(await verify(`${'é'.repeat(254)}e`, stored), no)
})

test('a password matches in every Unicode composition', async t => {
  const stored = await hash('cafe\u0301 forte')
  t.deepEqual(await verify('café\u00a0forte', stored), yes)
})

test('answers match without regard to case, accents and extra space', async t => {
  const stored = await hash('São Paulo', 'answer')
  t.deepEqual(await verify('  sao   PAULO ', stored, 'answer'), yes)
  t.deepEqual(await verify('santos', stored, 'answer'), no)
  t.deepEqual(await verify('', stored, 'answer'), no)
})

test('a hash matches only in its context and with its pepper', async t => {
  const stored = await hash('azul claro', 'answer')
  t.deepEqual(await verify('azul claro', stored, 'password'), no)
  const others = createPasswords({ pepper: () => Buffer.alloc(32, 2), cost, pool })
  t.deepEqual(await verify('azul claro', stored, 'answer', others), no)
  t.false(await bcrypt.compare('azul claro', stored.slice(6)))
})

test('without a readable hash no password matches', async t => {
  for (const stored of [
    undefined,
    '',
    'plain',
    '$2b$05$short',
    'hmac1:',
    'hmac2:$2b$05$',
    `$2x$05$${'a'.repeat(53)}`,
  ]) {
    t.deepEqual(await verify('plain', stored), no, stored)
  }
  t.deepEqual(await verify('', undefined), no)
  t.deepEqual(await verify('a\u0000b', await bcrypt.hash('a', 4)), no)
})

test('hashes of other systems match the text itself and are to be renewed', async t => {
  const bare = bcrypt.hashSync('senha antiga', cost)
  for (const kind of ['$2a$', '$2b$', '$2y$']) {
    const stored = bare.replace('$2b$', kind)
    t.deepEqual(await verify('senha antiga', stored), { correct: true, renew: true }, kind)
    t.deepEqual(await verify('senha nova', stored), no, kind)
  }
  const long = bcrypt.hashSync('ã'.repeat(36), cost)
  t.true((await verify('ã'.repeat(200), long))?.correct)
})

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
