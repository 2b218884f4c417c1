import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { AdministeredUserRow, AdministeredUsers } from '../models/administered-user.js'
import type { OrganizationRow, Organizations } from '../models/organization.js'
import type { QuestionRow, Questions } from '../models/question.js'
import { refuse } from '../requests/refusal.js'
import { wrongFields } from '../requests/wrong-fields.js'
import { nicknameKey, questionKey, usernameKey } from '../rules/names.js'
import { limits, tooLong } from '../rules/sizes.js'

/**
 * Finds the record that a request refers to: by `#id`, by digits alone, or by name. An ambiguous reference is refused:
 * digits that are an id and another record's name, or `#id` where a record has that name. Refuses with INVALID_ARGUMENT a
 * missing or ambiguous reference, with USER_NOT_FOUND or RECORD_NOT_FOUND one to no record.
 */
export interface References {
  /** A user, also a deleted one, by username in any spelling. */
  user(reference: string | undefined, field?: string): Promise<AdministeredUserRow>
  /** An organization, by INEP code or name. */
  organization(reference: string | undefined, field?: string): Promise<OrganizationRow>
  /** A question, by its text. */
  question(reference: string | undefined, field?: string): Promise<QuestionRow>
}

export function createReferences(deps: {
  administeredUsers: AdministeredUsers
  organizations: Organizations
  questions: Questions
}): References {
  const { administeredUsers, organizations, questions } = deps

  /** The record that a reference names, among those with the id and with the name. */
  async function find<T extends { readonly id: number }>(
    reference: string | undefined,
    field: string,
    what: string,
    by: { id(id: number): Promise<T | undefined>; name(name: string): Promise<readonly T[]> },
  ): Promise<T | undefined> {
    const text = tooLong(reference ?? '', 'text') ? '' : (reference ?? '').trim()
    if (text === '') {
      const message = `Name the ${what}, in at most ${limits.text} characters.`
      wrongFields([{ field, message }])
    }
    const { sign, digits } = /^(?<sign>#?)(?<digits>\d{1,9})$/.exec(text.normalize('NFKC'))?.groups ?? {}
    const withId = digits ? await by.id(Number(digits)) : undefined
    const named = (await by.name(text)).filter(each => each.id !== withId?.id)
    const all = withId ? [withId, ...named] : named
    if (all.length < 2 && !(sign && named.length > 0)) return all[0]
    const ids = all.slice(0, 10).map(({ id }) => (sign ? id : `#${id}`))
    const listed = `${ids.join(', ')}${all.length > 10 ? ', …' : ''}`
    const message = sign
      ? `Ambiguous: both an id and a name (ids ${listed}). Use an id without #.`
      : `Ambiguous: matches ${listed}. Use #id.`
    return wrongFields([{ field, message }])
  }

  const missing = (what: string, reference: string | undefined): never =>
    refuse(Reason.RECORD_NOT_FOUND, { text: `There is no ${what} ${(reference ?? '').trim()}.` })

  return {
    async user(reference, field = 'user') {
      const found = await find(reference, field, 'user by username or #id', {
        id: id => administeredUsers.find({ id }),
        name: async name => {
          const user = await administeredUsers.find({ usernameKey: usernameKey(name) })
          return user ? [user] : []
        },
      })
      return (
        found ??
        refuse(Reason.USER_NOT_FOUND, {
          text: `There is no user ${(reference ?? '').trim()}. To search for a part of a name, run \`auth-admin users list --text\`.`,
        })
      )
    },
    async organization(reference, field = 'organization') {
      const found = await find(reference, field, 'organization by #id, INEP code or name', {
        id: id => organizations.find(id),
        name: name => organizations.named(name, nicknameKey(name)),
      })
      return found ?? missing('organization', reference)
    },
    async question(reference, field = 'question') {
      const found = await find(reference, field, 'question by #id or text', {
        id: id => questions.find({ id }),
        name: async text => {
          const question = await questions.find({ key: questionKey(text) })
          return question ? [question] : []
        },
      })
      return found ?? missing('question', reference)
    },
  }
}
