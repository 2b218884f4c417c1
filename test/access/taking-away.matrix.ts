/**
 * What ends which credential: every credential with every event that takes something away, written by hand from the
 * principle "taking away works at once, adding waits". taking-away.slow.test.ts runs every cell.
 *
 * A word for each cell:
 *
 *     ends   from the event on, the credential opens nothing
 *     stays  it still opens what it opened
 *     (a)    can't occur: the event, or the credential, is refused to that holder; `notes` has the refusal and its reason
 *
 * A cell describes the time right after the event: a suspension ends a password, and a resumption gives it back. An event
 * that has an effect on one record happens to the holder of each credential, one after another.
 */

/** The credentials, by column, and how each is used. */
export const credentials = {
  // Of an account that has been a member of an organization since more than a day ago: a ROLE_INSTITUTION unless the event
  // is one of others.
  password: 'Login',
  answers: 'LoginByUsernameAndAnswers, with answers that count',
  waiting:
    'LoginByUsernameAndAnswers a day later, with answers that waited: the first ones, and ones that replace others',
  recovery: 'LoginByUsernameAndKey, with the mailed key before the newest, and then with the newest',
  email: 'ConfirmEmail, with a mailed code and a new session',
  pwd: 'GetMe, with a public session by password',
  kba: 'GetMe, with a public session by answers',
  otp: 'GetMe, with a public session by mailed key',
  device: 'Login with an earlier token, while strangers lock the account: it ends with the generation of the token',
  provider: 'Activate of a ROLE_CLIENT, with the provider key',
  // Of its organization.
  organization: 'Activate of a ROLE_INSTITUTION, with the key of the organization',
  // Of a ROLE_INSTITUTION that isn't active.
  mailed: 'Activate of its user, with a key mailed to the organization',
  // Of a service.
  service: 'GetUser, with the key of a service',
  // Of a ROLE_ADMIN without one-time codes.
  session: 'GetSession, with a session of Administration',
  // Of a ROLE_ADMIN with one-time codes.
  code: 'SignIn at Administration, with a one-time code',
  // Of the ROLE_INSTITUTION that isn't active, as `mailed`.
  fresh: 'GetMe, with a token for the registry alone',
} as const

/** Refresh tokens of the same account. Their cells are those of `pwd`, a session by password, unless `besides` has others. */
const refreshTokens = {
  app: 'ExchangeToken, with the refresh token of an app of the registry',
  tool: 'ExchangeToken, with the refresh token of a tool (OpenID Connect)',
} as const

/** An issued key of the same account. Its cells are those of `recovery`, a mailed key, unless `besides` has others. */
const issuedKeys = { issued: 'LoginByUsernameAndKey, with an issued key' } as const

export type Credential = keyof typeof credentials | keyof typeof refreshTokens | keyof typeof issuedKeys

/** Where a refresh token isn't as a session by password, whose tokens are signed by another key; or an issued key as a mailed one. */
const besides: Record<keyof typeof refreshTokens | keyof typeof issuedKeys, Readonly<Record<string, Cell>>> = {
  issued: {
    // The mailed key is spent. It proves the address once more, which ends nothing.
    'recovered by mailed key, all set by the owner': 'stays',
    'codes enrolled': 'p',
    'codes removed': 'p',
    'desk granted': 'ends',
    'desk granted and revoked': 'ends',
  },
  app: {
    'signing key retired': 'stays',
    'sealing key retired': 'ends',
    'codes enrolled': 'l',
    'codes removed': 'l',
    'desk granted': 'ends',
  },
  tool: {
    'signing key retired': 'stays',
    'sealing key retired': 'ends',
    'service deleted': 'ends',
    'key of the service deleted': 'ends',
    'redirect URI removed': 'ends',
    'codes removed': 'n',
  },
}

/** The way at the gate by which a credential comes in; none where the state of its user doesn't matter, or decides elsewhere. */
export const waysOf: Partial<Record<Credential, string>> = {
  password: 'sign in',
  answers: 'recover by answers',
  waiting: 'recover by answers',
  recovery: 'recover by e-mail',
  issued: 'recover by e-mail',
  email: 'confirm an e-mail address',
  pwd: 'use a token',
  kba: 'use a token',
  otp: 'use a token',
  app: 'use a token',
  tool: 'use a token',
  mailed: 'activate',
  session: 'sign in to Administration',
  code: 'sign in to Administration',
  fresh: 'use a token',
}

