// The help of `import` behind its options.
import { type Noun, nouns } from './nouns.js'

/** How a row identifies a record, and what it may change. */
const remarks: Record<Noun, string> = {
  organizations: `
A row identifies an organization by id or, without an id, by INEP code. If it
has neither, or no organization has the INEP code, the row creates one. E-mail
address and INEP code of an existing organization change only with
--change-accounts, and the former address is notified.`,
  users: `
A row identifies a user by id or, without an id, by username. If no user has the
username, the row creates one. An import never changes an administrator or the
role of an existing user. Username, e-mail address, activity, organization and
password of an existing user change only with --change-accounts, and the user is
notified by e-mail. password_hash takes bcrypt hashes. The service hashes the
values of password.`,
}

/** What only moves from other systems bring. */
const moved: Record<Noun, string> = {
  organizations: 'Only then, activation_key is read: the key of a new organization.',
  users: `Only then, provider_key and security_answers are read. The latter is JSON:
[{"question":"…","answer":"…"}].`,
}

/** Which fields an empty cell leaves unchanged. */
const kept: Record<Noun, string> = {
  organizations: 'active and creation_date',
  users: 'Booleans, nicknames and passwords',
}

export function helpOf(noun: Noun): string {
  return `${remarks[noun]}

Columns: ${fold(Object.keys(nouns[noun].columns))}.

With --keep-ids, for lists of other systems, a row creates a record with its id.
If the id exists, the row is unchanged or, with other content, rejected.
${moved[noun]}

A missing column leaves the field unchanged. An empty cell or NULL clears an
optional field, and rejects the row if the field is required. It leaves
${kept[noun]} unchanged.

Cells are separated by commas, semicolons, tabs or bars. Booleans are True and
False, t and f, 1 and 0, yes and no, or the same in Portuguese. Dates are
dd/MM/yyyy or yyyy-MM-dd, with or without a time. The file is UTF-8, UTF-16 or
Windows-1252. The command says how it reads the file. Other columns are ignored,
with a warning.

If rows are rejected, the exit code is 6; with --all-or-nothing, nothing is
applied and the exit code is 1.

Examples:
  $ auth-admin ${noun} import ${noun}.csv --dry-run
  $ auth-admin ${noun} import ${noun}.csv --report rejected.csv
  $ auth-admin ${noun} import ${noun}.csv --keep-ids`
}

/** Names behind `Columns: `, in lines of at most 80 characters. */
function fold(names: readonly string[]): string {
  let [text, length] = ['', 'Columns:'.length]
  for (const [index, name] of names.entries()) {
    const word = index < names.length - 1 ? `${name},` : name
    const breaks = length + word.length + 2 > 80
    text += `${breaks ? '\n' : text === '' ? '' : ' '}${word}`
    length = breaks ? word.length : length + word.length + 1
  }
  return text
}
