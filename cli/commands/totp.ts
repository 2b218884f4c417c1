import type { Command } from 'commander'
import { Option } from 'commander'
import { administering, type GlobalOptions, withSignIn } from '../administration.js'
import { misuse } from '../exit-codes.js'
import { withReference } from '../references.js'
import { askText, canAsk, codeProblem, confirmName, given, readSecret } from '../terminal/ask.js'
import { jsonOption, printJson, say } from '../terminal/output.js'

/** Adds `auth-admin totp`. */
export function addTotp(program: Command): void {
  const totp = program.command('totp').description('One-time codes of an authenticator (RFC 6238) for administrators')

  withSignIn(totp.command('enroll'), 'enrollTotp')
    .description('Show a secret for your authenticator as a QR code; from then on sign-ins need a code, too.')
    .addOption(
      new Option(
        '--code-file <file>',
        'file in which the first code is found once the secret is printed; - for standard input',
      ),
    )
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
Nothing is asked for at sign-in until a first code of the new secret was seen.
Then every session of yours ends: sign in again, with a code. From then on your
sessions at the public endpoints read your own record, are refreshed and
revoked, and open nothing else.

Example:
  $ auth-admin totp enroll`,
    )
    .action(
      administering(async (api, options: GlobalOptions & { codeFile?: string }) => {
        const { codeFile } = options
        if (codeFile === undefined && !canAsk(options)) {
          misuse('At no terminal the first code comes from a file: give it with --code-file, or - for standard input.')
        }
        const { secret, uri } = await api.enrollTotp({})
        if (options.json) process.stderr.write(`${uri}\n`)
        else {
          const { renderUnicodeCompact } = await import('uqr')
          say('Scan this with your authenticator, or type the secret into it:')
          process.stdout.write(`${renderUnicodeCompact(uri)}\n`)
          say(secret.replace(/(.{4})(?=.)/g, '$1 '))
        }
        const code = codeFile
          ? await readSecret(codeFile, '--code-file')
          : await askText('The code that it shows now:', { required: true, check: codeProblem })
        await api.confirmTotp({ code })
        if (options.json) printJson({ enrolled: true })
        else say('From now on a sign-in needs a code of it. Your sessions have ended: run `auth-admin login`.')
      }),
    )

  withReference(withSignIn(totp.command('remove'), 'removeTotp'), 'user', 'username in any spelling, or #id')
    .description('Take the one-time codes from an administrator who has lost them.')
    .addOption(new Option('--confirm <name>', 'the username, once more; asked for at a terminal'))
    .addOption(jsonOption())
    .addHelpText('after', "\nExample:\n  $ auth-admin totp remove ana --confirm ana --reason 'lost her telephone'")
    .action(
      administering(async (api, name: string | undefined, options: GlobalOptions & { confirm?: string }) => {
        const wanted = await given(name, 'Which user (username or #id)?', 'Say which user.', options)
        const { user } = await api.getUser({ user: wanted, omitKeys: true })
        const { id, username = '' } = user!.record!
        const confirm = await confirmName(`${username} will sign in by password alone.`, username, options)
        const { changed } = await api.removeTotp({ user: `#${id}`, confirm })
        if (options.json) printJson({ id, username, changed })
        else say(changed ? `${username} signs in by password alone.` : `${username} had no one-time codes.`)
      }),
    )
}
