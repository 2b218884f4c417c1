/** The user who is signed in. The id never changes, a username can; there is one role, and none before activation. */
export interface User {
  readonly id: number
  readonly username: string
  readonly roles: readonly string[]
  readonly active: boolean
}

/** Reads an access token, which needn’t be verified: it comes from the registry. `life` is in ms. */
export function readToken(token: string): { readonly user: User; readonly life: number } {
  const base64 = token.split('.')[1]!.replace(/-/g, '+').replace(/_/g, '/')
  const bytes = Array.from(atob(base64), char => `%${char.charCodeAt(0).toString(16).padStart(2, '0')}`)
  const { sub, username, roles, active, iat, exp } = JSON.parse(decodeURIComponent(bytes.join('')))
  // Both are by the clock of the registry: their difference is right, whatever the device shows.
  return { user: { id: Number(sub), username, roles, active }, life: (exp - iat) * 1000 }
}

/** The origin of an absolute URL; empty for other texts, and wherever programs may read a URL in different ways. */
export const originOf = (url: string) => /^(https?:\/\/[\w.:[\]-]+)([/?#]|$)/i.exec(url)?.[1]?.toLowerCase() ?? ''

/** Whether an answer refuses the token: with 401, or as the registry does, with 500 and the reason INVALID_TOKEN. */
export async function refusesToken(response: Response): Promise<boolean> {
  if (response.status !== 500) return response.status === 401
  const problem = await response
    .clone()
    .json()
    .catch(() => undefined)
  return problem?.reason === 'INVALID_TOKEN'
}
