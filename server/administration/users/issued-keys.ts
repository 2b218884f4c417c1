// Keys that are issued to be handed over: to a user without another way back, or to a class.

import { timestampFromMs } from '@bufbuild/protobuf/wkt'
import { Administration } from '../../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import type { Administrator } from '../../access/administrator.js'
import { closing, undo } from '../../access/gate.js'
import type { Access } from '../../access/index.js'
import type { AdministrationRpcs } from '../../calls/context.js'
import type { References } from '../../calls/steps.js'
import type { Transaction } from '../../database/database.js'
import type { AdministeredUserRow } from '../../models/administered-user.js'
import type { Models } from '../../models/index.js'
import { newRecoveryKey, validity } from '../../models/mailed-key.js'
import { guardedUser } from '../../models/user-state.js'
import type { Settings } from '../../process/settings.js'
import type { OpenPage } from '../../requests/paging.js'
import { Refusal, refuse } from '../../requests/refusal.js'
import { wrongField } from '../../requests/wrong-fields.js'
import { mostUsersAtOnce } from '../../rules/sizes.js'
import { changeBy } from '../security-notices.js'
import type { ChangeUser } from './state.js'

/** Hours that an issued key is valid by default, and at most. */
const [usual, most] = [24, validity.issued / 3600]

/** The RPCs of issued keys. */
export function issuedKeyRpcs(
  { mailedKeys, emails, administeredUsers }: Models,
  { now }: Access,
  references: References,
  change: ChangeUser,
  openPage: OpenPage,
  settings: Pick<Settings, 'mailLocale'>,
) {
  /** Issues a key to a user, and notifies a proved address. The caller must lock the user's row. */
  async function issue(row: AdministeredUserRow, seconds: number, by: Administrator, t: Transaction): Promise<string> {
    const key = newRecoveryKey()
    await mailedKeys.issue(row, key, seconds, t)
    if (row.emailProved) await emails.notify('key-issued', row, changeBy(by, settings), t)
    return key
  }

  const expiry = (seconds: number) => timestampFromMs(now() + seconds * 1000)

  /** The users of a list, each once, and what refers to none. */
  async function findAll(list: readonly string[]) {
    const found = new Map<number, string>()
    const skipped: { user: string; reason: string }[] = []
    for (const user of list) {
      try {
        const { id } = await references.user.find(user, 'users')
        if (found.has(id)) skipped.push({ user, reason: 'The list names this user twice.' })
        else found.set(id, user)
      } catch (error) {
        if (!(error instanceof Refusal)) throw error
        skipped.push({ user, reason: error.more.fields?.[0]?.message ?? error.message })
      }
    }
    return { found, skipped }
  }

  return {
    /** Issues a key to a user. */
    async issueKey(request, context) {
      const seconds = checkHours(request.hours)
      let key = ''
      const { user } = await change(request, context, {}, async (row, t) => {
        const reason = whyNone(row)
        if (reason) refuse(Reason.WRONG_STATE, { text: reason })
        key = await issue(row, seconds, context.administrator, t)
        return { action: 'user.issue-key' }
      })
      return { user, key: request.validateOnly ? '' : key, expireTime: expiry(seconds) }
    },

    /** Issues keys to the users of a list, or to the clients of an organization. */
    async issueKeys(request, { administrator, transact }) {
      administrator.justify()
      const { organization, users: list, validateOnly } = request
      const seconds = checkHours(request.hours)
      if (Boolean(organization) === list.length > 0 || list.length > mostUsersAtOnce)
        wrongField('users', 'CONFLICTING', `Name an organization, or 1 to ${mostUsersAtOnce} users.`)
      const sizes = { usual: mostUsersAtOnce, max: mostUsersAtOnce }
      const page = openPage<number>(Administration.method.issueKeys, { ...request, pageSize: 0 }, { sizes })
      const { found, skipped } = await findAll(list)
      const organizationId = organization ? (await references.organization.find(organization)).id : undefined
      const filter = { organizationId, role: 'ROLE_CLIENT', state: 'active', afterId: page.after } as const
      const rows = organizationId === undefined ? [] : await administeredUsers.list({ ...filter, limit: page.limit })
      const { shown, ...next } = page.cut(rows, ({ id }) => id)
      const ids = [...found.keys(), ...shown.map(({ id }) => id)].sort((a, b) => a - b)
      return transact(async ({ t, record }) => {
        const keys = []
        const withoutKey = [...skipped]
        for (const id of ids) {
          const row = await references.user.lock(id, t)
          const reason = whyNone(row)
          if (reason) {
            if (found.has(id)) withoutKey.push({ user: found.get(id)!, reason })
            continue
          }
          const key = await issue(row, seconds, administrator, t)
          await record({ action: 'user.issue-key', subject_id: id }, row)
          keys.push({ user: id, username: row.username, nickname: row.nickname, key: validateOnly ? '' : key })
        }
        return { keys, skipped: withoutKey, expireTime: expiry(seconds), ...next }
      })
    },
  } satisfies Partial<AdministrationRpcs>
}

/** Why a user gets no issued key; undefined for one who does. */
function whyNone(row: AdministeredUserRow): string | undefined {
  if (guardedUser.of(row)) return `${row.username} gets no key that others know: it administers the registry.`
  const [closed] = closing(row, 'recover by e-mail')
  return closed && undo(row, closed)
}

function checkHours(hours: number): number {
  if (hours < 0 || hours > most) wrongField('hours', 'OUT_OF_RANGE', `Use 1 to ${most} hours.`)
  return (hours || usual) * 3600
}
