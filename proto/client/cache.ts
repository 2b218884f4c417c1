/** A cache of texts’ values that drops the ones that weren’t used for longest. */
export interface Cache<V> {
  get(text: string): V | undefined
  set(text: string, value: V): void
  delete(text: string): void
}

/** Creates a cache of at most `max` values. It drops half of them at a time: dropping one by one slows a `Map` down. */
export function createCache<V>(max: number): Cache<V> {
  let recent = new Map<string, V>()
  let older = new Map<string, V>()

  function set(text: string, value: V): void {
    if (recent.size >= max / 2) {
      older = recent
      recent = new Map()
    }
    recent.set(text, value)
  }

  return {
    get(text) {
      const known = recent.get(text)
      if (known !== undefined) return known
      const value = older.get(text)
      if (value !== undefined) {
        older.delete(text)
        set(text, value)
      }
      return value
    },
    set,
    delete(text) {
      recent.delete(text)
      older.delete(text)
    },
  }
}
