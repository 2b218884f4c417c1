// The language of the terminal (POSIX, 8.2). The code has its texts in English, and every way to the screen translates: what is
// printed, prompts, help. portuguese.json has the texts of the command line, as that of the server has those that it says;
// test/cli/language.test.ts finds what is missing. Names, documents of `--json` and files are the same in both.
import { catalogue, translatorBy } from '../../server/requests/portuguese.js'
import texts from './portuguese.json' with { type: 'json' }

// What users chose, such as a name, stays as it is: only a marked value is a text.
const toPortuguese = translatorBy({ ...catalogue, ...texts })

/** A text in the language of the terminal; the same text if it is in no catalogue. */
export function inTerminalLanguage(english: string): string {
  const { LC_ALL, LC_MESSAGES, LANG } = process.env
  return /^pt/i.test(LC_ALL || LC_MESSAGES || LANG || '') ? toPortuguese(english) : english
}

/** Paragraphs of help: each is a text, folded in lines of 80 columns; lines that are indented are commands. */
export function helpInTerminalLanguage(english: string): string {
  return english
    .split('\n\n')
    .map(paragraph => {
      const [text = '', ...commands] = paragraph.split(/\n(?= {2})/)
      const whole = text.replaceAll('\n', ' ').trim()
      const said = inTerminalLanguage(whole)
      return [said === whole ? text : fold(said), ...commands].join('\n')
    })
    .join('\n\n')
}

function fold(text: string): string {
  return text.replace(/(?![^\n]{1,80}$)([^\n]{1,80}) /g, '$1\n')
}
