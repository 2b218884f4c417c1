import { limits, tooLong } from '../rules/sizes.js'
import { wrongFields } from './wrong-fields.js'

/** A text to search for, without space around it; undefined when there is nothing in it. Refuses one that is too long. */
export function checkText(field: string, text: string | undefined): string | undefined {
  if (tooLong(text ?? '', 'text') || /\0|\p{Cs}/u.test(text ?? '')) {
    wrongFields([{ field, message: `Use at most ${limits.text} characters.` }])
  }
  return text?.trim() || undefined
}
