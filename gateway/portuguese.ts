// Problem documents in Portuguese. The code has its sentences in English, which are the keys of portuguese.json, as in GNU
// gettext: `{0}` stands for a value, which is itself translated if it is in the catalogue. A sentence that isn't stays in
// English; test/gateway/http.test.ts finds those that the code can send.
import texts from './portuguese.json' with { type: 'json' }
import type { Problem } from './problem.js'

const catalogue: Readonly<Record<string, string>> = texts

/** The sentences with values, the most specific first. */
const patterns = Object.entries(catalogue)
  .filter(([english]) => english.includes('{0}'))
  .sort(([a], [b]) => b.length - a.length)
  .map(([english, portuguese]) => {
    const literal = english.replace(/[.*+?^$()|[\]\\]/g, '\\$&')
    return { pattern: new RegExp(`^${literal.replace(/\{\d\}/g, '(.+?)')}$`, 's'), portuguese }
  })

/** A sentence or phrase in Portuguese; the same text if the catalogue doesn't have it. */
export function toPortuguese(english: string): string {
  const whole = catalogue[english]
  if (whole !== undefined) return whole
  for (const { pattern, portuguese } of patterns) {
    const values = pattern.exec(english)
    if (values) return portuguese.replace(/\{(\d)\}/g, (_, index) => toPortuguese(values[Number(index) + 1]!))
  }
  return english
}

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
