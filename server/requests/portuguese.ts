// What the service says in Portuguese, in refusals and at the terminal. The code has its sentences in English, which are the keys of portuguese.json, as in GNU
// gettext: `{0}` stands for a value, which is itself translated if it is in the catalogue. A sentence that isn't stays in
// English; test/gateway/http.test.ts finds those that the code can say.
import texts from './portuguese.json' with { type: 'json' }

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

/** What a refusal says, in Portuguese: its text, which may repeat all wrong fields, and what is wrong with each of them. */
export function refusalInPortuguese<F extends { readonly field: string; readonly message: string }>(
  text: string,
  fields: readonly F[],
): { text: string; fields: F[] } {
  const repeat = (all: readonly F[]) => all.map(({ field, message }) => `${field}: ${message}`).join(' ')
  const translated = fields.map(each => ({ ...each, message: toPortuguese(each.message) }))
  const repeats = fields.length > 0 && text === repeat(fields)
  return { text: repeats ? repeat(translated) : toPortuguese(text), fields: translated }
}
