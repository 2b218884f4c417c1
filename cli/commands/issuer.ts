import type { Command } from '../command.js'
import { misuse } from '../exit-codes.js'
import { askText, canAsk, confirmAtServer, readText } from '../terminal/ask.js'
import { printJson, say, warn } from '../terminal/output.js'

/** Adds `auth-admin issuer`. */
export function addIssuer(program: Command): void {
  const issuer = program.command('issuer').description('Show or change issuer and audience of tokens: `iss` and `aud`.')

  issuer
    .command('set')
    .signIn('setIssuer')
    .description('Change the issuer, the audience, or both. All tokens in use become invalid.')
    .option('--issuer <issuer>', '`iss` of tokens, usually the public URL of the service', readText)
    .option('--audience <audience>', '`aud` of tokens', readText)
    .option('--confirm <issuer>', 'the issuer again; a terminal prompts for it')
    .json()
    .addHelpText(
      'after',
      `
A process reads both values when it starts. Until you restart it, it issues and
accepts tokens with the former values. After the restart, it accepts only tokens
with the new values. Restart all processes, and update AUTH_ISSUER and
AUTH_AUDIENCE if they are set; \`auth-admin doctor\` names processes that still
have the former values. All users then have to sign in again. Services
that verify tokens themselves must expect the new values. If you set the former
values again, their tokens are valid again.

Example:
  $ URL=https://auth.example.org
  $ auth-admin issuer set --issuer $URL --confirm $URL`,
    )
    .administers(async (api, options: Chosen & { confirm?: string; json?: boolean }) => {
      if (!options.issuer && !options.audience && !canAsk(options)) misuse('Pass --issuer, --audience, or both.')
      const now = await api.getIssuer({})
      const asked = await choose(options, now)
      const issuer = asked.issuer || now.issuer
      const sentence =
        'After all processes restart, all tokens in use are invalid, and all users have to sign in again.'
      const request = { issuer, audience: asked.audience || undefined }
      const validate = (confirm: string) => api.setIssuer({ ...request, confirm, validateOnly: true })
      const confirm = await confirmAtServer(sentence, issuer, options, validate)
      const set = await api.setIssuer({ ...request, confirm })
      if (set.changed && !options.json)
        warn(
          'Restart all processes of the service: then earlier tokens are invalid, and all users have to sign in again.',
        )
      if (options.json) return printJson({ issuer: set.issuer, audience: set.audience })
      say(`The issuer is ${set.issuer}, the audience ${set.audience}${set.changed ? '' : ' already'}.`)
    })
}

interface Chosen {
  readonly issuer?: string
  readonly audience?: string
}

async function choose(options: Chosen, now: { readonly issuer: string; readonly audience: string }): Promise<Chosen> {
  if (options.issuer || options.audience) return options
  return {
    issuer: await askText('Issuer (`iss` of tokens):', { required: true, fallback: now.issuer }),
    audience: await askText('Audience (`aud` of tokens):', { required: true, fallback: now.audience }),
  }
}
