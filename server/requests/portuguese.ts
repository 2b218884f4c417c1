// What the service says in Portuguese, in refusals and at the terminal. The code has its sentences in English, which are the
// keys of portuguese.json, as in GNU gettext: `{0}` stands for a value, which is itself translated if it is in the catalogue. A
// sentence that isn't stays in English; test/gateway/http.test.ts finds those that the code can say.
import texts from './portuguese.json' with { type: 'json' }

/** Sentences by those in English: `{0}` stands for a value as it is, `{0!}` for one that is a text of the catalogue. */
type Catalogue = Readonly<Record<string, string>>

/** What the service says. */
export const catalogue: Catalogue = Object.fromEntries(
  Object.entries(texts).map(([english, portuguese]) => [english, portuguese.replace(/\{(\d)\}/g, '{$1!}')]),
)

/** A sentence or phrase in Portuguese; the same text if the catalogue doesn't have it. */
export const toPortuguese = translatorBy(catalogue)

/** Makes a function that translates a text by a catalogue, and leaves one that isn't in it as it is. */
export function translatorBy(catalogue: Catalogue): (english: string) => string {
  let patterns: readonly { readonly pattern: RegExp; readonly translated: string }[] | undefined
  return function translate(english): string {
    if (Object.hasOwn(catalogue, english)) return catalogue[english]!
    patterns ??= patternsOf(catalogue)
    for (const { pattern, translated } of patterns) {
      const values = pattern.exec(english)
      if (!values) continue
      return translated.replace(/\{(\d)(!?)\}/g, (_, index, isText) => {
        const value = values[Number(index) + 1]!
        return isText ? translate(value) : value
      })
    }
    return english
  }
}

/** The sentences with values, the most specific first. */
function patternsOf(catalogue: Catalogue) {
  return Object.entries(catalogue)
    .filter(([english]) => english.includes('{0}'))
    .sort(([a], [b]) => b.length - a.length)
    .map(([english, translated]) => {
      const literal = english.replace(/[.*+?^$()|[\]\\]/g, '\\$&')
      return { pattern: new RegExp(`^${literal.replace(/\{\d\}/g, '(.+?)')}$`, 's'), translated }
    })
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
