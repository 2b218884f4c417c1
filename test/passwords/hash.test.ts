import test from 'ava'
import bcrypt from 'bcrypt'
import { createPasswords, isHash } from '../../server/passwords/hash.js'
import { createHashing } from '../../server/passwords/pool.js'

const cost = 5
const hashing = createHashing({ cost, threads: 2 })
const passwords = createPasswords({ pepper: Buffer.alloc(32, 1), cost, hashing })
const turn = { account: 'a', deadline: Number.POSITIVE_INFINITY }
const verify = (text: string, stored: string | undefined, context: 'password' | 'answer' = 'password') =>
  passwords.verify(text, stored, context, turn)
test.after.always(() => hashing.close())

const yes = { correct: true, renew: false }
const no = { correct: false, renew: false }

test('a password matches its own hash and no other', async t => {
  const stored = await passwords.hash('correct horse', 'password', turn)
  t.regex(stored, /^hmac1:\$2b\$05\$[./\w]{53}$/)
  t.deepEqual(await verify('correct horse', stored), yes)
  t.deepEqual(await verify('Correct horse', stored), no)
  t.deepEqual(await verify('correct horse ', stored), no)
  t.not(await passwords.hash('correct horse', 'password', turn), stored)
})

test('every character of a long password counts', async t => {
  const stored = await passwords.hash('é'.repeat(255), 'password', turn)
  t.deepEqual(await verify('é'.repeat(255), stored), yes)
  t.deepEqual(await verify(`${'é'.repeat(254)}e`, stored), no)
})

test('a password matches however the keyboard composes it', async t => {
  const stored = await passwords.hash('cafe\u0301 forte', 'password', turn)
  t.deepEqual(await verify('café\u00a0forte', stored), yes)
})

test('answers match without regard to case, accents and extra space', async t => {
  const stored = await passwords.hash('São Paulo', 'answer', turn)
  t.deepEqual(await verify('  sao   PAULO ', stored, 'answer'), yes)
  t.deepEqual(await verify('santos', stored, 'answer'), no)
  t.deepEqual(await verify('', stored, 'answer'), no)
})

test('a hash serves in its own context and with its own pepper only', async t => {
  const stored = await passwords.hash('azul claro', 'answer', turn)
  t.deepEqual(await verify('azul claro', stored, 'password'), no)
  const others = createPasswords({ pepper: Buffer.alloc(32, 2), cost, hashing })
  t.deepEqual(await others.verify('azul claro', stored, 'answer', turn), no)
  t.false(await bcrypt.compare('azul claro', stored.slice(6)))
})

test('nobody’s password is never right', async t => {
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
  const hash = bcrypt.hashSync('senha antiga', cost)
  for (const kind of ['$2a$', '$2b$', '$2y$']) {
    const stored = hash.replace('$2b$', kind)
    t.deepEqual(await verify('senha antiga', stored), { correct: true, renew: true }, kind)
    t.deepEqual(await verify('senha nova', stored), no, kind)
  }
  const long = bcrypt.hashSync('ã'.repeat(36), cost)
  t.true((await verify('ã'.repeat(200), long)).correct)
})

test('a hash of another cost is to be renewed once it matches', async t => {
  for (const other of [4, 6]) {
    const stored = await createPasswords({ pepper: Buffer.alloc(32, 1), cost: other, hashing }).hash(
      'abc',
      'password',
      turn,
    )
    t.deepEqual(await verify('abc', stored), { correct: true, renew: true })
    t.deepEqual(await verify('abd', stored), no)
  }
})

test('what can’t be compared is not hashed', async t => {
  await t.throwsAsync(passwords.hash('a\u0000b', 'password', turn))
  await t.throwsAsync(passwords.hash(' ', 'answer', turn))
})

test('a place already taken is used', async t => {
  const place = hashing.reserve({ ...turn, jobs: 2 })
  const stored = await passwords.hash('correct horse', 'password', place)
  t.deepEqual(await passwords.verify('correct horse', stored, 'password', place), yes)
  place.release()
  await t.throwsAsync(passwords.verify('correct horse', stored, 'password', place))
})

test('hashes that can be brought in are told from other texts', t => {
  const hash = bcrypt.hashSync('x', 4)
  for (const text of [hash, hash.replace('$2b', '$2a'), hash.replace('$2b', '$2y'), `hmac1:${hash}`])
    t.true(isHash(text))
  for (const text of [
    '',
    hash.slice(1),
    `${hash}=`,
    `${hash}\n`,
    hash.replace('$04$', '$31$'),
    hash.replace('$2b', '$2x'),
  ]) {
    t.false(isHash(text), text)
  }
})
