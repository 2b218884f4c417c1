import { wrongFields } from '../requests/wrong-fields.js'
import { limits, tooLong } from '../rules/sizes.js'

/** A text to search for, trimmed; undefined when it is empty. Refuses a text that is too long with INVALID_ARGUMENT. */
export function checkText(field: string, text: string | undefined): string | undefined {
  if (tooLong(text ?? '', 'text') || /\0|\p{Cs}/u.test(text ?? '')) {
    wrongFields([{ field, message: `Use at most ${limits.text} characters.` }])
  }
  return text?.trim() || undefined
}
