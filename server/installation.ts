/**
 * The installation: what a database needs before the service can use it. Each start of the service ensures it, and the
 * command line does on request. What exists already stays unchanged.
 */
import { randomInt } from 'node:crypto'
import { lstat, rm } from 'node:fs/promises'
import { checkMigrations, dueMigrations, type MigrateOptions, migrate, readMigrations } from './database/migrate.js'
import type { AuditEvent } from './models/audit.js'
import { registryTag } from './models/data-key.js'
import type { Registry } from './models/index.js'
import { publishLead, rotateAfter } from './models/signing-key.js'
import { issuerObject, type TokenIssuer } from './models/token-issuer.js'
import type { Registration } from './models/user-batch.js'
import type { Passwords } from './passwords/hash.js'
import { checkPassword, createPasswordPolicy, preparePassword } from './passwords/policy.js'
import type { AuditAction } from './policy/audit-actions.js'
import { adminPasswordFiles, openDataFolder } from './process/data-folder.js'
import { ignoreMissing } from './process/errno.js'
import { unquoted } from './process/plain-text.js'
import { readPrivateFile, writePrivateFile } from './process/private-file.js'
import {
  firstAudience,
  firstIssuer,
  isAdministrationAudience,
  isForIssuer,
  isIssuerUrl,
  type Settings,
} from './process/settings.js'
import { attributesOfForm } from './registration/form.js'
import { createRegistrar } from './registration/registrar.js'
import { questionKey, usernameKey } from './rules/names.js'
import { named } from './rules/remedies.js'

/** Security questions of a new installation. */
const firstQuestions = [
  'Qual é o nome do seu primeiro animal de estimação?',
  'Em que cidade sua mãe nasceu?',
  'Qual era o nome da sua primeira escola?',
  'Qual é o nome do seu melhor amigo de infância?',
  'Qual era o apelido da sua avó?',
  'Em que rua você morou quando era criança?',
  'Qual era o nome do seu professor preferido?',
  'Qual é a sua comida preferida da infância?',
]

/** What an installation did. */
interface Installation {
  /** Migrations that it ran. */
  readonly migrations: readonly string[]
  /** Username of the administrator that it created. */
  readonly administrator?: string
  /** The random password of that administrator, and the file that keeps it. */
  readonly password?: { readonly text: string; readonly file: string }
  /** What the policy for all other passwords refuses in the password that was set for it. */
  readonly weakness?: string
  /** How many questions it added. */
  readonly questions: number
  /** Id of the signing key that it created. */
  readonly signingKey?: string
  /** Issuer and audience of the registry's tokens, new or not. */
  readonly tokens: TokenIssuer
}

/** Settings that an installation uses. */
type InstallationSettings = Pick<
  Settings,
  | 'adminUsername'
  | 'adminPassword'
  | 'dataDir'
  | 'tokenTtl'
  | 'passwordMinLength'
  | 'passwordDenylist'
  | 'issuer'
  | 'audience'
  | 'httpAddress'
  | 'httpTlsCert'
  | 'migrate'
  | 'origins'
>

/**
 * Makes a database ready for use: schema, issuer of tokens, first signing key, first security questions, default
 * administrator. What exists already stays unchanged, so it may be repeated, and run by several processes at once. The
 * default administrator is created with the issuer, once in the life of a registry, and not again after its deletion.
 * Throws an Error that says what to do where settings contradict the registry. `on` is of its migrations.
 */
