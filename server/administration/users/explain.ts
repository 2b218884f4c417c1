// Why a user can't sign in, activate or recover: every obstacle, with the command that fixes it.

import type { MessageInitShape } from '@bufbuild/protobuf'
import type { FailureCountSchema } from '../../../proto/gen/auth/v1/administration_pb.js'
import { closing } from '../../access/gate.js'
import type { Access } from '../../access/index.js'
import type { Checked } from '../../calls/context.js'
import { answersNeeded } from '../../forgotpasswords/answers.js'
import { failuresThatLock, limitsOf } from '../../limits/rate-limits.js'
import type { AdministeredUserRow } from '../../models/administered-user.js'
import { type Proof, proofs } from '../../models/attempt.js'
import type { Models } from '../../models/index.js'
import type { CodeFailures } from '../../models/totp-secret.js'
import type { Standing } from '../../models/user-data.js'
import { guardedUser } from '../../models/user-state.js'
import type { Outbox } from '../../outbox/index.js'
import { codeLimits, keyAttempts } from '../../policy/limits.js'
import type { Settings } from '../../process/settings.js'
import { network } from '../../requests/client-address.js'
import { commandOf, type RemedyCode, remedies, type Values } from '../../rules/remedies.js'
import { toQueuedEmail } from '../emails.js'
import { toAdministeredUser } from './record.js'
import { checkAddress } from './recovery.js'
import { sessionEndOf } from './session-end.js'

type Count = MessageInitShape<typeof FailureCountSchema> & {
  readonly scope: keyof typeof places | 'account, in a day'
  readonly proof?: CountedProof | 'one-time code' | 'recovery request'
  readonly seconds: number
  readonly locked: boolean
}

type Prevented =
  | (typeof everything)[number]
  | 'sign in to Administration'
  | 'change the e-mail address'
  | 'export its data'
  | 'stay signed in'
  | 'issue keys'

interface Obstacle {
  readonly prevents: Prevented
  readonly reason: string
  readonly remedy: RemedyCode | undefined
  readonly values: Values
  readonly seconds: number | undefined
}

/** Proofs whose failures are counted in one way. */
type CountedProof = Proof | 'activation key' | 'mailed key' | 'mailed code'

const everything = ['sign in', 'recover by answers', 'recover by e-mail', 'activate'] as const

/** What failures of a proof are, and what they keep from. */
const proven = {
  password: { prevents: 'sign in', failures: 'passwords' },
  answers: { prevents: 'recover by answers', failures: 'answers to security questions' },
  administration: { prevents: 'sign in to Administration', failures: 'passwords at Administration' },
  'activation key': { prevents: 'activate', failures: 'activation keys' },
  'mailed key': { prevents: 'recover by e-mail', failures: 'mailed keys' },
  'mailed code': { prevents: 'change the e-mail address', failures: 'mailed codes' },
} as const satisfies Record<CountedProof, { prevents: Prevented; failures: string }>

/** What a limit that is reached keeps from, and what is used up. */
const limited = {
  recovery: { prevents: 'recover by e-mail', used: 'Its quota of recovery e-mails' },
  recipient: { prevents: 'recover by e-mail', used: 'The quota of e-mails to its address' },
  change: { prevents: 'change the e-mail address', used: 'Its quota of codes for another e-mail address' },
  partner: { prevents: 'activate', used: 'Its quota of activation keys by e-mail' },
  partnerAddresses: { prevents: 'activate', used: 'Its quota of addresses that no organization has' },
  exports: { prevents: 'export its data', used: 'Its quota of exports' },
  issuedKeys: { prevents: 'issue keys', used: 'Its quota of keys for members' },
} as const