/** The events that bring a user into each state of the gate: a new state needs one. */
export const stateEvents: Readonly<Record<string, readonly string[]>> = {
  deleted: ['deleted by the user', 'deleted at Administration'],
  suspended: ['suspended'],
  'not activated': ['deactivated by the institution'],
}

/** Why a cell can't occur: what the service answers, and the constraint. */
export const notes: Readonly<Record<string, readonly [refusal: string, constraint: string]>> = {
  a: ['ACCESS_DENIED', 'a public session of a ROLE_ADMIN with one-time codes changes nothing'],
  b: ['ACCESS_DENIED', 'a session by answers of a ROLE_ADMIN only reads its own record'],
  c: ['ACCESS_DENIED', 'no public session changes another ROLE_ADMIN'],
  d: ['ACCESS_DENIED', 'only a ROLE_INSTITUTION has a provider key'],
  e: ['USER_NOT_FOUND', 'an institution deactivates only clients of its organization'],
  f: ['WRONG_STATE', 'a ROLE_ADMIN is deleted at Administration only'],
  g: ['WRONG_STATE', 'an import changes no ROLE_ADMIN'],
  h: ['INVALID_CREDENTIALS', 'only a ROLE_ADMIN signs in to Administration, where one-time codes are enrolled'],
  i: ['unchanged', 'there are no one-time codes to remove'],
  j: ['WRONG_STATE', 'only an active ROLE_INSTITUTION has a provider key'],
  l: ['ACCESS_DENIED', 'no app of a ROLE_ADMIN has refresh tokens'],
  n: ['CODE_NEEDED', 'a ROLE_ADMIN with one-time codes needs one at the page'],
  o: ['WRONG_STATE', 'only an active user who isn’t an administrator gets desk'],
  p: ['WRONG_STATE', 'no administrator has an issued key'],
  m: ['proved', 'a session by mailed key has proved the address'],
  k: ['INVALID_SIGN_UP', 'an import changes on existing users what opens access only as its permission lists'],
}

