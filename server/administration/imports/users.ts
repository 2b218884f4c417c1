// The rows of a file of users.
import type { ImportedUser, UserForm } from '../../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import type { Emails } from '../../models/email.js'
import type { ImportedUserRow, ImportedUsers } from '../../models/imported-user.js'
import type { OrganizationRow, Organizations } from '../../models/organization.js'
import type { NewUser, Users } from '../../models/user.js'
import { isImportableHash, type Passwords } from '../../passwords/hash.js'
import type { PasswordPolicy } from '../../passwords/policy.js'
import type { Settings } from '../../process/settings.js'
import { refuse } from '../../requests/refusal.js'
import { nicknameSkeleton, usernameSkeleton } from '../../rules/look-alikes.js'
import { isOneLine, nicknameKey, usernameKey } from '../../rules/names.js'
import { attributesOf, type ProfileField, profile, profileFields } from '../../rules/profile.js'
import type { Role } from '../../rules/roles.js'
import { isDamagedTelephone } from '../../rules/telephone.js'
import { changedFields } from '../../users/profile.js'
import { type CompleteTexts, checkFields, profileOf, type SignUpTexts } from '../../users/sign-up-form.js'
import { nameMessage } from '../../users/taken-names.js'
import {
  type Batch,
  checkRowId,
  differs,
  digestOf,
  groupsOf,
  type Judged,
  type Outcome,
  type Problem,
  type Rows,
  readInSlices,
  rejected,
  stale,
  withheld,
} from './rows.js'

interface Deps {
  readonly users: Users
  readonly importedUsers: ImportedUsers
  readonly organizations: Organizations
  readonly emails: Pick<Emails, 'notify'>
  readonly passwords: Passwords
  readonly policy: PasswordPolicy
  readonly settings: Pick<Settings, 'timeZone'>
  readonly now: () => number
}

/** A row, read by the rules of sign-up. */
interface Read {
  readonly index: number
  readonly row: ImportedUser
  readonly form: Partial<UserForm>
  readonly texts: SignUpTexts
  /** Wrong fields, including those that only a new user needs. */
  readonly wrong: readonly Problem[]
  /** Key of the username; undefined without a valid one. */
  readonly key: string | undefined
  /** What it has in common with rows that depend on it. */
  readonly keys: readonly string[]
}

/** What is to be done for a row. */
type Decision =
  | Outcome
  | { readonly kind: 'create'; readonly user: NewUser }
  | {
      readonly kind: 'update'
      readonly user: ImportedUserRow
      readonly username: string | undefined
      readonly profile: readonly ProfileField[]
      readonly email: boolean
      /** The new organization, null for none; undefined if it stays. */
      readonly organization: number | null | undefined
      readonly activate: boolean
      readonly passwordHash: string | undefined
      /** The names of what changes. */
      readonly fields: readonly string[]
    }

