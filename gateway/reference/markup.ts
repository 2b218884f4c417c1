// What the pages of the reference mark up in their texts.
import { type Html, html } from '../html.js'

/** The paragraphs of a text, with `code` between backticks; `mark` marks up the rest. */
export function paragraphs(text = '', mark?: (text: string) => Html): Html[] {
  return text.split('\n\n').map(paragraph => html`<p>${inline(paragraph, mark)}</p>`)
}

/**
 * Markdown, as far as the introductions have it: headings of the second level, fenced code, and paragraphs, of which `mark`
 * marks up what isn't code.
 */
export function markdown(text: string, mark: (text: string) => Html): Html[] {
  return text
    .trim()
    .split('\n\n')
    .map(block => {
      const [, heading] = /^## (.*)$/.exec(block) ?? []
      if (heading !== undefined) return html`<h2>${heading}</h2>`
      const [, language, code] = /^```(\w*)\n(.*)\n```$/s.exec(block) ?? []
      if (code === undefined) return html`<p>${inline(block, mark)}</p>`
      return language === 'sh' ? html`<pre class="curl">${code}</pre>` : html`<pre>${code}</pre>`
    })
}

/** A text with `code` between backticks; `mark` marks up the rest. */
export function inline(text = '', mark = (plain: string) => html`${plain}`): Html[] {
  return text.split('`').map((part, at) => (at % 2 === 0 ? mark(part) : html`<code>${part}</code>`))
}