/** Returns what keeps a user from signing in, activating and recovering. */
export function explainUser(
  registry: Models,
  { now }: Pick<Access, 'now'>,
  { quotas }: Outbox,
  settings: Pick<Settings, 'limitFactor' | 'sessionDays'>,
): Checked<'explainUser', string | undefined> {
  const { attempts, audit, counterKeys, userData, emails, dataKeys } = registry
  return {
    check: request => checkAddress(request.address),
    async handle(_request, { target: row, administrator: { user, service } }, address) {
      const standing = (await userData.standing(row.id))!
      const failures = await readFailures(registry, settings, row, address)
      const [asked] = await attempts.readAll(counterKeys.otherAddress(row.id))
      const [last] = await emails.ofUser(row, { last: true })
      const held = await quotas.held(row, await attempts.networksOf(row.id))
      const since = new Date(now() - settings.sessionDays * 86_400_000)
      const ended = await audit.list({ subjectId: row.id, action: 'session.end', since, limit: 3 })
      const obstacles = [
        ...stateObstacles(row),
        ...lockObstacles(failures, address),
        ...activationObstacles(row, standing),
        ...recoveryObstacles(row, standing, asked?.count ?? 0),
        ...held.map(({ limit, seconds }) => {
          const { prevents, used } = limited[limit]
          return obstacle(prevents, `${used} is used up.`, 'unlock user', { seconds })
        }),
        ...ended.reverse().map(({ at, reason, object }) => {
          const tokens = `The refresh tokens of ${object?.replace('service:', 'the tool ') ?? 'an app'}`
          const why = reason === 'COPIED' ? 'a copy of one was presented' : 'they were revoked'
          return obstacle('stay signed in', `${tokens} ended at ${at.toISOString()}: ${why}.`)
        }),
      ]
      const isLocal = !user && !service
      return {
        user: toAdministeredUser(row, dataKeys),
        obstacles: obstacles.map(each => ({ ...each, command: fixOf(each, row, isLocal) })),
        failures,
        lastEmail: last && toQueuedEmail(last),
        sessionEnd: await sessionEndOf(registry.audit, row.id),
      }
    },
  }
}

/** The command that ends an obstacle, if there is one. On the database itself, some changes need a reason. */
function fixOf({ remedy, values }: Obstacle, row: AdministeredUserRow, isLocal: boolean): string {
  if (!remedy) return ''
  const { id, organizationId } = row
  const { reason } = remedies[remedy]
  const isNeeded = isLocal && (reason === 'all' || (reason === 'administrators' && guardedUser.of(row)))
  const ids = { USER: id, ORGANIZATION: organizationId ?? undefined }
  return commandOf(remedy, { ...ids, ...values }, ...(isNeeded ? ['--reason', 'REASON'] : []))
}

/** `remedy` is absent where only time, or the user itself, ends an obstacle. */
function obstacle(
  prevents: Prevented,
  reason: string,
  remedy?: RemedyCode,
  { seconds, ...values }: Values & { readonly seconds?: number | undefined } = {},
): Obstacle {
  return { prevents, reason, remedy, values, seconds }
}

function stateObstacles(row: AdministeredUserRow): Obstacle[] {
  const ways = guardedUser.of(row) ? [...everything, 'sign in to Administration' as const] : everything
  return ways.flatMap(way => closing(row, way).map(({ why, remedy }) => obstacle(way, why, remedy)))
}

function lockObstacles(failures: readonly Count[], address: string | undefined): Obstacle[] {
  // A client at a network that the account knows is counted there alone.
  const known = failures.some(({ scope }) => scope === 'known address' || scope === 'known network')
  const codes = 'Too many one-time codes were wrong. Only another administrator, or --local, can unlock them.'
  return failures.flatMap(({ scope, proof, count, locked, seconds }) => {
    if (!locked || scope === 'account, in a day') return []
    if (proof === 'one-time code') return obstacle('sign in to Administration', codes, 'unlock user')
    if (proof === 'recovery request') {
      const reason =
        scope === 'one address'
          ? 'Too many recovery e-mails were requested for this user from this address.'
          : 'Too many recovery e-mails were requested from this address.'
      return known ? [] : obstacle('recover by e-mail', reason, 'unlock address', { ADDRESS: address, seconds })
    }
    if (proof === undefined) {
      const reason = 'Too many sign-ins failed from this address.'
      return known ? [] : everything.map(way => obstacle(way, reason, 'unlock address', { ADDRESS: address, seconds }))
    }
    const { prevents, failures: wrong } = proven[proof]
    const ofNetwork = known && scope === 'account' && (proofs as readonly string[]).includes(proof)
    const from = ofNetwork ? places.unknown : places[scope]
    return obstacle(prevents, `Locked after ${count} wrong ${wrong}${from}.`, 'unlock user', { seconds })
  })
}

