import { longerThan } from '../rules/fault.js'
import { type Role, roles } from '../rules/roles.js'
import { maxLengths, tooLong } from '../rules/sizes.js'
import { wrongField, wrongFields } from './wrong-fields.js'

/** A text to search for, trimmed; undefined when it is empty. Refuses a text that is too long with INVALID_ARGUMENT. */
export function checkText(field: string, text: string | undefined): string | undefined {
  if (tooLong(text ?? '', 'text') || /\0|\p{Cs}/u.test(text ?? '')) {
    wrongFields([{ field, ...longerThan(maxLengths.text) }])
  }
  return text?.trim() || undefined
}

/** Reads a role. Refuses any other text with INVALID_ARGUMENT. */
export function checkRole(field: string, role: string | undefined): Role {
  const known = roles.find(each => each === role)
  return known ?? wrongField(field, 'UNKNOWN_VALUE', `Use one of ${roles.join(', ')}.`)
}