export async function install(
  registry: Registry,
  settings: InstallationSettings,
  passwords: Pick<Passwords, 'hash'>,
  actor: string,
  on: Pick<MigrateOptions, 'onLocked' | 'onDue'> = {},
): Promise<Installation> {
  const { database, dataKeys, users, questions, signingKeys, tokenIssuers, audit } = registry
  const migrations = settings.migrate === 'on' ? await migrate(database, on) : await refusePending(database)
  await database.prepareSessions()
  // Before any change: a process with other settings changes nothing.
  const before = await tokenIssuers.find()
  if (!before && !isIssuerUrl(firstIssuer(settings).issuer))
    throw new Error('AUTH_ISSUER: expected the URL of the registry for clients, such as https://auth.example.org.')
  const passwordOf = settings.origins.settings.find(({ name }) => name === 'AUTH_ADMIN_PASSWORD')
  if (!before && settings.adminPassword === undefined && passwordOf?.origin === 'file')
    throw new Error('AUTH_ADMIN_PASSWORD: the file that AUTH_ADMIN_PASSWORD_FILE names is missing.')
  checkIssuer(before ?? firstIssuer(settings), settings)
  if (!(await dataKeys.find()))
    await database.transact(async t => {
      if (!(await dataKeys.install(t))) return
      await audit.install(t)
      await audit.append({ action: 'data-keys.add', outcome: 'ok', actor }, t)
    })
  const username = settings.adminUsername.trim()
  const key = usernameKey(username)
  const [offered, signerAge] = await Promise.all([questions.all(), signingKeys.signerAge()])
  // Most starts find everything there, and take no locks.
  if (before && offered.length > 0 && signerAge !== undefined && signerAge < rotateAfter)
    return { migrations, tokens: before, questions: 0 }
  const random = !before && settings.adminPassword === undefined ? randomPassword() : undefined
  const text = settings.adminPassword ?? random
  const { hash, weakness } = before ? {} : await hashFor(username, text!, settings, passwords)

  const event = (action: AuditAction, object: string): AuditEvent => ({ action, outcome: 'ok', actor, object })
  let file: string | undefined
  const work = database.transact(async t => {
    const events: AuditEvent[] = []
    const { registry: tokens, made: issuerMade } = await tokenIssuers.establish(firstIssuer(settings), t)
    if (issuerMade) events.push(event('registry.set-issuer', issuerObject(tokens)))
    const signingKey = await signingKeys.rotate({ force: false, lead: publishLead, tokenTtl: settings.tokenTtl }, t)
    if (signingKey) events.push(event('signing-key.add', `signing-key:${signingKey}`))

    // Questions that were all retired stay retired: only an empty table is filled.
    const fresh = (await questions.all()).length === 0 ? firstQuestions : []
    for (const question of fresh) await questions.add({ question, questionKey: questionKey(question) }, t)
    if (fresh.length > 0) events.push(event('question.add', `questions:${fresh.length}`))

    let made = false
    // `migrate` may have run without an installation, and users may exist.
    if (issuerMade && hash && !(await users.taken(key, '')).username) {
      const id = await createRegistrar(registry).add({ ...administrator(username), passwordHash: hash }, t)
      events.push({ ...event('user.add', 'default-administrator'), subject_id: id })
      made = true
      // Once, even if the transaction is repeated.
      if (random) file ??= await keep(settings.dataDir, registryTag(dataKeys), random)
    }
    for (const each of events) await audit.append(each, t)
    return { signingKey, questions: fresh.length, made, tokens }
  })
  const done = await work.catch(async error => {
    if (file) await rm(file, { force: true })
    throw error
  })
  // Another process may have installed the registry meanwhile.
  checkIssuer(done.tokens, settings)
  return {
    migrations,
    tokens: done.tokens,
    questions: done.questions,
    ...(done.signingKey && { signingKey: done.signingKey }),
    ...(done.made && { administrator: username, ...(weakness && { weakness }) }),
    ...(done.made && random && { password: { text: random, file: file! } }),
  }
}

/** Refuses tables that are behind, where a start doesn't migrate. Returns what it migrated: nothing. */
async function refusePending(database: Registry['database']): Promise<readonly string[]> {
  const status = await readMigrations(database)
  checkMigrations(status)
  const due = dueMigrations(status)
  if (due.length === 0) return []
  throw new Error(
    `The database is behind this version (${due.map(({ name }) => name).join(', ')}), and AUTH_MIGRATE=off leaves it so: run ${named('migrate')}.`,
  )
}

/**
 * Throws an Error when the settings name another issuer or audience than the registry's, or when the registry's audience is
 * that of Administration or the issuer.
 */
function checkIssuer(registry: TokenIssuer, { issuer, audience }: Pick<Settings, 'issuer' | 'audience'>): void {
  if (isAdministrationAudience(registry.audience))
    throw new Error(
      `The tokens of this registry have audience ${registry.audience}, which is for tokens of administrators: change it with ` +
        `${setIssuer({ audience: audience ?? firstAudience, confirm: registry.issuer })}.`,
    )
  if (isForIssuer(registry))
    throw new Error(
      `The tokens of this registry have audience ${registry.audience}, which is their issuer: tokens for the issuer are for the ` +
        `registry alone. Set AUTH_AUDIENCE to another, such as ${firstAudience}; in an installed registry, change it with ` +
        `${setIssuer({ audience: firstAudience, confirm: registry.issuer })}.`,
    )
  const other = { issuer: issuer ?? registry.issuer, audience: audience ?? registry.audience }
  // An earlier version installed issuer and audience with the quotation marks that it was given, and now refuses them.
  const isSame = (wanted: string, present: string) => wanted === present || wanted === unquoted(present)
  if (isSame(other.issuer, registry.issuer) && isSame(other.audience, registry.audience)) return
  const wanted = [
    issuer !== undefined && `AUTH_ISSUER is ${issuer}`,
    audience !== undefined && `AUTH_AUDIENCE is ${audience}`,
  ]
  throw new Error(
    `${wanted.filter(Boolean).join(' and ')}, but the tokens of this registry have issuer ${registry.issuer} and audience ` +
      `${registry.audience}: leave both unset, or change the registry with ${setIssuer({ ...other, confirm: other.issuer })}.`,
  )
}

