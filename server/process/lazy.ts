import { createRequire } from 'node:module'

/**
 * Loads a package when it is used for the first time, for what a process that starts and waits for calls can do without.
 * Packages in CommonJS only: they are there at once, so what uses them needn't wait.
 */
export function onFirstUse<T>(name: string): () => T {
  return madeOnce(() => createRequire(import.meta.url)(name) as T)
}

/** What is made when it is asked for the first time: what takes long to make is no part of the start. */
export function madeOnce<T>(make: () => T): () => T {
  let made: T | undefined
  return () => {
    made ??= make()
    return made
  }
}

/**
 * Options of an LRUCache that holds so many entries and takes the room for them as they come. Its `max` takes all of it
 * at once: 2.6 MB and ten milliseconds for 100,000.
 */
export function upTo(entries: number) {
  return { maxSize: entries, sizeCalculation: () => 1 }
}
