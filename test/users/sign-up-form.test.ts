import test from 'ava'
import fc from 'fast-check'
import { createPasswordPolicy } from '../../server/passwords/policy.js'
import { checkSignUp } from '../../server/registration/form.js'
import { dayIn, formatDay, readDay } from '../../server/rules/dates.js'
import { anyCharacter } from '../_helpers/characters.js'
import { optionalNames, profileNames, profileValues, requiredNames, storedValues } from '../_helpers/fields.js'

const policy = createPasswordPolicy({ minLength: 8 })
const timeZone = 'America/Sao_Paulo'
const rules = (time: string) => ({ policy, timeZone, now: () => Date.parse(time) })
const today = rules('2026-11-21T12:00:00Z')
const good = {
  username: '(11)98765-4321',
  nickname: 'Maria',
  password: 'correct horse battery',
  state: 'SP',
  city: 'São Paulo',
  termsofusage: true,
  roles: ['ROLE_CLIENT'],
}
const check = (changes: object) => checkSignUp({ ...good, ...changes }, today)
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

test('a complete form is returned trimmed and otherwise unchanged', t => {
  const { fields, form } = check({
    username: ' Maria da Silva ',
    ...profileValues,
    nickname: ' Má ',
    state: ' rj ',
    city: ' Niterói ',
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
    ...storedValues,
    nickname: 'Má',
    nicknameKey: 'má',
    password: good.password,
    state: 'rj',
    city: 'Niterói',
    institution: 'Escola  Municipal',
    securityquestion: '1',
    securityanswer: 'Azul',
    termsofusage: true,
    role: 'ROLE_ADMIN',
    email: 'Maria@Example.org',
    emailKey: 'maria@example.org',
  })
})

for (const field of ['username', 'password', ...requiredNames]) {
  test(`${field} must be given`, t => {
    for (const value of [undefined, '', ' ', ' \t '])
      t.deepEqual(wrongFields({ [field]: value }), [field], String(value))
  })
}

for (const field of [...optionalNames, 'securityquestion', 'email']) {
  test(`${field} may be left out or empty`, t => {
    for (const value of [undefined, '', ' ']) t.deepEqual(wrongFields({ [field]: value }), [], String(value))
  })
}

const unseen = [
  ...'\u200b\u200d\ufeff\u00ad\u034f\u115f\u3164\uffa0\u180e\u2060\u202e\u2066\ufe0f\u{e0020}\u{1bca0}\u2800\ufff9\ufffc',
  ...'\u{13441}\u{16fe4}\u{1d159}\ue000\uf8ff\u{f0000}\u{10fffd}\ufffe\ufdd0\u{10ffff}',
]

for (const field of ['username', 'nickname']) {
  test(`${field} holds no invisible, blank or private-use characters`, t => {
    for (const bad of unseen) {
      const code = bad.codePointAt(0)!.toString(16)
      t.deepEqual(wrongFields({ [field]: `Ana${bad}Lua` }), [field], code)
      t.deepEqual(wrongFields({ [field]: `AnaLua${bad}` }), [field], code)
    }
    const { message } = check({ [field]: 'a\u2800b' }).fields[0]!
    t.is(message, 'Leave out invisible, blank and private-use characters.')
  })

  test(`${field} may be in any script, with accents and emoji`, t => {
    const names = ['João d’Ávila', 'Анна', '山田 たろう', '김철수', 'محمد', 'שירה', 'สมชาย', 'Ana ❤️', '👩‍👩‍👧', '🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣']
    for (const name of names) t.deepEqual(wrongFields({ [field]: name }), [], name)
  })
}

test('a value outside of its list, and a reserved username, are refused', t => {
  for (const [field, values] of Object.entries({
    gender: ['m', 'X'],
    institutiontype: ['S', 'Z'],
    email: ['not an address', 'ana@gmail'],
    password: ['seven77', 'PASSWORD123'],
    username: ['me', ' Login ', '{username}', 'ｓｉｇｎｕｐ', ' ＃１ '],
    termsofusage: [false],
  }))
    for (const value of values) t.deepEqual(wrongFields({ [field]: value }), [field], String(value))
})