/** Where it was wrong, by scope of the count. */
const places = {
  account: '',
  unknown: ' from networks and devices that it doesn’t know',
  'known address': ' from this address',
  'known network': ' from other addresses of this network',
  'other known': ' from one of the networks and devices that it knows',
  'one address': ' from one address',
  address: '',
} as const

function activationObstacles(row: AdministeredUserRow, { provider, keysWork }: Standing): Obstacle[] {
  const { role, active, organizationId } = row
  const ofActivation = (reason: string, remedy?: RemedyCode) => [obstacle('activate', reason, remedy)]
  // Without a remedy: an organization isn't opened for one of its users.
  const inactiveOrganization =
    keysWork === false ? ofActivation('Its organization is inactive: its keys don’t work.') : []
  if (active && role !== 'ROLE_INSTITUTION') return []
  if (active && organizationId === null)
    return ofActivation('It belongs to no organization: its provider key doesn’t work.', 'set organization')
  if (active) return inactiveOrganization
  if (role === 'ROLE_ADMIN')
    return ofActivation('A ROLE_ADMIN can’t activate itself: another administrator does.', 'activate user')
  const reason = role === 'ROLE_INSTITUTION' ? waits.institution : provider ? waits.withProvider : waits.withoutProvider
  return [
    ...ofActivation(reason, organizationId === null ? 'activate member' : 'activate user'),
    ...inactiveOrganization,
  ]
}

/** Why a user isn't active yet. */
const waits = {
  institution: 'It isn’t active, so services may refuse it: it needs the activation key of its organization.',
  withProvider: 'It isn’t active, so services may refuse it: it needs the key of an active ROLE_INSTITUTION user.',
  withoutProvider:
    'It isn’t active, so services may refuse it: no organization has an active ROLE_INSTITUTION user whose key it could use.',
} as const

function recoveryObstacles(row: AdministeredUserRow, standing: Standing, otherAddress: number): Obstacle[] {
  const { email } = row
  const { answers, failedEmails, password } = standing
  const found: Obstacle[] = []
  const add = (...of: Parameters<typeof obstacle>) => found.push(obstacle(...of))

  const byEmail = email === null ? 'set password' : 'send key'
  if (!password)
    add('sign in', 'It has no password: none was set yet, or the first key mailed to its address ended it.', byEmail)
  if (email === null) add('recover by e-mail', 'It has no e-mail address.', 'set e-mail address')
  if (otherAddress > 0) {
    const times = otherAddress === 1 ? 'once' : `${otherAddress} times`
    const registered = email === null ? 'it has none' : 'none was sent'
    const reason = `A recovery key was requested with another address, ${times} in the last hour: ${registered}.`
    add('recover by e-mail', reason, byEmail)
  }
  const failed = failedEmails.at(-1)
  if (failed) {
    const why = failed.error ? `: ${failed.error}` : ''
    const reason = `${failedEmails.length} e-mails to it failed permanently${why.replace(/[.\s]+$/, '')}.`
    add('recover by e-mail', reason, 'retry e-mail', { EMAIL: failed.id })
  }
  if (guardedUser.of(row)) {
    const reason = 'A ROLE_ADMIN that signs in by answers can only read its own record.'
    add('recover by answers', reason, byEmail)
  }
  const counting = answers.filter(({ counts }) => counts)
  const waits = answers.flatMap(({ counts, waits }) => (counts || waits === null ? [] : [waits])).sort((a, b) => a - b)
  if (counting.length < answersNeeded) {
    const later = waits.length > 0 ? `, ${waits.length} more later` : ''
    const reason = `${counting.length} of ${answersNeeded} required answers count${later}: the user saves them when signed in.`
    add('recover by answers', reason, undefined, { seconds: waits[answersNeeded - 1 - counting.length] })
  } else if (counting.filter(({ offered }) => offered).length < answersNeeded) {
    const { questionId, question } = counting.find(({ offered }) => !offered)!
    const reason = `Fewer than ${answersNeeded} of its questions are offered: “${question}” is retired.`
    add('recover by answers', reason, 'offer question', { QUESTION: questionId })
  }
  return found
}

