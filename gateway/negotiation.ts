// What a client prefers, by its Accept headers.

/** The language that a client prefers: Portuguese where it has more weight than English, else English. */
export function preferredLocale(acceptLanguage: string | undefined): 'en' | 'pt-BR' {
  const weights = [...weightsOf(acceptLanguage)]
  const weightOf = (language: string) =>
    Math.max(0, ...weights.filter(([range]) => range.split('-', 1)[0] === language).map(([, weight]) => weight))
  return weightOf('pt') > weightOf('en') ? 'pt-BR' : 'en'
}

/** The weight of each range in a header such as Accept-Language (RFC 9110, 12.4.2). */
export function weightsOf(header = ''): Map<string, number> {
  return new Map(
    header
      .toLowerCase()
      .split(',')
      .map(range => {
        const [name = '', weight = 'q=1'] = range.split(';').map(part => part.trim())
        return [name, Number(weight.replace('q=', '')) || 0]
      }),
  )
}
