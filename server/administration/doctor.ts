import { X509Certificate } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { basename } from 'node:path'
import { isProvider, noProvider } from '../access/provider.js'
import type { AdministrationRpcs } from '../calls/context.js'
import { connectionsOfProcess, readCondition } from '../database/condition.js'
import { adviceOn, causeOf } from '../database/failures.js'
import { readMigrations } from '../database/migrate.js'
import type { Registry } from '../models/index.js'
import { describeProcess } from '../models/process.js'
import { rotateAfter } from '../models/signing-key.js'
import type { UndeclaredProxies } from '../observability/undeclared-proxy.js'
import { createMailTransport, describe, refusesName, within } from '../outbox/transport.js'
import { measureHashing } from '../passwords/threads.js'
import { adminPasswordFiles } from '../process/data-folder.js'
import { mailProblem } from '../process/risky-settings.js'
import { isLocalUrl, type Settings } from '../process/settings.js'
import { advise } from '../rules/remedies.js'

/** The result of a check, with a fix unless it is `ok`. */
type Found = { status: 'ok'; detail: string } | { status: 'warning' | 'failed'; detail: string; fix: string }

interface Deps extends Registry {
  readonly settings: Settings
  /** Absent where the process serves no clients. */
  readonly undeclaredProxies?: UndeclaredProxies['found']
}

/** Checks by name. */
type Checks = Readonly<Record<string, (deps: Deps) => Promise<Found>>>

/** Seconds that a check may take. */
const timeout = 5

const ok = (detail: string): Found => ({ status: 'ok', detail })
const warning = (detail: string, fix: string): Found => ({ status: 'warning', detail, fix })
const failed = (detail: string, fix: string): Found => ({ status: 'failed', detail, fix })

/** A number with its noun. */
const many = (count: number, noun: string, plural = `${noun}s`) => `${count} ${count === 1 ? noun : plural}`

/** Checks the service from this process, and suggests fixes. */
export function diagnose(deps: Deps): AdministrationRpcs['diagnose'] {
  const run = async ([check, examine]: [string, Checks[string]]) => {
    const found = await within(timeout, examine(deps)).catch(error =>
      failed(`The check failed (${describe(causeOf(error))}).`, unforeseen),
    )
    return { check, fix: '', ...found }
  }
  const runAll = (checks: Checks) => Promise.all(Object.entries(checks).map(run))
  return async _request => {
    const around = runAll(surroundings)
    const first = []
    for (const check of Object.entries(foundations)) {
      first.push(await run(check))
      // The other checks depend on it.
      if (first.at(-1)!.status === 'failed') return { checks: [...first, ...(await around)] }
    }
    return { checks: [...first, ...(await runAll(registry)), ...(await around)] }
  }
}

const unforeseen = 'See the log of this process, and try again.'

/** Checks that the others depend on, in this order. */
const foundations: Checks = {
  async database({ database }) {
    try {
      const { version } = await readCondition(database)
      if (await database.isWritable()) {
        const wrong = await database.wrongSettings()
        if (wrong.length === 0) return ok(`PostgreSQL ${version} answers and accepts writes.`)
        return warning(
          `PostgreSQL ${version} answers and accepts writes, but its sessions have settings that the service can’t work with: ${wrong.join(', ')}.`,
          'Restart the service, which replaces them for its role, and reconnect poolers.',
        )
      }
      const { done, different } = await readMigrations(database)
      // Without tables there is nothing to write.
      if (done.length + different.length === 0) return ok(`PostgreSQL ${version} answers; it is empty.`)
      return failed(
        `PostgreSQL ${version} answers, but doesn’t accept writes.`,
        'Point DATABASE_URL to the primary, and check that the disk is not full.',
      )
    } catch (error) {
      return failed(
        adviceOn(error) ?? `The database can’t be used (${describe(causeOf(error))}).`,
        'Check DATABASE_URL, and that PostgreSQL runs there and accepts its user and password.',
      )
    }
  },

  async migrations({ database }) {
    const { done, pending, newer, different } = await readMigrations(database)
    const names = (list: readonly { name: string }[]) => list.map(({ name }) => name).join(', ')
    if (different.length > 0)
      return failed(
        `The database has another baseline than this version (${names(different)}).`,
        'Run the version that made it, or use an empty database.',
      )
    if (done.length === 0) return failed('The registry is not installed yet.', advise('install'))
    if (newer.some(({ kind }) => kind === 'contract'))
      return failed(`The database is of a newer version (${names(newer)}).`, 'Run that version.')
    const expand = pending.filter(({ kind }) => kind === 'expand')
    if (expand.length > 0) return failed(`Migrations are pending: ${names(expand)}.`, advise('migrate'))
    if (pending.length > 0)
      return warning(`Migrations wait for the end of the upgrade: ${names(pending)}.`, advise('end upgrade'))
    if (newer.length > 0)
      return warning(`A newer version has run ${names(newer)}; this one still works.`, 'Update this process.')
    return ok('No migration is pending.')
  },

  async 'data keys'({ dataKeys }) {
    try {
      await dataKeys.load()
      return ok('The master key opens the data keys.')
    } catch (error) {
      if ((error as Error).name !== 'Error') throw error
      return failed(
        (error as Error).message,
        'Set AUTH_MASTER_KEY to the current key, which every backup since the last rotation contains.',
      )
    }
  },
}

