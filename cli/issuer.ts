import type { Command } from 'commander'
import type { TokenIssuer } from '../server/models/tokenissuer.js'
import { askText, canAsk, readText } from './ask.js'
import { fail, misuse } from './failure.js'
import { jsonOption, printFields, printJson, say, warn } from './output.js'
import { type Session, withRegistry } from './session.js'

/** Adds `auth-admin issuer`. */
export function addIssuer(program: Command): void {
  const issuer = program.command('issuer').description('Who issues tokens, and for whom: their `iss` and `aud`')

  issuer
    .command('show')
    .description('Show the issuer and the audience of the registry.')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin issuer show')
    .action(async (options: { json?: boolean }) => {
      const found = await withRegistry(find)
      if (options.json) printJson(found)
      else printFields({ ...found })
    })

  issuer
    .command('set')
    .description('Change the issuer, the audience, or both. All tokens in use become void.')
    .option('--issuer <issuer>', '`iss` of tokens, as a rule the public URL of the service', readText)
    .option('--audience <audience>', '`aud` of tokens', readText)
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
  $ auth-admin issuer set --issuer https://auth.example.org`,
    )
    .action(async (options: Partial<TokenIssuer> & { json?: boolean }) => {
      const asked = await chooseIssuer(options)
      const { to, changed } = await withRegistry(async session => {
        const { issuerObject } = await import('../server/installation.js')
        return session.change(async t => {
          const from = await find(session)
          const to = { issuer: asked.issuer || from.issuer, audience: asked.audience || from.audience }
          const changed = to.issuer !== from.issuer || to.audience !== from.audience
          if (changed) await session.registry.tokenIssuers.change(to, t)
          const event = { action: 'registry.set-issuer', object: issuerObject(to) } as const
          return { result: { to, changed }, ...(changed && { event }) }
        })
      })
      if (changed && !options.json)
        warn('Restart every process of the service: then tokens issued before are void, and everyone logs in again.')
      if (options.json) return printJson(to)
      say(`The issuer is ${to.issuer}, the audience ${to.audience}${changed ? '' : ' already'}.`)
    })
}

async function chooseIssuer(options: Partial<TokenIssuer> & { json?: boolean }): Promise<Partial<TokenIssuer>> {
  if (options.issuer || options.audience) return options
  if (!canAsk(options)) misuse('Give --issuer, --audience, or both.')
  const now = await withRegistry(find)
  return {
    issuer: await askText('Issuer (`iss` of tokens):', { required: true, fallback: now.issuer }),
    audience: await askText('Audience (`aud` of tokens):', { required: true, fallback: now.audience }),
  }
}

async function find({ registry }: Session): Promise<TokenIssuer> {
  return (
    (await registry.tokenIssuers.find()) ?? fail('The registry is not installed yet: run `auth-admin install` first.')
  )
}
