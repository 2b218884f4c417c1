import { Scope } from '../../proto/gen/auth/v1/scopes_pb.js'

/** What services may be allowed to do, as it is written and stored: `users.read` is SCOPE_USERS_READ. */
export const scopeNames = ['users.read', 'tokens.verify', 'tokens.watch', 'clients.forward', 'users.watch'] as const

/** The name of a scope. */
export type ScopeName = (typeof scopeNames)[number]

/** The name of a scope in a message; undefined for none, and for one of a newer version. */
export function scopeName(value: Scope): ScopeName | undefined {
  const name = Scope[value]?.toLowerCase().replace('_', '.')
  return scopeNames.find(each => each === name)
}

/** The scope of a name, for messages. */
export function scopeOf(name: ScopeName): Scope {
  return Scope[name.toUpperCase().replace('.', '_') as keyof typeof Scope]
}