/** The table. */
export const takingAway = `
event                                               password answers waiting recovery email pwd   kba   otp   device provider organization mailed service session code   fresh

# Passwords
password updated in the session of the answers      ends     stays   stays   ends     ends  ends  ends  ends  ends   stays    stays        stays  stays   ends    (a)    ends
password updated in another session by password     ends     stays   ends    ends     ends  ends  ends  ends  ends   stays    stays        stays  stays   ends    (a)    ends
password updated in a session by answers            ends     stays   ends    ends     ends  ends  ends  ends  ends   stays    stays        stays  stays   (b)     (b)    ends
password updated in a session by mailed key         ends     stays   ends    ends     ends  ends  ends  ends  ends   stays    stays        stays  stays   ends    (a)    ends
password updated in a session of a ROLE_ADMIN       ends     stays   ends    ends     ends  ends  ends  ends  ends   stays    stays        stays  stays   (c)     (c)    ends
password set at Administration                      ends     stays   ends    ends     ends  ends  ends  ends  ends   stays    stays        stays  stays   ends    stays  ends

# Answers
answers replaced with the password                  stays    ends    ends    stays    stays stays stays stays stays  stays    stays        stays  stays   stays   (a)    stays
answers saved by a session alone                    stays    stays   ends    stays    stays stays stays stays stays  stays    stays        stays  stays   stays   (a)    stays
answers deleted by the user                         stays    ends    ends    stays    stays stays stays stays stays  stays    stays        stays  stays   stays   (a)    stays
answers cleared                                     stays    ends    ends    stays    stays stays stays stays stays  stays    stays        stays  stays   stays   stays  stays
answers cleared, then the text of sign-up linked    stays    ends    ends    stays    stays stays stays stays stays  stays    stays        stays  stays   stays   stays  stays
text of sign-up linked to a question                stays    stays   stays   stays    stays stays stays stays stays  stays    stays        stays  stays   stays   stays  stays
questions retired                                   stays    stays   stays   stays    stays stays stays stays stays  stays    stays        stays  stays   stays   stays  stays

# Address and name
e-mail address changed by the user                  stays    stays   stays   ends     ends  stays ends  ends  stays  stays    stays        stays  stays   stays   (a)    stays
e-mail address changed at Administration            stays    stays   stays   ends     ends  stays ends  ends  stays  stays    stays        stays  stays   stays   stays  stays
username changed by the user                        stays    stays   stays   stays    stays stays stays stays stays  stays    stays        stays  stays   stays   (a)    stays
username changed at Administration                  stays    stays   stays   stays    stays stays stays stays stays  stays    stays        stays  stays   stays   stays  stays

# A mailed key of the address: the owner set the credentials, or a stranger before the address was ever proved
recovered by mailed key, all set by the owner       stays    stays   stays   ends     stays stays stays stays stays  stays    stays        stays  stays   stays   stays  stays
recovered by mailed key, all set by a stranger      ends     ends    ends    ends     ends  ends  ends  (m)   ends   stays    stays        stays  stays   ends    ends   ends

# State, role and organization
suspended                                           ends     ends    ends    ends     ends  ends  ends  ends  ends   ends     stays        ends   stays   ends    ends   ends
suspended and resumed                               stays    stays   ends    ends     ends  ends  ends  ends  ends   stays    stays        ends   stays   ends    stays  ends
deactivated by the institution                      stays    stays   ends    ends     ends  ends  ends  ends  ends   (d)      stays        (e)    stays   (e)     (e)    (e)
role changed                                        stays    stays   ends    ends     ends  ends  ends  ends  ends   ends     stays        ends   stays   ends    ends   ends
role changed and changed back                       stays    stays   ends    ends     ends  ends  ends  ends  ends   ends     stays        ends   stays   ends    stays  ends
organization of the user changed                    stays    stays   ends    ends     ends  ends  ends  ends  ends   ends     stays        ends   stays   ends    stays  ends
organization of the user changed and changed back   stays    stays   ends    ends     ends  ends  ends  ends  ends   ends     stays        ends   stays   ends    stays  ends
organization of the user removed                    stays    stays   ends    ends     ends  ends  ends  ends  ends   ends     stays        ends   stays   ends    stays  ends
tokens revoked by the user                          stays    stays   ends    ends     ends  ends  ends  ends  ends   stays    stays        stays  stays   ends    stays  ends
tokens revoked at Administration                    stays    stays   ends    ends     ends  ends  ends  ends  ends   stays    stays        stays  stays   ends    stays  ends
deleted by the user                                 ends     ends    ends    ends     ends  ends  ends  ends  ends   ends     stays        ends   stays   (f)     (a)    ends
deleted at Administration                           ends     ends    ends    ends     ends  ends  ends  ends  ends   ends     stays        ends   stays   ends    ends   ends
deleted and undeleted                               stays    stays   ends    ends     ends  ends  ends  ends  ends   stays    stays        ends   stays   ends    stays  ends
erased                                              ends     ends    ends    ends     ends  ends  ends  ends  ends   ends     stays        ends   stays   ends    ends   ends

# Desk
desk granted                                        stays    stays   stays   stays    stays stays stays stays stays  stays    stays        (o)    stays   (o)     (o)    (o)
desk granted and revoked                            stays    stays   stays   stays    stays stays stays stays stays  stays    stays        (o)    stays   (o)     (o)    (o)

# Activation
newcomer activated                                  stays    stays   stays   stays    stays stays stays stays stays  stays    stays        ends   stays   stays   stays  stays

# Organizations
organization deactivated                            stays    stays   stays   stays    stays stays stays stays stays  ends     ends         ends   stays   stays   stays  stays
organization deactivated and activated              stays    stays   stays   stays    stays stays stays stays stays  stays    stays        stays  stays   stays   stays  stays
key of the organization rotated                     stays    stays   stays   stays    stays stays stays stays stays  stays    ends         stays  stays   stays   stays  stays
e-mail address of the organization changed          stays    stays   stays   stays    stays stays stays stays stays  stays    stays        ends   stays   stays   stays  stays
provider key rotated by the user                    stays    stays   stays   stays    stays stays stays stays stays  ends     stays        (j)    stays   (d)     (a)    (j)
provider key rotated at Administration              stays    stays   stays   stays    stays stays stays stays stays  ends     stays        (j)    stays   (j)     (j)    (j)

# Imports
e-mail address changed by an import                 stays    stays   stays   ends     ends  stays ends  ends  stays  stays    stays        stays  stays   (g)     (g)    stays
username changed by an import                       stays    stays   stays   stays    stays stays stays stays stays  stays    stays        stays  stays   (g)     (g)    stays
password changed by an import                       ends     stays   ends    ends     ends  ends  ends  ends  ends   stays    stays        stays  stays   (g)     (g)    ends
organization of the user changed by an import       stays    stays   ends    ends     ends  ends  ends  ends  ends   ends     stays        ends   stays   (g)     (g)    ends
all of this in an import that may change none of it (k)      (k)     (k)     (k)      (k)   (k)   (k)   (k)   (k)    (k)      stays        (k)    stays   (g)     (g)    (k)

# Administrators, services, the registry
codes enrolled                                      stays    stays   ends    ends     ends  ends  ends  ends  ends   (d)      stays        (h)    stays   ends    ends   (h)
codes removed                                       stays    stays   (a)     ends     (a)   ends  ends  ends  ends   (a)      stays        (i)    stays   ends    ends   (i)
service deleted                                     stays    stays   stays   stays    stays stays stays stays stays  stays    stays        stays  ends    stays   stays  stays
scope of the service removed                        stays    stays   stays   stays    stays stays stays stays stays  stays    stays        stays  ends    stays   stays  stays
key of the service deleted                          stays    stays   stays   stays    stays stays stays stays stays  stays    stays        stays  ends    stays   stays  stays
redirect URI removed                                stays    stays   stays   stays    stays stays stays stays stays  stays    stays        stays  stays   stays   stays  stays
key of ID tokens retired                            stays    stays   stays   stays    stays stays stays stays stays  stays    stays        stays  stays   stays   stays  stays
signing key retired                                 stays    stays   ends    stays    stays ends  ends  ends  ends   stays    stays        stays  stays   stays   stays  ends
sealing key retired                                 stays    stays   ends    stays    stays stays stays stays stays  stays    stays        stays  stays   ends    stays  stays
registry restored from a backup                     stays    stays   ends    ends     ends  ends  ends  ends  ends   stays    stays        ends   ends    ends    stays  ends
`