/** Creates the rows of users. */
export function createUserRows(deps: Deps): Rows<ImportedUser> {
  const { users, importedUsers, organizations, emails, passwords, policy, settings, now } = deps

  function read(row: ImportedUser, index: number): Read {
    const form: Partial<UserForm> = row.form ?? {}
    const { role, nickname = form.username, ...given } = form
    const { fields, texts } = checkFields(
      { ...given, ...(nickname !== undefined && { nickname }), roles: role === undefined ? [] : [role] },
      policy,
      { now: new Date(now()), timeZone: settings.timeZone },
    )
    const wrong = fields.map(({ field, message }) => ({ field: field === 'roles' ? 'role' : field, message }))
    const { username } = texts
    const isWrong = wrong.some(({ field }) => field === 'username')
    const key = username && !isWrong ? usernameKey(username) : undefined
    return { index, row, form, texts, wrong, key, keys: keysOf(row.id, texts) }
  }

  /** Reads the users that rows mean, and returns the one of a row. */
  async function find(rows: readonly Read[], lookUp: ImportedUsers['find']) {
    const ids = rows.flatMap(({ row: { id } }) => id ?? [])
    const keys = rows.flatMap(({ row: { id }, key }) => (id === undefined && key !== undefined ? [key] : []))
    const found = ids.length + keys.length > 0 ? await lookUp(ids, keys) : []
    const byId = new Map(found.map(user => [user.id, user]))
    const byKey = new Map(found.map(user => [user.usernameKey, user]))
    return ({ row: { id }, key }: Read) => (id === undefined ? byKey.get(key ?? '') : byId.get(id))
  }

  /** Reads the organizations that rows name, and returns the one of a row: null for none, undefined if it names none. */
  async function findOrganizations(rows: readonly Read[], { t }: Batch) {
    const ids = rows.flatMap(({ row }) => row.organizationId || [])
    const codes = rows.flatMap(({ row }) => row.organizationInepCode?.trim() || []).filter(isOneLine)
    const found = ids.length + codes.length > 0 ? await organizations.findMany(ids, codes, t) : []
    const wrong = (field: string, message: string): Problem => ({ field, message })
    return ({
      organizationId: id,
      organizationInepCode: code,
    }: ImportedUser): OrganizationRow | null | undefined | Problem => {
      if (id !== undefined && code !== undefined)
        return wrong('organization_id', 'Use organization_id or organization_inep_code.')
      if (id === undefined && code === undefined) return undefined
      if (!id && !code?.trim()) return null
      const organization = found.find(each => (id ? each.id === id : each.inepCode === code!.trim()))
      const field = id ? 'organization_id' : 'organization_inep_code'
      return organization ?? wrong(field, 'There is no such organization.')
    }
  }

  /** The hash of a row's password to store; undefined without a password. */
  function hashOf({ index, row, form }: Read, { hashes, of }: Batch): string | undefined | Problem {
    const hash = hashes.get(index)
    if (hash !== undefined) return hash
    if (row.passwordHash) {
      if (form.password) return { field: 'password_hash', message: 'Use a password or its hash, not both.' }
      if (isImportableHash(row.passwordHash)) return row.passwordHash
      const bound = row.passwordHash.startsWith('hmac1:')
      const message = bound
        ? 'This hash is bound to the registry that made it: leave it out.'
        : 'Use a bcrypt hash ($2a$, $2b$ or $2y$) with a cost from 4 to 16.'
      return { field: 'password_hash', message }
    }
    if (!form.password) return undefined
    if (of.dryRun) return ''
    return { field: 'password', message: 'The user has changed meanwhile: import the row again.' }
  }

  function create(given: Read, organization: OrganizationRow | null | undefined | Problem, batch: Batch): Decision {
    const { row, form, texts, wrong } = given
    const hasPassword = Boolean(form.password) && !batch.hashes.has(given.index)
    const problems: Problem[] = wrong.filter(({ field }) => field !== 'password' || hasPassword)
    if (form.role === 'ROLE_ADMIN')
      problems.push({ field: 'role', message: 'An import doesn’t create administrators.' })
    const passwordHash = problems.length > 0 && !row.passwordHash ? undefined : hashOf(given, batch)
    if (typeof passwordHash === 'object') problems.push(passwordHash)
    if (organization && 'message' in organization) problems.push(organization)
    else if (organization && !organization.active) problems.push(inactive(organization))
    if (problems.length > 0) return rejected('INVALID_SIGN_UP', ...problems)
    const user = {
      ...(row.id !== undefined && { id: row.id }),
      ...profileOf(texts as CompleteTexts),
      passwordHash: (passwordHash as string | undefined) ?? '',
      securityQuestion: null,
      termsOfUsage: row.termsofusage ?? false,
      role: form.role as Role,
      active: row.active ?? false,
      activatedBy: row.active ? (batch.administratorId ?? null) : null,
      organizationId: (organization as OrganizationRow | null | undefined)?.id ?? null,
    }
    return { kind: 'create', user }
  }

  function update(
    given: Read,
    user: ImportedUserRow,
    organization: OrganizationRow | null | undefined | Problem,
    batch: Batch,
  ): Decision {
    const { row, form, texts, wrong } = given
    if (user.deletedAt)
      return rejected('WRONG_STATE', { field: '', message: 'This user is deleted: undelete it first.' })
    const isGiven = (field: keyof UserForm) => form[field] !== undefined
    const profile = changedFields(user, profileFields.filter(isGiven), texts)
    // A row without an id means the user in any spelling of its username.
    const username =
      row.id !== undefined && texts.username && texts.username !== user.username ? texts.username : undefined
    const email = isGiven('email') && (texts.email ?? null) !== user.email
    const shownActive = user.active && !user.suspended
    const activate = row.active === true && !shownActive
    // Not asked for, the password of a row is for a new user only: a list can be imported again after users have changed theirs.
    const setsPassword =
      batch.of.changeAccounts.includes('password') &&
      Boolean(row.passwordHash || form.password || batch.hashes.has(given.index))

    const problems: Problem[] = wrong.filter(
      ({ field }) =>
        (isEditable(field) && isGiven(field)) ||
        (field === 'password' && setsPassword && Boolean(form.password) && !batch.hashes.has(given.index)),
    )
    const passwordHash = setsPassword && problems.length === 0 ? hashOf(given, batch) : undefined
    if (typeof passwordHash === 'object') problems.push(passwordHash)
    if (isGiven('role') && form.role !== user.role)
      problems.push({ field: 'role', message: `An import doesn’t change roles: this user is ${user.role}.` })
    if (row.termsofusage !== undefined && row.termsofusage !== user.termsOfUsage)
      problems.push({ field: 'termsofusage', message: 'An import doesn’t change what a user accepted.' })
    if (row.active === false && shownActive)
      problems.push({ field: 'active', message: 'An import doesn’t deactivate users: suspend this one.' })
    if (activate && user.suspended)
      problems.push({ field: 'active', message: 'This user is suspended: resume it first.' })
    const isUnknown = organization && 'message' in organization
    if (isUnknown) problems.push(organization)
    const next = organization === undefined || isUnknown ? undefined : (organization?.id ?? null)
    const moves = next !== undefined && next !== user.organizationId
    if (moves && organization && !isUnknown && !organization.active) problems.push(inactive(organization))
    const opening = [
      [username !== undefined, 'username', 'username'],
      [email, 'email', 'email'],
      [activate && !user.suspended, 'active', 'active'],
      [moves, 'organization', row.organizationId === undefined ? 'organization_inep_code' : 'organization_id'],
    ] as const
    // No permission changes administrators, or anyone with kept ids: the end rejects both.
    for (const [changes, column, field] of user.role === 'ROLE_ADMIN' || batch.of.keepIds ? [] : opening)
      if (changes && !batch.of.changeAccounts.includes(column)) problems.push(withheld(field, column, 'user'))
    if (problems.length > 0) return rejected('INVALID_SIGN_UP', ...problems)

    const setsHash = typeof passwordHash === 'string' && passwordHash !== user.passwordHash
    const fields = [
      ...(username ? ['username'] : []),
      ...profile,
      ...(email ? ['email'] : []),
      ...(moves ? ['organization'] : []),
      ...(activate ? ['active'] : []),
      ...(setsHash ? ['password'] : []),
    ]
    if (fields.length === 0) return { kind: 'unchanged' }
    if (batch.of.keepIds) return differs(user.id, 'user', fields)
    if (user.role === 'ROLE_ADMIN')
      return rejected('WRONG_STATE', { field: '', message: 'An import doesn’t change administrators.' })
    const details = { username, profile, email, activate, organization: moves ? next : undefined }
    return { kind: 'update', user, ...details, passwordHash: setsHash ? (passwordHash as string) : undefined, fields }
  }

  function decide(
    given: Read,
    user: ImportedUserRow | undefined,
    organization: OrganizationRow | null | undefined | Problem,
    batch: Batch & { readonly free: ReadonlySet<number> },
  ): Decision {
    const { row } = given
    if (hasDamagedName(given, user)) return rejected('INVALID_SIGN_UP', { field: 'username', message: damaged })
    const wrongId = checkRowId(row.id, user, 'user', batch)
    if (wrongId) return wrongId
    return user ? update(given, user, organization, batch) : create(given, organization, batch)
  }

  /** Rejects the decisions whose names other users have; the others keep theirs free until the transaction ends. */
  async function checkNames(decisions: readonly Decision[], given: readonly Read[], { t }: Batch): Promise<Decision[]> {
    const names = decisions.map((decision, index) => {
      if (decision.kind === 'create') return { username: decision.user.username, nickname: decision.user.nickname }
      if (decision.kind !== 'update') return {}
      const nickname = decision.profile.includes('nickname') ? given[index]!.texts.nickname : undefined
      return { username: decision.username, nickname, userId: decision.user.id }
    })
    if (names.every(({ username, nickname }) => !username && !nickname)) return [...decisions]
    const problems = await users.lookalikesMany(names, t)
    return decisions.map((decision, index) => {
      const wrong = (['username', 'nickname'] as const).flatMap(field => {
        const problem = names[index]![field] ? problems[index]![field] : undefined
        return problem ? [{ field, message: nameMessage(field, problem) }] : []
      })
      return wrong.length > 0 ? rejected('INVALID_SIGN_UP', ...wrong) : decision
    })
  }

  async function applyUpdate(
    { user, ...change }: Decision & { kind: 'update' },
    { texts }: Read,
    { t, record, administratorId, ...batch }: Batch,
  ): Promise<Outcome> {
    const { id } = user
    // All notices go to the address of before.
    const by = { ...batch.by, ...(change.email && user.email !== null && { to: user.email }) }
    if (change.email) await users.setEmail(user, texts.email ?? null, by, t)
    if (change.username) await users.rename(id, change.username, by, t)
    const { organization: next } = change
    if (next !== undefined && (user.active || user.organizationId !== null || !change.activate)) {
      await users.setOrganization(user, next, by, t)
      const object = `organization:${user.organizationId ?? 'none'}->${next ?? 'none'}`
      await record({ action: 'user.set-organization', subject_id: id, object })
    }
    if (change.activate) {
      await users.activate(user, next ?? null, t, administratorId)
      await emails.notify('account-activated', user, by, t)
    }
    if (change.passwordHash !== undefined) {
      await users.changePassword(id, change.passwordHash, { byToken: false }, t)
      await emails.notify('password-changed', user, by, t)
      await record({ action: 'user.set-password', subject_id: id })
    }
    return { kind: 'updated', id, fields: change.fields }
  }

  async function applyGroup(group: readonly Read[], batch: Batch): Promise<Judged[]> {
    const userOf = await find(group, (ids, keys) => importedUsers.lock(ids, keys, batch.t))
    // After the lock, behind which a user may have been erased.
    const free = await batch.freeIds(group.flatMap(({ row: { id } }) => id ?? []))
    // One row can mean a user by its id, and another one by its username.
    const names = group.map(given => userOf(given)?.usernameKey ?? given.key)
    const again = names.findIndex((name, index) => name !== undefined && names.indexOf(name) < index)
    if (again > 0)
      return [...(await applyGroup(group.slice(0, again), batch)), ...(await applyGroup(group.slice(again), batch))]
    const { touched } = batch
    await touched.read(names.filter(name => name !== undefined))
    const organizationOf = await findOrganizations(group, batch)
    const seen = group.map(given => digestOf(seenOf(userOf(given))))
    const first = group.map((given, index) => {
      const { row } = given
      if (row.problems.length > 0) return rejected('INVALID_ARGUMENT', ...row.problems)
      const field = row.id === undefined ? 'username' : 'id'
      const repeats = touched.reject(row, given.index, names[index] ? [names[index]] : [], { field, what: 'user' })
      // Its own errors come first.
      if (repeats && !given.wrong.some(({ field }) => isEditable(field) && given.form[field] !== undefined))
        return repeats
      const isStale = batch.seen && !batch.seen[given.index]!.equals(seen[index]!)
      return isStale && !repeats ? stale : decide(given, userOf(given), organizationOf(row), { ...batch, free })
    })
    const decisions = await checkNames(first, group, batch)
    const creations = decisions.flatMap(decision => (decision.kind === 'create' ? [decision.user] : []))
    const ids = creations.length > 0 ? await importedUsers.add(creations, batch.t) : []
    const edits = decisions.flatMap((decision, index) =>
      decision.kind === 'update' && decision.profile.length > 0
        ? [{ id: decision.user.id, details: attributesOf(decision.profile, group[index]!.texts) }]
        : [],
    )
    if (edits.length > 0) await importedUsers.edit(edits, batch.t)
    const judged: Judged[] = []
    for (const [index, decision] of decisions.entries()) {
      const outcome =
        decision.kind === 'create'
          ? created(ids.shift())
          : decision.kind === 'update'
            ? await applyUpdate(decision, group[index]!, batch)
            : decision
      if (outcome.kind === 'created' || outcome.kind === 'updated') {
        const renamed = decision.kind === 'update' && decision.username
        touched.add(group[index]!.row, group[index]!.index, [names[index]!, ...(renamed ? [usernameKey(renamed)] : [])])
      }
      judged.push({ outcome, seen: seen[index]! })
    }
    return judged
  }

  return async rows => {
    const all = await readInSlices(rows, read)
    return {
      async hash(of) {
        if (of.dryRun) return new Map()
        const given = all.filter(({ row, form, wrong }) => {
          const isWrong = row.problems.length > 0 || row.passwordHash || wrong.some(({ field }) => field === 'password')
          return Boolean(form.password) && !isWrong
        })
        const userOf = await find(given, importedUsers.find)
        const hashes = given
          .filter(each => of.changeAccounts.includes('password') || (!userOf(each) && each.wrong.length === 0))
          .map(async ({ index, form }): Promise<[number, string]> => {
            const hash = await passwords.renew({ context: 'password', text: form.password! })
            return [index, hash ?? refuse(Reason.OVERLOADED, { retryAfter: 1, limit: 'hashing' })]
          })
        return new Map(await Promise.all(hashes))
      },
      async apply(batch) {
        const judged: Judged[] = []
        for (const group of groupsOf(all, ({ keys }) => keys)) judged.push(...(await applyGroup(group, batch)))
        return judged
      },
    }
  }
}

