import { type Command, Option } from 'commander'
import { administering, withSignIn } from '../administration.js'
import { misuse } from '../exit-codes.js'
import { askText, canAsk, confirmAtServer, readText } from '../terminal/ask.js'
import { jsonOption, printFields, printJson, say, warn } from '../terminal/output.js'

/** Adds `auth-admin issuer`. */
export function addIssuer(program: Command): void {
  const issuer = program.command('issuer').description('Who issues tokens, and for whom: their `iss` and `aud`')

  issuer
    .command('show')
    .description('Show the issuer and the audience of the registry.')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin issuer show')
    .action(
      administering(async (api, options: { json?: boolean }) => {
        const { issuer, audience } = await api.getIssuer({})
        if (options.json) printJson({ issuer, audience })
        else printFields({ issuer, audience })
      }),
    )

  withSignIn(issuer.command('set'), 'setIssuer')
    .description('Change the issuer, the audience, or both. All tokens in use become void.')
    .option('--issuer <issuer>', '`iss` of tokens, as a rule the public URL of the service', readText)
    .option('--audience <audience>', '`aud` of tokens', readText)
    .addOption(new Option('--confirm <issuer>', 'the issuer, once more; asked for at a terminal'))
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
A process reads them when it starts: until it is restarted it issues and accepts
tokens of the former issuer, afterwards only those of the new one. So restart
all processes, with the new AUTH_ISSUER and AUTH_AUDIENCE where those are set.
Then everyone has to log in again, and services that verify tokens by themselves
must expect the new values. Setting the former ones again makes tokens of theirs
good again.

Example:
  $ URL=https://auth.example.org
  $ auth-admin issuer set --issuer $URL --confirm $URL`,
    )
    .action(
      administering(async (api, options: Chosen & { confirm?: string; json?: boolean }) => {
        if (!options.issuer && !options.audience && !canAsk(options)) misuse('Give --issuer, --audience, or both.')
        const now = await api.getIssuer({})
        const asked = await choose(options, now)
        const issuer = asked.issuer || now.issuer
        const sentence = 'Once every process is restarted, all tokens in use are void, and everyone logs in again.'
        const confirm = await confirmAtServer(sentence, issuer, options)
        const set = await api.setIssuer({ issuer, ...(asked.audience && { audience: asked.audience }), confirm })
        if (set.changed && !options.json)
          warn('Restart every process of the service: then tokens issued before are void, and everyone logs in again.')
        if (options.json) return printJson({ issuer: set.issuer, audience: set.audience })
        say(`The issuer is ${set.issuer}, the audience ${set.audience}${set.changed ? '' : ' already'}.`)
      }),
    )
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
