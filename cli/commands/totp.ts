import type { GlobalOptions } from '../administration.js'
import type { Command } from '../command.js'
import { misuse } from '../exit-codes.js'
import { askCodes } from '../sign-in.js'
import { canAsk, readSecret } from '../terminal/ask.js'
import { printJson, say } from '../terminal/output.js'

/** Adds `auth-admin totp`. */
export function addTotp(program: Command): void {
  const totp = program.command('totp').description('Manage one-time codes (RFC 6238) of administrators.')

  totp
    .command('enroll')
    .signIn('enrollTotp')
    .description('Enroll an authenticator by a QR code. From then on, a sign-in also requires a code.')
    .option('--code-file <file>', 'file with the first code, read after the secret is printed; - for standard input')
    .json()
    .remarks(`
The first code of the new secret completes the enrollment and ends all your
sessions: sign in again, with the next code. From then on, your sessions at the
public endpoints can read your own record, refresh and revoke, and nothing else.`)
    .examples('totp enroll')
    .administers(async (api, options: GlobalOptions & { codeFile?: string }) => {
      const { codeFile } = options
      if (codeFile === undefined && !canAsk(options)) {
        misuse('Without a terminal, pass --code-file; - is standard input.')
      }
      const { secret, uri } = await api.enrollTotp({})
      if (options.json) process.stderr.write(`${uri}\n`)
      else {
        const { renderUnicodeCompact } = await import('uqr')
        say('Scan this with your authenticator, or enter the secret:')
        process.stdout.write(`${renderUnicodeCompact(uri)}\n`)
        say(secret.replace(/(.{4})(?=.)/g, '$1 '))
      }
      const confirm = (code: string) => api.confirmTotp({ code })
      const { nextCodeDelay } =
        codeFile === undefined
          ? await askCodes(confirm, 'INVALID_ARGUMENT')
          : await confirm(await readSecret(codeFile, '--code-file'))
      const nextCodeSeconds = Number(nextCodeDelay!.seconds)
      if (options.json) return printJson({ enrolled: true, nextCodeSeconds })
      say('Enrolled: a sign-in now needs a code, and each code is valid once. Your sessions have ended:')
      say(`run \`auth-admin login\` with the next code, which comes in ${nextCodeSeconds} s.`)
    })
}