/** Checks of the data. */
const registry: Checks = {
  async clocks({ database, clock }) {
    const before = Date.now()
    const { now } = await readCondition(database)
    const after = Date.now()
    // The time between the two is the round trip.
    const difference = Math.max(0, before - now, now - after) / 1000
    const detail = `The clocks of this machine and of the database differ by ${difference.toFixed(1)} s.`
    const fix = 'Synchronize both clocks by NTP.'
    // A leap of one of them is its cause.
    if (difference > 60) return failed(detail, fix)
    const hours = Math.ceil((await clock.doubt()) / 3600)
    if (hours > 0)
      return warning(
        `The clock of the database leapt, or no process ran for more than an hour: nothing is deleted by age until processes have run for ${many(hours, 'more hour', 'more hours')}.`,
        'If the clock is right, do nothing. Else correct it: see “Clocks that leap” in docs/operations.md.',
      )
    return difference > 2 ? warning(detail, fix) : ok(detail)
  },

  async connections({ database }) {
    const { most, used } = await readCondition(database)
    const detail = `${used} of ${most} connections of the database are in use; a process of the service takes up to ${connectionsOfProcess}.`
    if (most < connectionsOfProcess || most - used < connectionsOfProcess)
      return warning(detail, 'Raise max_connections, or put a pooler before the database.')
    return ok(detail)
  },

  async processes({ processes, tokenIssuers, settings }) {
    const [running, registry] = [await processes.running(), await tokenIssuers.find()]
    const former = running.filter(
      ({ issuer, audience }) => issuer !== registry?.issuer || audience !== registry.audience,
    )
    if (former.length > 0)
      return warning(
        `Processes still issue and accept tokens of a former issuer or audience: ${former.map(describeProcess).join(', ')}.`,
        'Restart them.',
      )
    // With the embedded database, service and clients may all be on one machine, unless the gateway is apart.
    const isApart = settings.databaseUrl || running.some(({ kind }) => kind === 'server')
    if (isApart && registry && isLocalUrl(registry.issuer))
      return warning(`Tokens have issuer ${registry.issuer}, an address of the machine itself.`, advise('set issuer'))
    return ok(`Processes that serve this registry: ${running.length}. All have its issuer.`)
  },

  async 'signing key'({ signingKeys }) {
    const [keys, signer] = [await signingKeys.all(), await signingKeys.signer()]
    const key = keys.find(({ kid }) => kid === signer)
    if (!key) return failed('No key signs tokens: no user can sign in.', advise('sign at once'))
    const age = (Date.now() - key.signsAt.getTime()) / 86_400_000
    const rest = rotateAfter / 86_400 - age
    const detail = `The signing key is ${many(Math.max(0, Math.floor(age)), 'day')} old`
    // Maintenance rotates it within an interval.
    if (rest < -1) return warning(`${detail} and has no successor.`, advise('rotate signing key'))
    return ok(`${detail}; its automatic rotation is ${rest > 0 ? `in ${many(Math.ceil(rest), 'day')}` : 'today'}.`)
  },

  async clients({ services, tokenIssuers }) {
    const [clients, registry] = [await services.countClients(), await tokenIssuers.find()]
    const detail = `Services at which users sign in: ${clients}.`
    if (clients === 0 || !registry || isProvider(registry.issuer)) return ok(detail)
    return warning(`${detail} ${noProvider}`, advise('set issuer'))
  },

  async 'audit log'({ audit }) {
    const lag = Math.round((await audit.backlog()).oldestSeconds)
    if (lag <= 10) return ok('Events are sealed without delay.')
    return warning(
      `The oldest unsealed event is ${lag} s old.`,
      'Start the service, which seals events, or see its log.',
    )
  },

  async 'e-mails'({ emails }) {
    const { failed, retried, uncomposed, held, oldestSeconds } = await emails.backlog()
    if (uncomposed > 0)
      return warning(
        `E-mails can’t be made: ${uncomposed} of those that wait failed before there was anything to send.`,
        'See the error in the log of the service; they are retried.',
      )
    if (failed > 0) return warning(`${many(failed, 'e-mail')} failed permanently.`, advise('retry e-mails'))
    if (oldestSeconds > 600)
      return warning(
        `The oldest unsent e-mail is ${Math.round(oldestSeconds / 60)} minutes old.`,
        advise('send e-mails'),
      )
    if (retried > 0)
      return warning(
        `The last attempt of ${many(retried, 'waiting e-mail')} failed; the service tries again.`,
        advise('fix e-mails'),
      )
    if (held > 0) return ok(`E-mails are sent without delay; a quota holds ${many(held, 'notice')}.`)
    return ok('E-mails are sent without delay.')
  },

  async administrators({ totpSecrets }) {
    const { administrators, withoutCodes } = await totpSecrets.coverage()
    if (administrators === 0) return failed('There is no active administrator.', advise('create administrator'))
    const detail = `${many(administrators, 'active administrator')}; without one-time codes: ${withoutCodes}.`
    return withoutCodes > 0 ? warning(detail, advise('enroll codes')) : ok(detail)
  },

  /** Their users don't learn it otherwise: a request for a key by e-mail is answered alike for every account. */
  async 'ways back'({ administeredUsers, settings: { strict } }) {
    const { examined, without } = await administeredUsers.withoutWayBack(strict !== 'on')
    const lacks = strict === 'on' ? 'no e-mail address' : 'neither an e-mail address nor answers to two questions'
    const detail = `Of the newest ${many(examined, 'active account')}, those with ${lacks}: ${without}.`
    if (without === 0) return ok(detail)
    return warning(detail, advise('ask for e-mail addresses'))
  },

  /** Imported accounts can have such names, which make `#id` ambiguous. */
  async usernames({ administeredUsers }) {
    const ids = await administeredUsers.namedLikeIds()
    if (ids.length === 0) return ok('No username looks like the id of another user.')
    const listed = `${ids.slice(0, 10).join(', ')}${ids.length > 10 ? ', …' : ''}`
    return warning(`Usernames are # and digits, which looks like an id: users ${listed}.`, advise('erase users'))
  },

  /** Requests that come by a proxy that isn't known all have its address: the limits for one hold for all. */
  async 'client addresses'({ audit, settings, undeclaredProxies }) {
    const [undeclared] = undeclaredProxies?.() ?? []
    if (undeclared) {
      const { endpoint, networks, requests, forwarded } = undeclared
      return warning(
        `Of ${requests} requests in a minute of the last hour (${endpoint}), ${forwarded} carried X-Forwarded-For and came from ${networks.join(', ')}, not in AUTH_TRUSTED_PROXIES.`,
        'If these are proxies, name them in AUTH_TRUSTED_PROXIES: until then all clients behind them count as one address.',
      )
    }
    const { signIns, users, addresses, address } = await audit.signInAddresses()
    const trusted = settings.trustedProxies.length
    const proxies = `AUTH_TRUSTED_PROXIES ${trusted > 0 ? `has ${many(trusted, 'entry', 'entries')}` : 'is not set'}`
    if (users >= 10 && addresses === 1)
      return warning(
        `${proxies}, and the last ${signIns} sign-ins of ${users} users all came from ${address}.`,
        'If a proxy stands there, name it in AUTH_TRUSTED_PROXIES; see that it sends X-Forwarded-For.',
      )
    return ok(`${proxies}; the last ${many(signIns, 'sign-in')} came from ${many(addresses, 'address', 'addresses')}.`)
  },
}

