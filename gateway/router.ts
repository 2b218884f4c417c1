import { type Revision, type Route, revisions } from './operations.js'

/** The resource of a path: an action for each method. */
export interface Resource<Action> {
  readonly actions: ReadonlyMap<string, Action>
  /** Its path, with the variable in braces. */
  readonly path: string
  /** Value of the header `Allow` (RFC 9110). */
  readonly allow: string
  /** Whether the last segment of the path is a variable. */
  readonly variable: boolean
  /** Whether pages of clients may read its answers. */
  readonly isShared: boolean
}

/** Finds the resource of a path without its query; undefined if there is none. */
type Lookup<Action> = (path: string) => Resource<Action> | undefined

/**
 * Indexes the routes under `/` (the default revision), `/1.0.0` and `/1.0.2`, so that a look-up is a map access. A word that
 * is a path of any revision is never the value of a variable.
 */
export function createLookup<Action>(
  routes: readonly Route[],
  defaultRevision: Revision,
  action: (route: Route, revision: Revision) => Action,
): Lookup<Action> {
  const fixed = new Map<string, Resource<Action>>()
  const variable = new Map<string, Resource<Action>>()
  const reserved = new Set<string>()

  function add({ method, isShared = false }: Route, path: string, value: Action) {
    const open = path.indexOf('{')
    const [map, key] = open < 0 ? [fixed, path] : [variable, path.slice(0, open)]
    const actions = new Map(map.get(key)?.actions).set(method, value)
    if (method === 'GET') actions.set('HEAD', value)
    map.set(key, { actions, path, allow: [...actions.keys(), 'OPTIONS'].join(', '), variable: open >= 0, isShared })
  }

  const bases = [['', defaultRevision] as const, ...revisions.map(revision => [`/${revision}`, revision] as const)]
  for (const route of routes) {
    const rootOnly = route.revisions?.length === 0
    for (const [base, revision] of rootOnly ? bases.slice(0, 1) : bases) {
      const path = base + route.path
      // Clients may send the literal `{username}` as the value.
      if (!path.includes('{')) reserved.add(path)
      if (rootOnly || (route.revisions?.includes(revision) ?? true)) add(route, path, action(route, revision))
    }
  }

  return path => {
    const found = fixed.get(path)
    if (found || reserved.has(path)) return found
    const end = path.lastIndexOf('/') + 1
    return end < path.length ? variable.get(path.slice(0, end)) : undefined
  }
}