/** What a cell says: `ends`, `stays`, or the letter of a note. */
export type Cell = string

/** Reads the table: cells by event and credential. Throws an Error for a line that doesn't fit its columns. */
export function readTakingAway(text = takingAway): ReadonlyMap<string, ReadonlyMap<Credential, Cell>> {
  const [head, ...lines] = text
    .split('\n')
    .filter(line => line.trim() !== '' && !line.startsWith('#'))
    .map(line => ({ event: line.slice(0, 52).trim(), words: line.slice(52).trim().split(/ +/) }))
  const columns = Object.keys(credentials) as Credential[]
  if (String(head?.words) !== String(columns)) throw new Error(`other columns: ${head?.words}`)
  const rows = lines.map(({ event, words }) => {
    const cells = words.map(word => /^\((\w)\)$/.exec(word)?.[1] ?? word)
    const isCell = (cell: string) => cell === 'ends' || cell === 'stays' || notes[cell] !== undefined
    if (cells.length !== columns.length || !cells.every(isCell)) throw new Error(`not a row: ${event} ${words}`)
    const row = new Map<Credential, Cell>(columns.map((credential, index) => [credential, cells[index]!]))
    for (const [token, as] of [
      ['app', 'pwd'],
      ['tool', 'pwd'],
      ['issued', 'recovery'],
    ] as const)
      row.set(token, besides[token][event] ?? row.get(as)!)
    return [event, row] as const
  })
  if (new Set(rows.map(([event]) => event)).size !== rows.length) throw new Error('a row twice')
  return new Map(rows)
}