/**
 * The counts that sign-ins ask for: of networks and devices that the account doesn't know, of the network of the address that
 * it knows, and, where there are failures, the highest of its other networks and devices.
 */
export async function readFailures(
  registry: Models,
  settings: Pick<Settings, 'limitFactor'>,
  row: AdministeredUserRow,
  address: string | undefined,
): Promise<Count[]> {
  const { attempts, counterKeys, totpSecrets, mailedKeys } = registry
  const { id, usernameKey } = row
  const most = failuresThatLock(settings.limitFactor)
  const here = address === undefined ? undefined : await attempts.knownNetwork(id, address)
  const account: Count[] = []
  const known: Count[] = []
  const counter =
    (proof: CountedProof, limit = most) =>
    (scope: Count['scope'], { count, seconds } = { count: 0, seconds: 0 }): Count => ({
      scope,
      proof,
      count,
      limit,
      seconds,
      locked: count >= limit,
    })
  for (const proof of proofs) {
    if (proof === 'administration' && !guardedUser.of(row)) continue
    const subject = counterKeys.account(proof, usernameKey)
    const subjectHere =
      here === undefined ? undefined : counterKeys.known(proof, usernameKey, counterKeys.knownNetwork(here))
    const counts = await attempts.readAll(subject)
    const toCount = counter(proof)
    const find = (of: Buffer) => counts.find(each => each.subject.equals(of))
    account.push(toCount('account', find(subject)))
    if (subjectHere)
      known.push(toCount(here === network(address!) ? 'known address' : 'known network', find(subjectHere)))
    const other = counts.find(each => !each.subject.equals(subject) && !subjectHere?.equals(each.subject))
    if (other) known.push(toCount('other known', other))
  }
  for (const wrong of await attempts.readAll(counterKeys.activation(id)))
    account.push(counter('activation key')('account', wrong))
  for (const { purpose, keyDigest } of await mailedKeys.current(id)) {
    const tried = await attempts.readAll(counterKeys.mailedKey(keyDigest))
    const ofAddress = address === undefined ? undefined : counterKeys.mailedKey(keyDigest, address)
    const worst = tried.find(({ subject }) => !ofAddress || subject.equals(ofAddress))
    const toCount = counter(purpose === 'email' ? 'mailed code' : 'mailed key', keyAttempts)
    if (worst) account.push(toCount('one address', worst))
  }
  account.push(...codeCounts(await totpSecrets.failures(id)))
  return [
    ...account,
    ...known,
    ...(address === undefined ? [] : await countsOfAddress(registry, settings, address, usernameKey)),
  ]
}

/** The failures of an address, and the requests for recovery keys from there, on any account and on this one. */
function countsOfAddress(
  { buckets, counterKeys }: Models,
  settings: Pick<Settings, 'limitFactor'>,
  address: string,
  usernameKey: string,
): Promise<Count[]> {
  const limits = limitsOf(settings.limitFactor)
  const kinds = [
    ['failures', 'address'],
    ['recoveryRequests', 'address', 'recovery request'],
    ['accountRecoveryRequests', 'one address', 'recovery request', usernameKey],
  ] as const
  const counts = kinds.map(async ([kind, scope, proof, account]): Promise<Count> => {
    const { capacity, perSecond } = limits[kind]
    const level = await buckets.read(counterKeys.address(kind, address, account), limits[kind])
    const locked = level + 1 > capacity
    const seconds = Math.ceil((locked ? level + 1 - capacity : level) / perSecond)
    return { scope, proof, count: Math.ceil(level), limit: Math.round(capacity), seconds, locked }
  })
  return Promise.all(counts)
}

/** The two counts of one-time codes, of a user who has them. */
function codeCounts(codes: CodeFailures | undefined): Count[] {
  if (!codes) return []
  const { locked, failures, seconds, dayFailures, daySeconds } = codes
  const { window, day } = codeLimits
  const count = (scope: Count['scope'], count: number, limit: number, seconds: number): Count => {
    const left = locked || count === 0 ? 0 : seconds
    return { scope, proof: 'one-time code', count, limit, seconds: left, locked }
  }
  return [
    count('account', failures, window.failures, seconds),
    count('account, in a day', dayFailures, day.failures, daySeconds),
  ]
}
