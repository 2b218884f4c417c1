/** The worst that requests of each kind can do to others, as far as it is known. */
import { randomUUID } from 'node:crypto'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { type Answer, head } from './clients.js'
import { emailOf, formOf, password, usernameOf } from './operations.js'

/** What a flood is made of. */
export type Kind = 'text' | 'signups' | 'logins' | 'answers' | 'activations' | 'lookups' | 'emails'

/** All kinds. */
export const kinds: readonly Kind[] = ['text', 'signups', 'logins', 'answers', 'activations', 'lookups', 'emails']

/** An account of whoever floods. */
export interface Own {
  readonly username: string
  readonly token: string
  readonly role: 'ROLE_INSTITUTION' | 'ROLE_CLIENT'
}

/** What whoever floods from an address has and knows. */
export interface Attacker {
  /** Accounts of its own: inactive, of both roles, all with the e-mail address of somebody else. */
  readonly own: readonly Own[]
  /** Numbers of other users. */
  readonly victims: readonly number[]
  /** A number that no other request has. */
  serial(): number
}

/** Where a connection gets its requests. */
export interface Source {
  /** How many of them are to be under way at a time. */
  readonly depth: number
  /** The next request; `last` is the answer that came last. */
  next(last: Answer | undefined): Buffer
}

/** The requests of connection number `line` of an attacker. */
export const sources: Readonly<Record<Kind, (attacker: Attacker, line: number) => Source>> = {
  text: ({ victims }) => inTurn(4, worstTexts(usernameOf(victims[0]!))),

  signups: ({ serial }) => ({
    depth: 50,
    next() {
      const name = `enxurrada ${serial()}`
      return json('/users/signup', formOf(name, name))
    },
  }),

  logins: ({ victims, serial }) => ({
    depth: 50,
    next() {
      const number = serial()
      // Every third account is one that nobody has.
      const username = number % 3 === 0 ? `ninguém ${number}` : usernameOf(victims[number % victims.length]!)
      return json('/users/login', { username, password: `palpite ${number}` })
    },
  }),

  answers: ({ victims, serial }) => ({
    depth: 50,
    next() {
      const username = encodeURIComponent(usernameOf(victims[serial() % victims.length]!))
      const answers = Array.from({ length: 8 }, (_, index) => ({ forgotpasswordquestionsid: index + 1, answer: 'Jaú' }))
      return json(`/forgotpasswords/loginbyusernameandanswers?username=${username}`, answers)
    },
  }),

  activations: ({ own, serial }) => ({
    depth: 50,
    next() {
      const { username, token } = own[serial() % own.length]!
      return json('/users/activate', { username, activationkey: randomUUID() }, token)
    },
  }),

  lookups: ({ serial }) => ({
    depth: 50,
    next() {
      const number = serial()
      if (number % 3 === 0) return json(pathOf(Users.method.existsByUsername), { username: `alguém ${number}` })
      if (number % 3 === 1) return json('/users/existsByNickname', { nickname: `alguém ${number}` })
      return json('/users/existsByUsername', { username: `(11)9${number}` })
    },
  }),

  emails(attacker, line) {
    const { own, victims, serial } = attacker
    const [clients, institutions] = [own.filter(isClient), own.filter(each => !isClient(each))]
    if (line % 3 === 0) return changes(clients[line % clients.length]!)
    return {
      depth: 20,
      next() {
        const number = serial()
        if (line % 3 === 1) {
          const victim = victims[number % victims.length]!
          const email = emailOf(victim)
          return json('/forgotpasswords/sendkeybyemail', { username: usernameOf(victim), email })
        }
        const { username, token } = institutions[number % institutions.length]!
        const path = '/1.0.0/users/sendadminkeybyemailpartner'
        return json(path, { username, emailpartner: 'escola1@example.org' }, token)
      },
    }
  },
}

const isClient = ({ role }: Own) => role === 'ROLE_CLIENT'

/** Changes its own password again and again, which tells the owner of the e-mail address each time. */
function changes({ username, token }: Own): Source {
  let current: string | undefined = token
  return {
    depth: 1,
    next(last) {
      const text = last?.body.toString() ?? ''
      if (text.startsWith('eyJ')) current = text
      if (current === undefined) return json('/users/login', { username, password })
      const request = json('/forgotpasswords/passwordupdatebyusername', { newPassword: password }, current)
      current = undefined
      return request
    },
  }
}

/** 60 KB of marks that a normal form has to put in another order, in every field that takes text. */
function worstTexts(victim: string): Buffer[] {
  const marks = `a${'\u0301\u0316'.repeat(14_800)}`
  const half = marks.slice(0, marks.length / 2)
  const answers = [1, 2].map(id => ({ forgotpasswordquestionsid: id, answer: half }))
  return [
    json('/users/login', { username: marks, password }),
    json('/users/login', { username: victim, password: marks }),
    json('/users/signup', formOf(marks, 'Novata')),
    json('/users/signup', formOf('novata', marks)),
    json('/users/signup', formOf('novata', 'Novata', { password: marks })),
    json('/users/signup', formOf('novata', 'Novata', { email: `${marks}@example.org` })),
    json('/users/existsByUsername', { username: marks }),
    json('/users/existsByNickname', { nickname: marks }),
    json(pathOf(Users.method.existsByUsername), { username: marks }),
    json(pathOf(Users.method.activate), { username: marks, activationkey: 'x' }),
    json(pathOf(ForgotPasswords.method.passwordUpdateByUsername), { username: marks, newPassword: password }),
    json('/forgotpasswords/sendkeybyemail', { username: marks, email: 'a@example.org' }),
    json('/forgotpasswords/sendkeybyemail', { username: victim, email: `${marks}@example.org` }),
    json('/forgotpasswords/loginbyusernameandkey', { username: marks, key: 'ABCDEFGH' }),
    json(`/forgotpasswords/loginbyusernameandanswers?username=${encodeURIComponent(victim)}`, answers),
  ]
}

function inTurn(depth: number, requests: readonly Buffer[]): Source {
  let sent = Math.floor(Math.random() * requests.length)
  return { depth, next: () => requests[sent++ % requests.length]! }
}

function pathOf({ parent, name }: { parent: { typeName: string }; name: string }): string {
  return `/${parent.typeName}/${name}`
}

function json(path: string, content: object, token?: string): Buffer {
  const body = Buffer.from(JSON.stringify(content))
  const wire = { method: 'POST', path, contentType: 'application/json', body, ...(token && { token }) } as const
  return Buffer.concat([Buffer.from(head(wire)), body])
}
