import { type Revision, type Route, revisions, routes } from './routes.js'

/** What a path leads to: an action for each method. */
export interface Resource<Action> {
  readonly actions: ReadonlyMap<string, Action>
  /** Value of the header `Allow` (RFC 9110). */
  readonly allow: string
  /** Whether the last segment of the path is a variable. */
  readonly variable: boolean
}

/** Finds the resource of a path without its query; undefined when there is none. */
export type Lookup<Action> = (path: string) => Resource<Action> | undefined

/**
 * Lays out the routes under `/` (the default revision), `/1.0.0` and `/1.0.2`, and the given extra paths, once, so that
 * finding one is a map look-up. A word that is a path of any revision is never the value of a variable.
 */
export function createLookup<Action>(
  defaultRevision: Revision,
  action: (route: Route, revision: Revision) => Action,
  extra: Readonly<Record<string, Action>>,
): Lookup<Action> {
  const fixed = new Map<string, Resource<Action>>()
  const variable = new Map<string, Resource<Action>>()
  const reserved = new Set<string>()

  function add(method: string, path: string, value: Action) {
    const open = path.indexOf('{')
    const [map, key] = open < 0 ? [fixed, path] : [variable, path.slice(0, open)]
    const actions = new Map(map.get(key)?.actions).set(method, value)
    if (method === 'GET') actions.set('HEAD', value)
    map.set(key, { actions, allow: [...actions.keys(), 'OPTIONS'].join(', '), variable: open >= 0 })
  }

  for (const [base, revision] of [['', defaultRevision] as const, ...revisions.map(r => [`/${r}`, r] as const)]) {
    for (const route of routes) {
      // Clients may send `{username}` itself as the value.
      if (!route.path.includes('{')) reserved.add(base + route.path)
      if (route.revisions?.includes(revision) ?? true) add(route.method, base + route.path, action(route, revision))
    }
  }
  for (const [path, value] of Object.entries(extra)) add('GET', path, value)

  return path => {
    const found = fixed.get(path)
    if (found || reserved.has(path)) return found
    const end = path.lastIndexOf('/') + 1
    return end < path.length ? variable.get(path.slice(0, end)) : undefined
  }
}
