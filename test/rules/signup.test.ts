import test from 'ava'
import fc from 'fast-check'
import { createPasswordPolicy } from '../../server/passwords/hash.js'
import { checkSignUp, dayInBrazil, formatDateOfBirth, readDateOfBirth } from '../../server/users/signupform.js'

const policy = createPasswordPolicy({ minLength: 8 })
const today = '2026-11-21'
const good = {
  username: '(11)98765-4321',
  nickname: 'Maria',
  password: 'correct horse battery',
  state: 'SP',
  city: 'São Paulo',
  termsofusage: true,
  roles: ['ROLE_CLIENT'],
}
const check = (changes: object) => checkSignUp({ ...good, ...changes }, policy, today)
const wrongFields = (changes: object) => check(changes).fields.map(({ field }) => field)

test('a form with the required fields alone is accepted', t => {
  const { fields, form } = check({})
  t.deepEqual(fields, [])
  t.is(form?.usernameKey, 'tel:+5511987654321')
  t.is(form?.nicknameKey, 'maria')
  t.is(form?.role, 'ROLE_CLIENT')
  t.is(form?.dateofborn, undefined)
  t.is(form?.emailKey, undefined)
})

test('a full form comes out trimmed and otherwise as written', t => {
  const { fields, form } = check({
    username: ' Maria da Silva ',
    nickname: ' Má ',
    state: ' rj ',
    city: ' Niterói ',
    dateofborn: '29/02/2000',
    gender: 'F',
    institutiontype: 'E',
    institution: ' Escola  Municipal ',
    securityquestion: '1',
    securityanswer: ' Azul ',
    email: ' Maria@Example.org ',
    roles: ['ROLE_ADMIN'],
  })
  t.deepEqual(fields, [])
  t.deepEqual(form, {
    username: 'Maria da Silva',
    usernameKey: 'maria da silva',
    nickname: 'Má',
    nicknameKey: 'má',
    password: good.password,
    dateofborn: '2000-02-29',
    gender: 'F',
    state: 'rj',
    city: 'Niterói',
    institutiontype: 'E',
    institution: 'Escola  Municipal',
    securityquestion: '1',
    securityanswer: 'Azul',
    termsofusage: true,
    role: 'ROLE_ADMIN',
    email: 'Maria@Example.org',
    emailKey: 'maria@example.org',
  })
})

test('every wrong field is listed once, not only the first', t => {
  const { fields, form } = checkSignUp({ roles: [] }, policy, today)
  t.is(form, undefined)
  t.deepEqual(fields.map(({ field }) => field).sort(), [
    'city',
    'nickname',
    'password',
    'roles',
    'state',
    'termsofusage',
    'username',
  ])
  const all = check({
    username: 'me',
    nickname: 'a\u0000b',
    password: '12345678',
    dateofborn: '31/02/2000',
    gender: 'X',
    state: 'SPX',
    city: ' ',
    institutiontype: 'Z',
    institution: 'x'.repeat(256),
    securityquestion: 'a\nb',
    securityanswer: '\u0301',
    termsofusage: false,
    roles: ['ROLE_CLIENT', 'ROLE_CLIENT'],
    email: 'nobody',
  }).fields
  t.is(all.length, 14)
  t.is(new Set(all.map(({ field }) => field)).size, 14)
  for (const { message } of all) t.regex(message, /^[A-Z].*\.$/)
})

for (const field of ['username', 'nickname', 'password', 'state', 'city']) {
  test(`${field} must be given`, t => {
    for (const value of [undefined, '', ' ', ' \t '])
      t.deepEqual(wrongFields({ [field]: value }), [field], String(value))
  })
}

for (const field of ['dateofborn', 'gender', 'institutiontype', 'institution', 'securityquestion', 'email']) {
  test(`${field} may be left out or empty`, t => {
    for (const value of [undefined, '', ' ']) t.deepEqual(wrongFields({ [field]: value }), [], String(value))
  })
}

test('names of nothing visible are refused', t => {
  t.deepEqual(wrongFields({ username: '\u200b', nickname: '\u3164' }), ['username', 'nickname'])
})

test('the terms must be accepted', t => {
  t.deepEqual(wrongFields({ termsofusage: undefined }), ['termsofusage'])
  t.deepEqual(wrongFields({ termsofusage: false }), ['termsofusage'])
})

test('exactly one role of the three is taken', t => {
  for (const role of ['ROLE_ADMIN', 'ROLE_INSTITUTION', 'ROLE_CLIENT'])
    t.is(check({ roles: [role] }).form?.role as string, role)
  for (const roles of [
    [],
    ['role_client'],
    ['ROLE_ROOT'],
    [''],
    ['ROLE_CLIENT', 'ROLE_CLIENT'],
    ['ROLE_CLIENT', 'x'],
  ]) {
    t.deepEqual(wrongFields({ roles }), ['roles'], roles.join())
  }
})

