import { isLoopback, type Settings } from './settings.js'

/** Why e-mails with these settings reach no one, and what to do; undefined if they may. */
export function mailProblem({
  smtpUrl,
  mailFrom,
}: Pick<Settings, 'smtpUrl' | 'mailFrom'>): readonly [problem: string, remedy: string] | undefined {
  if (!smtpUrl)
    return ['SMTP_URL is not set: e-mails are written to files and never sent.', 'Set SMTP_URL to a mail server.']
  if (!/@localhost>?$/.test(mailFrom)) return undefined
  return [
    'AUTH_MAIL_FROM is an address at localhost: mail servers refuse it.',
    'Set AUTH_MAIL_FROM to an address of yours.',
  ]
}

/** Warns of settings that weaken the protection of accounts, or with which a service in production sends no e-mails. */
export function warnOfRisks(settings: Settings, log: { warn(message: string): void }): void {
  const unsent = settings.databaseUrl && mailProblem(settings)
  if (unsent) log.warn(unsent.join(' '))
  const { recoveryEmail, bcryptCost, grpcAddress, adminAddress, tlsCert } = settings
  if (recoveryEmail === 'any') {
    log.warn(
      'AUTH_RECOVERY_EMAIL=any: everyone who knows a username can have a recovery key sent to an address of their own',
    )
  }
  if (bcryptCost < 10) log.warn('AUTH_BCRYPT_COST is below 10: passwords are cheap to guess from their hashes')
  if (adminAddress && !isLoopback(adminAddress.host) && Number.parseInt(process.versions.node, 10) < 24) {
    log.warn(
      'AUTH_ADMIN_ADDRESS is reachable from other machines, and HTTP/2 frames can end a process with this version of Node.js: keep it in a private network, or behind a proxy that asks for client certificates',
    )
  }
  if (!isLoopback(grpcAddress.host) && !tlsCert)
    log.warn(
      'AUTH_GRPC_ADDRESS is reachable from other machines, and AUTH_TLS_CERT is not set: passwords and tokens pass in clear text',
    )
}
