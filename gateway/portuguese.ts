// Problem documents in Portuguese.
import { refusalInPortuguese } from '../server/requests/portuguese.js'
import type { Problem } from './problem.js'

/** A problem whose texts are in Portuguese, those of a server too old to translate them included. */
export function inPortuguese(problem: Problem): Problem {
  const { text, fields } = refusalInPortuguese(problem.detail, problem.errors ?? [])
  return { ...problem, detail: text, ...(problem.errors && { errors: fields }) }
}
