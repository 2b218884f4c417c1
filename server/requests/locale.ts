/** Languages of e-mails and problem documents. */
export type Locale = 'pt-BR' | 'en'

/**
 * Chooses the language for an `Accept-Language` header: lookup (RFC 4647, 3.4) among the languages of e-mails and problem documents, by
 * quality. Any Portuguese matches pt-BR. Returns `fallback` without a header or match, and when `*` matches.
 */
export function chooseLocale(acceptLanguage: string | undefined, fallback: Locale): Locale {
  const ranges = (acceptLanguage ?? '')
    .slice(0, 1000)
    .split(',')
    .map(range => /^\s*([a-z]{1,8}|\*)(?:-[a-z0-9-]*)?\s*(?:;\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*)?$/i.exec(range))
    .filter(range => range !== null)
    .map(([, language, quality = '1']) => ({ language: language!.toLowerCase(), quality: Number(quality) }))
    .filter(({ quality }) => quality > 0)
    .sort((a, b) => b.quality - a.quality)
  for (const { language } of ranges) {
    if (language === 'pt') return 'pt-BR'
    if (language === 'en') return 'en'
    if (language === '*') return fallback
  }
  return fallback
}
