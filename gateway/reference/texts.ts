/**
 * What the pages say: their own texts are in english.json and portuguese.json. Descriptions come from the OpenAPI documents, in
 * English; portuguese.json also has the summaries, and the build fails if one is missing.
 */
import english from './english.json' with { type: 'json' }
import portuguese from './portuguese.json' with { type: 'json' }

/** Languages of the pages, the default first. */
export const locales = ['en', 'pt-BR'] as const

/** A language of the pages. */
export type Locale = (typeof locales)[number]

/** Names of the languages, in themselves. */
export const localeNames: Readonly<Record<Locale, string>> = { en: 'English', 'pt-BR': 'Português' }

/** The texts of a language. */
export type Texts = typeof english.page & { readonly tags: Readonly<Record<string, string>> }

/** The texts of each language. */
export const texts: Readonly<Record<Locale, Texts>> = { en: english.page, 'pt-BR': portuguese.page }

/** Portuguese for what the OpenAPI documents say of tags, operations and reasons. */
export const translated: {
  readonly groups: Readonly<Record<string, string>>
  readonly summaries: Readonly<Record<string, string>>
  readonly reasons: Readonly<Record<string, { readonly meaning: string; readonly remedy: string }>>
} = portuguese
