/** A cache of texts’ values that drops the older ones. */
export interface Cache<V> {
  get(text: string): V | undefined
  set(text: string, value: V): void
  delete(text: string): void
}

/** Values that share a place. */
const ways = 4

/**
 * Creates a cache of at most `max` values. The last characters of a text, which are random in a token, select a place; the
 * oldest of its four values is dropped for a new one. A `Map` would hash whole tokens, and grow and be replaced again and
 * again: that costs a new token as much as the rest of what this package does for it.
 */
export function createCache<V>(max: number): Cache<V> {
  const places = Math.max(1, Math.floor(max / ways))
  const texts = new Array<string | undefined>(places * ways).fill(undefined)
  const values = new Array<V | undefined>(places * ways).fill(undefined)

  /** The first index of a text’s place. The very last character of a token has two bits only. */
  function placeOf(text: string): number {
    let number = 0
    for (let at = Math.max(0, text.length - 5); at < text.length - 1; at++) number = number * 67 + text.charCodeAt(at)
    return ways * (number % places)
  }

  function find(text: string): number {
    const first = placeOf(text)
    for (let index = first; index < first + ways; index++) if (texts[index] === text) return index
    return -1
  }

  return {
    get(text) {
      const index = find(text)
      return index < 0 ? undefined : values[index]
    },
    set(text, value) {
      const first = placeOf(text)
      const known = find(text)
      for (let index = known < 0 ? first + ways - 1 : known; index > first; index--) {
        texts[index] = texts[index - 1]
        values[index] = values[index - 1]
      }
      texts[first] = text
      values[first] = value
    },
    delete(text) {
      const index = find(text)
      if (index < 0) return
      texts[index] = undefined
      values[index] = undefined
    },
  }
}
