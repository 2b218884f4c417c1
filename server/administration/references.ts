import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { References } from '../calls/steps.js'
import type { Models } from '../models/index.js'
import { refuse } from '../requests/refusal.js'
import { wrongField } from '../requests/wrong-fields.js'
import { nicknameKey, questionKey, usernameKey } from '../rules/names.js'
import { advise } from '../rules/remedies.js'
import { maxLengths, tooLong } from '../rules/sizes.js'

/**
 * Finds the record that a request refers to: by `#id`, by digits alone, or by name (of a user: its username in any spelling,
 * also when it is deleted; of an organization: also its INEP code, of 8 digits). An ambiguous reference is refused: digits that
 * are another record's name, whether they are an id or not, or `#id` where a record has that name. Refuses with INVALID_ARGUMENT
 * a missing or ambiguous reference, with USER_NOT_FOUND or RECORD_NOT_FOUND one to no record.
 */
export function createReferences({ administeredUsers, formerUsernames, organizations, questions }: Models): References {
  /** The record that a reference names, among those with the id and with the name. */
  async function find<T extends { readonly id: number }>(
    reference: string | undefined,
    field: string,
    what: string,
    by: { id(id: number): Promise<T | undefined>; name(name: string): Promise<readonly T[]> },
  ): Promise<T | undefined> {
    const text = tooLong(reference ?? '', 'text') ? '' : (reference ?? '').trim()
    if (text === '') {
      const message = `Name the ${what}, in at most ${maxLengths.text} characters.`
      wrongField(field, 'MISSING', message)
    }
    const { sign, digits } = /^(?<sign>#?)(?<digits>\d{1,9})$/.exec(text.normalize('NFKC'))?.groups ?? {}
    const withId = digits ? await by.id(Number(digits)) : undefined
    const named = (await by.name(text)).filter(each => each.id !== withId?.id)
    const all = withId ? [withId, ...named] : named
    // Whether a name is the only meaning of a number must not depend on which ids exist.
    const isNumber = sign || (digits && !(what.includes('INEP') && digits.length === 8))
    if (all.length < 2 && !(isNumber && named.length > 0)) return all[0]
    const ids = all.slice(0, 10).map(({ id }) => (sign ? id : `#${id}`))
    const listed = `${ids.join(', ')}${all.length > 10 ? ', …' : ''}`
    const message = sign
      ? `Ambiguous: both an id and a name (ids ${listed}). Use an id without #.`
      : `Ambiguous: matches ${listed}. Use #id.`
    return wrongField(field, 'AMBIGUOUS', message)
  }

  const missing = (what: string, reference: string | undefined, hint = ''): never =>
    refuse(Reason.RECORD_NOT_FOUND, { text: `There is no ${what} ${(reference ?? '').trim()}.${hint}` })
  const gone = (what: string, id: number): never =>
    refuse(Reason.RECORD_NOT_FOUND, { text: `${what} #${id} no longer exists.` })

  return {
    user: {
      async find(reference, field = 'user') {
        const found = await find(reference, field, 'user by username or #id', {
          id: id => administeredUsers.find({ id }),
          name: async name => {
            const user = await administeredUsers.find({ usernameKey: usernameKey(name) })
            return user ? [user] : []
          },
        })
        if (found) return found
        const name = (reference ?? '').trim()
        const holder = await formerUsernames.holder(usernameKey(name))
        const hint = holder
          ? `It is a former username of user ${holder.id} (${holder.username}).`
          : advise('search users')
        return refuse(Reason.USER_NOT_FOUND, { text: `There is no user ${name}. ${hint}` })
      },
      async lock(id, t) {
        const row = await administeredUsers.lock(id, t)
        return row ?? refuse(Reason.USER_NOT_FOUND, { text: `User #${id} no longer exists.` })
      },
    },
    organization: {
      async find(reference, field = 'organization') {
        const found = await find(reference, field, 'organization by #id, INEP code or name', {
          id: id => organizations.find(id),
          name: name => organizations.named(name, nicknameKey(name)),
        })
        return found ?? missing('organization', reference, ` ${advise('search organizations')}`)
      },
      lock: async (id, t) => (await organizations.lock(id, t)) ?? gone('Organization', id),
    },
    question: {
      async find(reference, field = 'question') {
        const found = await find(reference, field, 'question by #id or text', {
          id: id => questions.find({ id }),
          name: async text => {
            const question = await questions.find({ key: questionKey(text) })
            return question ? [question] : []
          },
        })
        return found ?? missing('question', reference)
      },
      lock: async (id, t) => (await questions.lock(id, t)) ?? gone('Question', id),
    },
  }
}
