// The rows of a file of users.

import type { ImportedUser, UserForm } from '../../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import { closing, states, undo } from '../../access/gate.js'
import type { StoredImport } from '../../models/import.js'
import type { Models } from '../../models/index.js'
import type { BatchedUser, Registration as NewAccount } from '../../models/user-batch.js'
import { activeUser, guardedUser } from '../../models/user-state.js'
import { isImportableHash } from '../../passwords/hash.js'
import type { Hashing } from '../../passwords/index.js'
import { accountFields, attributesOfForm, type CompleteTexts, checkForm } from '../../registration/form.js'
import type { Registration } from '../../registration/index.js'
import { freeNickname, suggest, Taken } from '../../registration/name-refusals.js'
import { moveObject, moves, profileChange, type UserChange } from '../../registration/registrar.js'
import { refuse } from '../../requests/refusal.js'
import { isOneLine, nicknameKey, questionKey, typedUuid, usernameKey } from '../../rules/names.js'
import { inepCodeOf } from '../../rules/organization.js'
import { profile, profileFields } from '../../rules/profile.js'
import { advise } from '../../rules/remedies.js'
import type { Role } from '../../rules/roles.js'
import { isDamagedNumber } from '../../rules/telephone.js'
import {
  claimOf,
  finder,
  groupsOf,
  isChosen,
  keepsEmail,
  type Meant,
  meantBy,
  namesIn,
  type Read,
} from './meant-users.js'
import {
  type Batch,
  type Decision,
  damaged,
  differs,
  digestOf,
  type Judged,
  judgedOf,
  keyProblems,
  needsKeptIds,
  type RowProblem,
  type Rows,
  readInSlices,
  rejected,
  rejectionOf,
  withheld,
} from './rows.js'

/** A row to apply. */
type PlannedUser = NewAccount<number> | UserChange

/** The answers that a row brings. */
type Answers = Pick<NewAccount, 'securityQuestion' | 'answers' | 'unmatched'>

/** What a row brings from another system: its answers, and whether its provider key is another one than the user's. */
interface Moved {
  readonly answers: Answers
  readonly isNewKey: boolean
  readonly problems: readonly RowProblem[]
}

/** What is to be said of a row with a password for an existing user, who may have changed it since. */
const passwordStays: RowProblem = {
  field: 'password',
  message: 'The password of this user stays, because it exists already: to change it, pass --change-accounts password.',
}

/** What a row says about the organization: its id, null for none; undefined if it stays. */
type Wanted = number | null | undefined | RowProblem

