/** Many clients at many addresses. */
import { randomInt } from 'node:crypto'
import { type Answer, password, type RequestOptions, type SignedUp, type TestService } from './service.js'
import { idOf } from './tokens.js'

let network = randomInt(0x10000)

/** An address in another /24 than the 65,535 addresses before. */
export function anyAddress(): string {
  network = (network + 1) % 0x10000
  return `10.${network >> 8}.${network & 255}.7`
}

/** Headers of a request from an address. */
export const from = (address: string) => ({ 'x-forwarded-for': address })

/** A login at an address, a unique one unless it is given. */
export const login = (
  service: Pick<TestService, 'request'>,
  username: string,
  address = anyAddress(),
  secret = password,
  { headers, ...more }: RequestOptions = {},
) =>
  service.request('POST', '/users/login', {
    body: { username, password: secret },
    headers: { ...from(address), ...headers },
    ...more,
  })

/** An active user whose account knows an address. */
export async function known(
  service: TestService,
  address: string,
  fields?: Record<string, unknown>,
): Promise<SignedUp> {
  const user = await service.signUp('ROLE_CLIENT', fields)
  const { database, users } = service.registry
  await database.transact(t => users.activate({ id: idOf(user.token), role: 'ROLE_CLIENT' } as never, null, t))
  const { status, text } = await login(service, user.username, address)
  if (status !== 200) throw new Error(text)
  return user
}

/** How many answers there are of each status. */
export const statuses = (answers: readonly Answer[]) =>
  Object.fromEntries(
    [...new Set(answers.map(({ status }) => status))].map(each => [
      each,
      answers.filter(({ status }) => status === each).length,
    ]),
  )
