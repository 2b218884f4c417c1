// Problem documents in Portuguese.
import { toPortuguese } from '../server/requests/portuguese.js'
import type { Problem } from './problem.js'

/** A problem whose texts are in Portuguese. The reason and the names of fields stay. */
export function inPortuguese(problem: Problem): Problem {
  const { detail } = problem
  const errors = problem.errors?.map(({ field, message }) => ({ field, message: toPortuguese(message) }))
  // A detail that repeats all wrong fields.
  const repeats = detail === problem.errors?.map(({ field, message }) => `${field}: ${message}`).join(' ')
  return {
    ...problem,
    detail: repeats ? errors!.map(({ field, message }) => `${field}: ${message}`).join(' ') : toPortuguese(detail),
    errors,
  }
}