/**
 * Checks that need no database, of the settings of this process: each names its setting, because a command line on the
 * database itself may have others than the service.
 */
const surroundings: Checks = {
  async 'mail server'({ settings }) {
    const transport = createMailTransport(settings, { error() {} })
    const [where, fix] = settings.smtpUrl
      ? ['The mail server of SMTP_URL', advise('send test e-mail')]
      : ['The folder for e-mails in AUTH_DATA_DIR', 'Let the user of the service write to its folder mail.']
    try {
      await within(timeout - 1, transport.verify())
      const unsent = mailProblem(settings)
      if (unsent && !settings.smtpUrl) return warning(...unsent)
      return ok(`${where} accepts e-mails.`)
    } catch (error) {
      if (!refusesName(error)) return failed(`${where} can’t be used (${describe(error)}).`, fix)
      return failed(
        `${where} refuses the name by which this service greets it (${describe(error)}).`,
        'Add `?name=NAME` to SMTP_URL, with a name that the mail server accepts, such as the DNS name of this machine.',
      )
    } finally {
      transport.close()
    }
  },

  async 'initial password'({ settings }) {
    const names = await readdir(settings.dataDir).catch(() => [])
    const usual = basename(adminPasswordFiles(settings.dataDir, '')[0])
    const found = names.filter(name => name.startsWith(usual))
    if (found.length === 0) return ok('AUTH_DATA_DIR has no file with the password of the first administrator.')
    return warning(
      `AUTH_DATA_DIR still has the initial password of the first administrator, in the file ${found.join(', ')}.`,
      advise('set initial password'),
    )
  },

  async 'recovery e-mails'({ settings }) {
    if (settings.recoveryEmail !== 'any')
      return ok('AUTH_RECOVERY_EMAIL is registered: recovery keys go to registered addresses only.')
    return warning(
      'AUTH_RECOVERY_EMAIL is any: anyone who knows a username can take over the account.',
      'Unset AUTH_RECOVERY_EMAIL.',
    )
  },

  async 'strict mode'({ settings: { strict } }) {
    const refused =
      'secrets in query strings (400), logins by answers (422), saving answers (403), and password updates without the present password or a sign-in of the last 15 minutes (400)'
    if (strict === 'on') return ok(`AUTH_STRICT is on. It refuses ${refused}; answers of sign-ups aren’t stored.`)
    return ok(`AUTH_STRICT is off: the interface has what it would refuse, ${refused}.`)
  },

  async 'password hashes'({ settings: { bcryptCost: cost } }) {
    const { milliseconds, atOnce } = await measureHashing(cost)
    const each = Math.max(1, Math.round(milliseconds))
    const logins = (atOnce * 1000) / milliseconds
    const detail = `AUTH_BCRYPT_COST is ${cost}: a hash takes ${each} ms here, about ${logins < 10 ? logins.toFixed(1) : Math.round(logins)} logins a second by ${atOnce} cores.`
    if (cost < 10) return warning(detail, 'Set AUTH_BCRYPT_COST to 10 or more: hashes of this cost are cheap to guess.')
    if (milliseconds > 1000) return warning(detail, 'Add servers, or use faster cores.')
    return ok(detail)
  },

  async certificate({ settings: { tlsCert } }) {
    if (!tlsCert) return ok('AUTH_TLS_CERT is not set.')
    const ends = new Date(new X509Certificate(await readFile(tlsCert)).validTo)
    const days = Math.floor((ends.getTime() - Date.now()) / 86_400_000)
    const on = ends.toISOString().slice(0, 10)
    const fix = 'Replace the files of AUTH_TLS_CERT and AUTH_TLS_KEY; they are reloaded within seconds.'
    if (days < 0) return failed(`The certificate of AUTH_TLS_CERT expired on ${on}.`, fix)
    const detail = `The certificate of AUTH_TLS_CERT is valid until ${on}, for ${many(days, 'day')}.`
    return days < 30 ? warning(detail, fix) : ok(detail)
  },
}