/** What is wrong with an issuer or audience that an earlier version installed, and the command that changes it. */
export function issuerProblem({ issuer, audience }: TokenIssuer): string | undefined {
  if (isIssuerUrl(issuer) && unquoted(audience) === undefined) return undefined
  const [plain = issuer, to = audience] = [unquoted(issuer), unquoted(audience)]
  const url = isIssuerUrl(plain) ? plain : 'https://HOST'
  return (
    `The tokens of this registry have issuer ${issuer} and audience ${audience}, but an issuer is a URL, and neither has quotation ` +
    `marks: tell services, run ${setIssuer({ issuer: url, audience: to, confirm: url })}, and restart.`
  )
}

/** The command that changes issuer and audience of the registry. */
function setIssuer(request: { issuer?: string; audience: string; confirm: string }): string {
  return named('set issuer as wanted', { REQUEST: request }, '--local')
}

async function hashFor(
  username: string,
  password: string,
  settings: Pick<Settings, 'passwordMinLength' | 'passwordDenylist'>,
  passwords: Pick<Passwords, 'hash'>,
) {
  const policy = createPasswordPolicy({
    minLength: settings.passwordMinLength,
    denylistFile: settings.passwordDenylist,
  })
  if (preparePassword(password) === undefined) throw new Error('AUTH_ADMIN_PASSWORD: leave out control characters.')
  const waiter = { kind: 'other', networks: [], account: username, deadline: Number.POSITIVE_INFINITY } as const
  const [hash] = await passwords.hash([{ context: 'password', text: password }], waiter)
  return { hash: hash!, weakness: checkPassword(password, { username }, policy)?.message }
}

function administrator(username: string): Omit<Registration, 'passwordHash'> {
  return {
    ...attributesOfForm({ username, nickname: username, state: 'DF', city: 'Brasília' }),
    securityQuestion: null,
    termsOfUsage: true,
    role: 'ROLE_ADMIN',
    active: true,
    activatedAt: null,
  }
}

/** 20 letters and digits, about 119 bits. */
function randomPassword(): string {
  const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789'
  return Array.from({ length: 20 }, () => alphabet[randomInt(alphabet.length)]).join('')
}

/** Keeps a password in a new file of the data folder, which may have those of other registries. Returns its path. */
async function keep(dataDir: string, registry: string, password: string): Promise<string> {
  await openDataFolder(dataDir)
  const [usual, own] = adminPasswordFiles(dataDir, registry)
  const file = (await lstat(usual).catch(ignoreMissing)) ? own : usual
  await writePrivateFile(file, password, { isNew: true })
  return file
}

/**
 * Returns the file that keeps the password of the default administrator: undefined when there is none, or another password was
 * set since, or the file is of another registry.
 */
export async function findKeptPassword(
  { dataKeys, users, userBatches }: Pick<Registry, 'dataKeys' | 'users' | 'userBatches'>,
  { dataDir, adminUsername }: Pick<Settings, 'dataDir' | 'adminUsername'>,
  passwords: Pick<Passwords, 'verify'>,
): Promise<string | undefined> {
  for (const file of adminPasswordFiles(dataDir, registryTag(dataKeys))) {
    const text = await readPrivateFile(file).catch(() => undefined)
    if (text === undefined) continue
    const user = await users.byUsername(usernameKey(adminUsername.trim()))
    const [secrets] = user ? await userBatches.secrets([user.id]) : []
    const claim = { context: 'password', text, stored: secrets?.passwordHash } as const
    const waiter = { kind: 'other', networks: [], account: adminUsername, deadline: Number.POSITIVE_INFINITY } as const
    const [verdict] = await passwords.verify([claim], waiter)
    if (verdict?.correct) return file
  }
  return undefined
}