test('a state has exactly 2 characters, counted as users do', t => {
  for (const state of ['S', 'SPO', '🙂']) t.deepEqual(wrongFields({ state }), ['state'], state)
  for (const state of ['SP', 'ÃÇ', ' SP ']) t.deepEqual(wrongFields({ state }), [], state)
})

for (const field of ['username', 'nickname', 'city', 'institution', 'securityquestion', 'securityanswer']) {
  test(`${field} holds 255 characters and no control characters`, t => {
    t.deepEqual(wrongFields({ [field]: '🙂'.repeat(255) }), [])
    t.deepEqual(wrongFields({ [field]: 'é'.repeat(256) }), [field])
    for (const bad of ['\u0000', '\n', '\u007f', '\u0085', '\u2028', '\ud800']) {
      t.deepEqual(wrongFields({ [field]: `a${bad}b` }), [field], JSON.stringify(bad))
    }
    t.deepEqual(wrongFields({ [field]: 'ab\n' }), [field])
  })
}

test('a name whose key would be too long to index is refused', t => {
  t.deepEqual(wrongFields({ nickname: '\ufdfa'.repeat(200) }), ['nickname'])
})

test('one’s own data is no password', t => {
  t.deepEqual(wrongFields({ password: '11 98765 4321' }), ['password'])
  t.deepEqual(wrongFields({ password: 'saopaulo1', city: 'SaoPaulo1' }), ['password'])
})

const day = fc
  .date({ min: new Date('1850-01-01'), max: new Date('2026-11-21'), noInvalidDate: true })
  .map(date => date.toISOString().slice(0, 10))

test('every day of the calendar survives being written and read', t => {
  fc.assert(
    fc.property(day, iso => {
      const shown = formatDateOfBirth(iso)
      return (
        /^\d\d\/\d\d\/\d{4}$/.test(shown) &&
        readDateOfBirth(shown) === iso &&
        check({ dateofborn: shown }).form?.dateofborn === iso
      )
    }),
  )
  t.is(formatDateOfBirth('1990-05-20'), '20/05/1990')
})

test('dates and date-times of ISO 8601 mean the day that is written', t => {
  for (const time of [
    '',
    'T00:00',
    'T23:59:59',
    'T03:00:00Z',
    'T03:00:00.000Z',
    'T03:00:00.000+0000',
    'T23:00:00-03:00',
  ]) {
    t.is(readDateOfBirth(`1990-05-20${time}`), '1990-05-20', time)
  }
})

test('what is no day is refused', t => {
  for (const dateofborn of [
    '31/04/2000',
    '29/02/1900',
    '00/01/2000',
    '01/00/2000',
    '01/13/2000',
    '1/1/2000',
    '01-01-2000',
    '2000-02-30',
    '2000-13-01',
    '2000-01-01T24:00',
    '2000-01-01T12:60',
    '2000-01-01T12:00+99:00',
    '2000-01-01T',
    '2000-01-01 12:00',
    '20000101',
    'yesterday',
    '946684800000',
    '01/01/1849',
    '01/01/0000',
  ]) {
    t.deepEqual(wrongFields({ dateofborn }), ['dateofborn'], dateofborn)
  }
})

test('nobody is born tomorrow', t => {
  t.deepEqual(wrongFields({ dateofborn: '21/11/2026' }), [])
  t.deepEqual(wrongFields({ dateofborn: '22/11/2026' }), ['dateofborn'])
  t.deepEqual(wrongFields({ dateofborn: '2027-01-01T00:00:00Z' }), ['dateofborn'])
})

test('today is the day in Brazil', t => {
  t.is(dayInBrazil(new Date('2026-11-21T02:59:59Z')), '2026-11-20')
  t.is(dayInBrazil(new Date('2026-11-21T03:00:00Z')), '2026-11-21')
})

test('whatever is sent, the form is either refused with fields or complete', t => {
  const text = fc.option(fc.oneof(fc.string({ unit: 'binary' }), fc.string()), { nil: undefined })
  const request = fc.record({
    username: text,
    nickname: text,
    password: text,
    dateofborn: text,
    gender: text,
    state: text,
    city: text,
    institutiontype: text,
    institution: text,
    securityquestion: text,
    securityanswer: text,
    termsofusage: fc.option(fc.boolean(), { nil: undefined }),
    roles: fc.array(fc.oneof(fc.constant('ROLE_CLIENT'), fc.string())),
    email: text,
  })
  fc.assert(
    fc.property(request, each => {
      const { fields, form } = checkSignUp(each, policy, today)
      return (form === undefined) === fields.length > 0
    }),
    { numRuns: 300 },
  )
  t.pass()
})
