import { createRequire } from 'node:module'

/**
 * Loads a package when it is used for the first time, for what a process that starts and waits for calls can do without.
 * Packages in CommonJS only: they are there at once, so what uses them needn't wait.
 */
export function onFirstUse<T>(name: string): () => T {
  let loaded: T | undefined
  return () => {
    loaded ??= createRequire(import.meta.url)(name) as T
    return loaded
  }
}

/**
 * Options of an LRUCache that holds so many entries and takes the room for them as they come. Its `max` takes all of it
 * at once: 2.6 MB and ten milliseconds for 100,000.
 */
export function upTo(entries: number) {
  return { maxSize: entries, sizeCalculation: () => 1 }
}