/** Whether a field of a row changes existing users. */
function isEditable(field: string): field is 'username' | 'email' | ProfileField {
  return ['username', 'email', ...profileFields].includes(field)
}

/** What a row has in common with rows that depend on it. */
function keysOf(id: number | undefined, { username, nickname }: SignUpTexts): string[] {
  return [
    ...(id === undefined ? [] : [`#${id}`]),
    ...(username ? [`u ${usernameKey(username)}`, `u ${usernameSkeleton(username)}`] : []),
    ...(nickname ? [`n ${nicknameKey(nickname)}`, `n ${nicknameSkeleton(nickname)}`] : []),
  ]
}

const damaged =
  'A spreadsheet has changed this telephone number: enter it again, in a column that is formatted as text.'

/** Whether a row would give a user a damaged telephone number as username, or means another user by one. */
function hasDamagedName({ texts: { username } }: Read, user: ImportedUserRow | undefined): boolean {
  const key = nicknameKey(username ?? '')
  return isDamagedTelephone(key) && (!user || nicknameKey(user.username) !== key)
}

function created(id: number | undefined): Outcome {
  // The locks of names admit no other writer; this is for one that doesn't take them.
  if (id === undefined)
    return rejected('INVALID_SIGN_UP', { field: 'username', message: nameMessage('username', 'taken') })
  return { kind: 'created', id }
}

function inactive({ id }: OrganizationRow): Problem {
  return { field: 'organization', message: `Organization #${id} is inactive: activate it first.` }
}

/** What a change of a user changes, without its hash, which a sign-in can renew. */
function seenOf(user: ImportedUserRow | undefined): unknown[] | undefined {
  if (!user) return undefined
  const { username, role, active, suspended, deletedAt, organizationId, tokenGeneration, termsOfUsage, email } = user
  return [
    ...[username, role, active, suspended, deletedAt, organizationId, tokenGeneration, termsOfUsage, email],
    ...profileFields.map(field => user[profile[field].attribute]),
  ]
}
