/** An institution with clients, for tests of members. */
import type { SignedUp, TestService } from './service.js'

/** An organization with an active ROLE_INSTITUTION. */
export interface School {
  readonly id: number
  readonly activationkey: string
  readonly email: string
  readonly institution: SignedUp & { readonly providerKey: string }
  /** A client that the institution's key activated. */
  member(fields?: Record<string, unknown>): Promise<SignedUp>
}

/** A new organization with an institution. */
export async function openSchool(service: TestService): Promise<School> {
  const { id, activationkey, email } = await service.organization()
  const institution = await service.institution({ activationkey })
  return {
    id,
    activationkey,
    email,
    institution,
    async member(fields) {
      const user = await service.signUp('ROLE_CLIENT', fields)
      const query = { username: user.username, activationkey: institution.providerKey }
      const { status, text } = await service.request('POST', '/users/activate', { token: user.token, query })
      if (status !== 200) throw new Error(text)
      return user
    },
  }
}
