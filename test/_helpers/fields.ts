/**
 * The fields of a profile, as clients know them. A new field gets its row here, and what tests promise of every field is tested
 * of it: at sign-up, in records, changes, exports, lists and flags.
 */

interface Field {
  /** A value that is accepted, and shown as it was given. */
  readonly good: string
  /** A text that every form refuses. */
  readonly wrong: string
  readonly column: string
  /** What the column holds of `good`, where that differs. */
  readonly stored?: string
  /** Its name in the definitions, where that isn't its name in JSON. */
  readonly defined?: string
  readonly required?: true
}

/** The fields by their names in JSON. */
export const profileFields: Readonly<Record<string, Field>> = {
  nickname: { good: 'Capitu', wrong: 'ana\u200bana', column: 'nickname', required: true },
  dateofborn: { good: '29/02/1992', wrong: '30/02/1992', column: 'date_of_birth', stored: '1992-02-29' },
  gender: { good: 'F', wrong: 'X', column: 'gender' },
  state: { good: 'RJ', wrong: 'RJX', column: 'state', required: true },
  city: { good: 'Rio de Janeiro', wrong: 'x'.repeat(256), column: 'city', required: true },
  institutiontype: { good: 'E', wrong: 'F', column: 'institution_type' },
  institution: { good: 'Escola do Mar', wrong: 'a\nb', column: 'institution' },
}

export const profileNames = Object.keys(profileFields)
export const requiredNames = profileNames.filter(name => profileFields[name]!.required)
export const optionalNames = profileNames.filter(name => !profileFields[name]!.required)

/** What each field has in one way, by its name. */
const each = (value: (field: Field, name: string) => string) =>
  Object.fromEntries(Object.entries(profileFields).map(([name, field]) => [name, value(field, name)]))

/** A value of every field. */
export const profileValues = each(({ good }) => good)

/** A value of every field that is refused. */
export const wrongValues = each(({ wrong }) => wrong)

/** What the columns hold of `profileValues`, by the names of the fields. */
export const storedValues = each(({ good, stored = good }) => stored)

/** The names in the definitions, which masks, files and events have. */
export const definedNames = each(({ defined }, name) => defined ?? name)