/** Creates the rows of users. */
export function createUserRows(
  { users, userBatches, organizations, activationKeys, questions }: Models,
  { passwords }: Hashing,
  { registrar, rules }: Registration,
): Rows<ImportedUser> {
  /** Reads the organizations that rows name, and returns what gives the one of a row. */
  async function findOrganizations(reads: readonly Read[], { t }: Batch) {
    const ids = reads.flatMap(({ row }) => row.organizationId || [])
    const codes = reads.flatMap(({ row }) => row.organizationInepCode?.trim() || []).filter(isOneLine)
    const found = ids.length + codes.length > 0 ? await organizations.findMany(ids, codes, t) : []
    return ({ organizationId: id, organizationInepCode: code }: ImportedUser): Wanted => {
      if (id !== undefined && code !== undefined)
        return { field: 'organization_id', message: 'Use organization_id or organization_inep_code.' }
      if (id === undefined && code === undefined) return undefined
      if (!id && !code?.trim()) return null
      const organization = found.find(each => (id ? each.id === id : each.inepCode === inepCodeOf(code!)))
      const field = id ? 'organization_id' : 'organization_inep_code'
      return organization?.id ?? { field, message: 'There is no such organization.' }
    }
  }

  /** Reads the questions of rows and the holders of their keys, and returns what gives what a row brings from another system. */
  async function findMoved(reads: readonly Read[], { of, t }: Batch) {
    const keys = reads.flatMap(({ providerKey }) => providerKey || [])
    const holders = await activationKeys.holders(keys, t)
    const hasAnswers = reads.some(({ row }) => row.securityAnswers.length > 0)
    const questionIds = hasAnswers ? await questions.idsByKey(t) : new Map<string, number>()
    return ({ row, form, providerKey: key }: Read, user?: BatchedUser): Moved => {
      const holder = holders.get(key)
      const isNewKey = key !== '' && holder !== `user:${user?.id}`
      const problems = isNewKey ? keyProblems('provider_key', key, of, holder) : []
      if (isNewKey && !user && !(row.active && form.role === 'ROLE_INSTITUTION'))
        problems.push({ field: 'provider_key', message: 'Only an active ROLE_INSTITUTION has a provider key.' })
      if (row.securityAnswers.length > 0 && !of.keepIds) problems.push(needsKeptIds('security_answers'))
      const { answers, message } = readAnswers(row, questionIds)
      if (message !== undefined) problems.push({ field: 'security_answers', message })
      return { answers, isNewKey, problems }
    }
  }

  /** The answers of a row, as keyed digests, and why one isn't valid. The last answer to a question counts. */
  function readAnswers({ securityAnswers }: ImportedUser, questionIds: ReadonlyMap<string, number>) {
    const known = new Map<number, string>()
    let unmatched: Answers['unmatched']
    let message: string | undefined
    for (const { question, answer } of securityAnswers) {
      const key = isOneLine(question) ? questionKey(question) : ''
      const id = questionIds.get(key)
      const answerHash = passwords.key(answer)
      if (key === '') message ??= 'A question is empty, too long, or has line breaks.'
      else if (answerHash === undefined) message ??= 'An answer is empty or too long.'
      else if (id !== undefined) known.set(id, answerHash)
      else if (unmatched === undefined || unmatched.questionKey === key)
        unmatched = { question: question.trim(), questionKey: key, answerHash }
      else message ??= advise('create questions')
    }
    const answers: Answers = {
      securityQuestion: securityAnswers[0]?.question.trim() ?? null,
      answers: [...known].map(([questionId, answerHash]) => ({ questionId, answerHash })),
      unmatched,
    }
    return { answers, message }
  }

  /** Gives new users without a nickname their username as one or, where that isn't free, the username with digits. */
  async function giveNicknames(reads: readonly Read[], { t, touched }: Batch): Promise<void> {
    if (reads.every(({ form }) => form.nickname !== undefined)) return
    // All names, which are locked in one order.
    const names = reads.map(({ form, texts: { username } }) => ({ username, nickname: form.nickname ?? username }))
    const problems = await users.nameProblems(names, t)
    await touched.read(names.map(({ nickname = '' }) => claimOf(nickname)))
    for (const [index, read] of reads.entries()) {
      const { username } = read.texts
      if (read.form.nickname !== undefined || !username) continue
      const isTaken = problems[index]!.nickname || touched.has(claimOf(username))
      read.texts = { ...read.texts, nickname: isTaken ? await freeNickname(users, username, t) : username }
    }
  }

  /** The hash of a row's password to store; undefined without a password. */
  function hashOf({ index, row, form }: Read, { hashes, of }: Batch): string | undefined | RowProblem {
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

  /** Decides on a row by its own fields. */
  function decide(meant: Meant, organization: Wanted, moved: Moved, batch: Batch): Decision<PlannedUser> {
    const { read, user, claims } = meant
    if (hasDamagedName(read, user)) return rejected('INVALID_SIGN_UP', damaged('username', 'telephone number'))
    const decided = user ? change(read, user, organization, moved, batch) : create(read, organization, moved, batch)
    const taken = 'entry' in decided ? batch.touched.takenBy(read.row, claims) : []
    return taken.length > 0 ? rejected('INVALID_SIGN_UP', ...taken) : decided
  }

  function create(read: Read, organization: Wanted, moved: Moved, batch: Batch): Decision<NewAccount<number>> {
    const { row, form, texts, wrong } = read
    const hasPassword = Boolean(form.password) && !batch.hashes.has(read.index)
    const problems: RowProblem[] = wrong.filter(({ field }) => field !== 'password' || hasPassword)
    if (form.role === 'ROLE_ADMIN')
      problems.push({ field: 'role', message: 'An import doesn’t create administrators.' })
    if (batch.desk && form.role === 'ROLE_INSTITUTION')
      problems.push({ field: 'role', message: 'Only an administrator gives this role: use ROLE_CLIENT.' })
    const passwordHash = problems.length > 0 && !row.passwordHash ? undefined : hashOf(read, batch)
    if (typeof passwordHash === 'object') problems.push(passwordHash)
    if (isProblem(organization)) problems.push(organization)
    problems.push(...moved.problems)
    if (problems.length > 0) return rejected('INVALID_SIGN_UP', ...problems)
    const entry = {
      id: row.id,
      ...attributesOfForm(texts as CompleteTexts),
      passwordHash: (passwordHash as string | undefined) ?? '',
      ...moved.answers,
      providerKey: read.providerKey || undefined,
      termsOfUsage: row.termsofusage ?? false,
      role: form.role as Role,
      active: row.active ?? false,
      activatedBy: row.active ? (batch.administratorId ?? null) : null,
      organizationId: (organization ?? null) as number | null,
    }
    if (form.nickname !== undefined || entry.nickname === entry.username) return { entry }
    const { dryRun, allOrNothing } = batch.of
    const nickname = dryRun || allOrNothing ? 'the username with digits' : entry.nickname
    const message = `The username isn’t free as a nickname: the nickname is ${nickname}.`
    return { entry, notes: [{ field: 'nickname', message }] }
  }

  function change(
    read: Read,
    user: BatchedUser,
    organization: Wanted,
    moved: Moved,
    batch: Batch,
  ): Decision<UserChange> {
    const { row, form, texts, wrong } = read
    const { keepIds, changeAccounts } = batch.of
    if (user.deletedAt) return rejected('WRONG_STATE', { field: '', message: undo(user, states.deleted) })
    const { changed, details } = profileChange(
      user,
      profileFields.filter(field => form[field] !== undefined),
      texts,
    )
    // A row without an id means the user in any spelling of its username.
    const username = row.id === undefined || texts.username === user.username ? undefined : texts.username
    const email = keepsEmail(read, user) ? undefined : (texts.email ?? null)
    const shownActive = activeUser.of(user)
    const activate = row.active === true && !shownActive
    // Not asked for, the password of a row is for a new user only: a list can be imported again after users have changed theirs.
    const hasPassword = Boolean(row.passwordHash || form.password || batch.hashes.has(read.index))
    const setsPassword = changeAccounts.includes('password') && hasPassword
    const notes = hasPassword && !setsPassword && !keepIds && !guardedUser.of(user) ? [passwordStays] : []

    const problems: RowProblem[] = wrong.filter(
      ({ field }) =>
        isChosen(read, field, user) ||
        (field === 'password' && setsPassword && Boolean(form.password) && !batch.hashes.has(read.index)),
    )
    const hash = setsPassword && problems.length === 0 ? hashOf(read, batch) : undefined
    if (isProblem(hash)) problems.push(hash)
    if (form.role !== undefined && form.role !== user.role)
      problems.push({ field: 'role', message: `An import doesn’t change roles: this user is ${user.role}.` })
    if (row.termsofusage !== undefined && row.termsofusage !== user.termsOfUsage)
      problems.push({ field: 'termsofusage', message: 'An import doesn’t change what a user accepted.' })
    if (row.active === false && shownActive)
      problems.push({ field: 'active', message: 'An import doesn’t deactivate users: suspend this one.' })
    const [closed] = activate ? closing(user, 'activate') : []
    if (closed) problems.push({ field: 'active', message: undo(user, closed) })
    if (isProblem(organization)) problems.push(organization)
    problems.push(...moved.problems)
    const joins = organization !== undefined && !isProblem(organization) && organization !== user.organizationId
    const opening = [
      [username !== undefined, 'username', 'username', username],
      [email !== undefined, 'email', 'email', email],
      [activate && !closed, 'active', 'active', activate],
      [
        joins,
        'organization',
        row.organizationId === undefined ? 'organization_inep_code' : 'organization_id',
        organization,
      ],
    ] as const
    // No permission changes administrators, or anyone with kept ids: the end rejects both.
    for (const [changes, column, field, value] of guardedUser.of(user) || keepIds ? [] : opening)
      if (changes && !changeAccounts.includes(column)) problems.push(withheld(field, column, 'user', value))
    if (problems.length > 0) return rejected('INVALID_SIGN_UP', ...problems)

    const passwordHash = typeof hash === 'string' && hash !== passwords.opened(user.passwordHash) ? hash : undefined
    const fields = [
      ...(username === undefined ? [] : ['username']),
      ...changed,
      ...(email === undefined ? [] : ['email']),
      ...(joins ? ['organization'] : []),
      ...(activate ? ['active'] : []),
      ...(passwordHash === undefined ? [] : ['password']),
      ...(moved.isNewKey ? ['provider_key'] : []),
    ]
    if (fields.length === 0) return { kind: 'unchanged', notes }
    if (keepIds) return differs(user.id, 'user', fields)
    if (guardedUser.of(user))
      return rejected('WRONG_STATE', { field: '', message: 'An import doesn’t change administrators.' })
    const organizationId = organization as UserChange['organizationId']
    return { entry: { user, username, details, email, organizationId, activate, passwordHash }, fields, notes }
  }

  function read(row: ImportedUser, index: number): Read {
    const { nickname: name = '', ...others } = row.form ?? {}
    // An empty one is none.
    const form: Partial<UserForm> = isOneLine(name) && nicknameKey(name) === '' ? others : { ...others, nickname: name }
    const { role, nickname = form.username, ...given } = form
    const fields = [...accountFields, 'password', 'roles'] as const
    const { wrong: all, texts } = checkForm(
      { ...given, nickname, roles: role === undefined ? [] : [role] },
      fields,
      rules,
    )
    const wrong = all.map(each =>
      each.field === 'roles' ? { field: 'role', message: 'Use ROLE_INSTITUTION or ROLE_CLIENT.' } : each,
    )
    const isWrong = wrong.some(({ field }) => field === 'username')
    const key = texts.username && !isWrong ? usernameKey(texts.username) : undefined
    const providerKey = typedUuid(row.providerKey ?? '')
    return { index, row, form, texts, wrong, key, providerKey }
  }

  async function hash(reads: readonly Read[], of: StoredImport): Promise<ReadonlyMap<number, string>> {
    if (of.dryRun) return new Map()
    const given = reads.filter(({ row, form, wrong }) => {
      const isWrong = row.problems.length > 0 || row.passwordHash || wrong.some(({ field }) => field === 'password')
      return Boolean(form.password) && !isWrong
    })
    const userOf = finder(await userBatches.find(...namesIn(given)))
    const hashes = given
      .filter(each => of.changeAccounts.includes('password') || (!userOf(each) && each.wrong.length === 0))
      .map(async ({ index, form }): Promise<[number, string]> => {
        const hash = await passwords.renew({ context: 'password', text: form.password! })
        return [index, hash ?? refuse(Reason.OVERLOADED, { retryAfter: 1, limit: 'hashing' })]
      })
    return new Map(await Promise.all(hashes))
  }

  /** Applies rows that don't depend on each other. */
  async function applyGroup(group: readonly Read[], batch: Batch): Promise<Judged[]> {
    const userOf = finder(await userBatches.lock(...namesIn(group), batch.t))
    // One row can mean a user by its id, and another one by its name.
    const ids = group.map(each => userOf(each)?.id)
    const again = ids.findIndex((id, index) => id !== undefined && ids.indexOf(id) < index)
    if (again > 0)
      return [...(await applyGroup(group.slice(0, again), batch)), ...(await applyGroup(group.slice(again), batch))]
    const added = group.filter(each => !userOf(each) && each.key !== undefined)
    await giveNicknames(added, batch)
    const wanted = await findOrganizations(group, batch)
    const movedOf = await findMoved(group, batch)
    // After the locks, behind which a user may have been erased.
    const free = await batch.freeIds(group.flatMap(({ row: { id } }) => id ?? []))
    const meant = group.map(read => meantBy(read, userOf(read)))
    await batch.touched.read(meant.flatMap(({ names, claims }) => [...names, ...claims.map(({ name }) => name)]))

    const decided = meant.map(each => {
      const { read, user, names, claims } = each
      const { row, index, wrong } = read
      const meaning = {
        ...({ what: 'user', row, index, found: user, free } as const),
        isWrong: wrong.some(({ field }) => isChosen(read, field, user)),
        repeated: batch.touched.problemsOf(row, index, names, { key: 'username', what: 'user' }),
        seen: digestOf(user && seenOf(user)),
      }
      const decision = rejectionOf(meaning, batch) ?? decide(each, wanted(row), movedOf(read, user), batch)
      return { read, meaning, decision, names: [...names, ...claims.map(({ name }) => name)] }
    })
    const entries = decided.flatMap(({ decision }) => ('entry' in decision ? [decision.entry] : []))
    const applied = entries.length > 0 ? await apply(entries, batch) : []
    return decided.map(({ read, meaning, decision, names }) =>
      judgedOf(meaning, batch, decision, 'entry' in decision ? applied.shift() : undefined, [
        ...names,
        ...(read.key === undefined ? [] : [read.key]),
      ]),
    )
  }

  /** Applies entries, in order, and returns their ids, or why one is refused. */
  async function apply(entries: readonly PlannedUser[], { of, t, record, by: notice, administratorId: id }: Batch) {
    const isBare = ({ passwordHash = '' }: PlannedUser) => isImportableHash(passwordHash)
    const seals = entries.some(isBare) && (await users.sealsHashes(t))
    const stored = entries.map(each =>
      seals && isBare(each) ? { ...each, passwordHash: passwords.seal(each.passwordHash!) } : each,
    )
    const applied = await registrar.apply(stored, { notice, id, continued: of.keepIds }, t)
    for (const [index, result] of applied.entries()) {
      const entry = entries[index]!
      const nickname = 'user' in entry ? entry.details?.nickname : entry.nickname
      if (result instanceof Taken && nickname)
        applied[index] = new Taken(await suggest(users, result.more.fields ?? [], nickname, t))
    }
    for (const [index, entry] of entries.entries()) {
      if (!('user' in entry) || typeof applied[index] !== 'number') continue
      const { user, organizationId: to = null, passwordHash } = entry
      if (moves(entry))
        await record({ action: 'user.set-organization', subject_id: user.id, object: moveObject(user, to) })
      if (passwordHash !== undefined) await record({ action: 'user.set-password', subject_id: user.id })
    }
    return applied
  }

  return async rows => {
    const reads = await readInSlices(rows, read)
    return {
      hash: of => hash(reads, of),
      async apply(batch) {
        const judged: Judged[] = []
        for (const group of groupsOf(reads)) judged.push(...(await applyGroup(group, batch)))
        return judged
      },
    }
  }
}

function isProblem(value: unknown): value is RowProblem {
  return typeof value === 'object' && value !== null && 'field' in value
}

/** Whether a row would give a user a damaged telephone number as username, or means another user by one. */
function hasDamagedName({ texts: { username } }: Read, user: BatchedUser | undefined): boolean {
  const key = nicknameKey(username ?? '')
  return isDamagedNumber(key) && (!user || nicknameKey(user.username) !== key)
}

/** What a change of a user changes, without its hash, which a sign-in can renew. */
function seenOf(user: BatchedUser): unknown[] {
  const { username, role, active, suspended, deletedAt, organizationId, tokenGeneration, termsOfUsage, email } = user
  return [
    ...[username, role, active, suspended, deletedAt, organizationId, tokenGeneration, termsOfUsage, email],
    ...profileFields.map(field => user[profile[field].attribute]),
  ]
}