test('other texts may hold invisible characters', t => {
  t.deepEqual(wrongFields({ city: 'São\u00adPaulo', securityquestion: 'a\u200bb', institution: 'a\ue000' }), [])
})

test('exactly one of the three roles is accepted', t => {
  for (const role of ['ROLE_ADMIN', 'ROLE_INSTITUTION', 'ROLE_CLIENT'])
    t.is(check({ roles: [role] }).form?.role as string, role)
  for (const roles of [[], ['role_client'], ['ROLE_ROOT'], [''], ['ROLE_CLIENT', 'ROLE_CLIENT'], ['ROLE_CLIENT', 'x']])
    t.deepEqual(wrongFields({ roles }), ['roles'], roles.join())
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

test('a password has 256 characters at most, an address 254', t => {
  const password = '🙂é'.repeat(128)
  t.deepEqual(wrongFields({ password }), [])
  t.deepEqual(wrongFields({ password: `${password}a` }), ['password'])
  const email = `${'a'.repeat(64)}@${'b'.repeat(61)}.${'c'.repeat(61)}.${'d'.repeat(61)}.br`
  t.is(email.length, 253)
  t.deepEqual(wrongFields({ email: `${email}x` }), [])
  t.is(check({ email: `${email}xy` }).fields[0]?.message, 'Use at most 254 characters.')
})

const day = fc
  .date({ min: new Date('1850-01-01'), max: new Date('2026-11-21'), noInvalidDate: true })
  .map(date => date.toISOString().slice(0, 10))

test('every calendar day is parsed back as it was formatted', t => {
  fc.assert(
    fc.property(day, iso => {
      const shown = formatDay(iso)
      return (
        /^\d\d\/\d\d\/\d{4}$/.test(shown) &&
        readDay(shown, timeZone) === iso &&
        check({ dateofborn: shown }).form?.dateofborn === iso
      )
    }),
  )
  t.is(formatDay('1990-05-20'), '20/05/1990')
})

test('a date, and a date-time without an offset, is the day that is written', t => {
  for (const time of ['', 'T00:00', 'T23:59:59', 'T23:59:60', 'T23:59:59,999']) {
    for (const zone of ['America/Sao_Paulo', 'Pacific/Kiritimati', 'Pacific/Pago_Pago'])
      t.is(readDay(`1990-05-20${time}`, zone), '1990-05-20', time)
  }
})

test('a date-time with an offset is the day in the time zone at that moment', t => {
  const inBrazil: Record<string, string> = {
    '1990-05-20T03:00:00.000Z': '1990-05-20',
    '1990-05-20T02:59:59.999Z': '1990-05-19',
    '1990-05-20T02:59:60Z': '1990-05-19',
    '1990-05-20T23:00:00-03:00': '1990-05-20',
    '1990-05-20T23:00:00-04:00': '1990-05-21',
    '1990-05-21T02:00+0530': '1990-05-20',
    '1990-05-20T03:00:00.000+00': '1990-05-20',
    // Summer time, when midnight was at 02:00 UTC.
    '1990-01-10T02:00:00.000Z': '1990-01-10',
    '1990-01-10T01:59:59Z': '1990-01-09',
    '2000-03-01T00:00:01Z': '2000-02-29',
    '2000-01-01T00:00:00.001Z': '1999-12-31',
  }
  for (const [text, day] of Object.entries(inBrazil)) t.is(readDay(text, timeZone), day, text)
  t.is(readDay('1990-05-20T03:00:00Z', 'Asia/Tokyo'), '1990-05-20')
  t.is(readDay('1990-05-20T15:00:00Z', 'Asia/Tokyo'), '1990-05-21')
  t.is(readDay('1990-05-20T23:59:59Z', 'UTC'), '1990-05-20')
})

test('a date-time at exactly midnight UTC is the day that it shows, as programs write a plain date', t => {
  for (const time of '00:00Z 00:00:00Z 00:00:00.000Z 00:00:00,0Z 00:00:00+00:00 00:00-00:00 00:00+0000'.split(' '))
    for (const zone of ['America/Sao_Paulo', 'Pacific/Pago_Pago', 'Asia/Tokyo', 'UTC'])
      t.is(readDay(`2000-03-01T${time}`, zone), '2000-03-01', time)
  for (const time of ['00:00:00.0001Z', '00:00:01Z', '00:01Z', '03:00+03:01', '23:59:60Z'])
    t.is(readDay(`2000-03-01T${time}`, 'Pacific/Pago_Pago'), `2000-0${time[0] === '2' ? '3-01' : '2-29'}`, time)
})

test('an invalid day is refused', t => {
  for (const dateofborn of [
    ...['31/04/2000', '29/02/1900', '00/01/2000', '01/00/2000', '01/13/2000', '1/1/2000', '01-01-2000'],
    ...['2000-02-30', '2000-13-01', '2000-01-01T24:00', '2000-01-01T12:60', '2000-01-01T12:00+99:00'],
    ...['2000-01-01T', '2000-01-01TZ', '2000-01-01T12:00z', '2000-01-01T12:00-03:00:00'],
    ...['2000-01-01T12:00:00+', '2000-02-30T12:00:00Z', '2000-01-01 12:00', '20000101', 'yesterday'],
    ...['946684800000'],
  ]) {
    t.is(readDay(dateofborn, timeZone), undefined, dateofborn)
    t.deepEqual(wrongFields({ dateofborn }), ['dateofborn'], dateofborn)
  }
  for (const dateofborn of ['01/01/1849', '01/01/0000', '0099-05-05T12:00:00Z'])
    t.is(check({ dateofborn }).fields[0]?.message, 'Give a day after 1849.', dateofborn)
})

test('a date of birth in the future is refused', t => {
  t.deepEqual(wrongFields({ dateofborn: '21/11/2026' }), [])
  t.deepEqual(wrongFields({ dateofborn: '22/11/2026' }), ['dateofborn'])
  t.deepEqual(wrongFields({ dateofborn: '2027-01-01T00:00:00Z' }), ['dateofborn'])
})

test('the day of a moment depends on the time zone', t => {
  t.is(dayIn('America/Sao_Paulo', new Date('2026-11-21T02:59:59Z')), '2026-11-20')
  t.is(dayIn('America/Sao_Paulo', new Date('2026-11-21T03:00:00Z')), '2026-11-21')
  t.is(dayIn('America/Rio_Branco', new Date('2026-11-21T03:00:00Z')), '2026-11-20')
  t.is(dayIn('UTC', new Date('2026-11-21T02:59:59Z')), '2026-11-21')
  t.is(dayIn('UTC', new Date('0099-05-05T12:00:00Z')), '0099-05-05')
  const form = { ...good, dateofborn: '21/11/2026' }
  const atNight = rules('2026-11-21T02:00:00Z')
  t.like(checkSignUp(form, atNight).fields, { length: 1, 0: { field: 'dateofborn' } })
  t.deepEqual(checkSignUp(form, { ...atNight, timeZone: 'UTC' }).fields, [])
})

test('every form is either refused with fields or complete', t => {
  const text = fc.option(fc.oneof(fc.string({ unit: anyCharacter }), fc.string()), { nil: undefined })
  const names = ['username', 'password', ...profileNames, 'securityquestion', 'securityanswer', 'email']
  const texts = names.map(name => [name, text] as const)
  const request = fc.record({
    ...Object.fromEntries(texts),
    termsofusage: fc.option(fc.boolean(), { nil: undefined }),
    roles: fc.array(fc.oneof(fc.constant('ROLE_CLIENT'), fc.string())),
  })
  fc.assert(
    fc.property(request, each => {
      const { fields, form } = checkSignUp(each, today)
      return (form === undefined) === fields.length > 0
    }),
    { numRuns: 300 },
  )
  t.pass()
})
