/** A command of `auth-admin`: that of commander, with what many commands have in common as methods to chain. */
import { Option, Command as Plain } from 'commander'
import { administrationPolicies } from '../server/policy/administration.js'
import type { AdministrationPolicy } from '../server/policy/policy.js'
import { type Api, administer, type GlobalOptions } from './administration.js'
import { flagOf, readReference } from './arguments.js'
import { misuse } from './exit-codes.js'
import type { Opening } from './local.js'
import { readNumber, readText } from './terminal/ask.js'
import type { Field } from './terminal/form.js'
import { helpInTerminalLanguage } from './terminal/language.js'
import { shownAtOnce } from './terminal/pages.js'

/** What help says about the sign-in that an RPC requires. */
const signIns = {
  session: '',
  recent: `
On a server, this requires that you signed in within the last 15 minutes, with a
one-time code if you enrolled an authenticator. To sign in again, run
\`auth-admin login\`.`,
  'recent for administrators': `
On a server, if the user is a ROLE_ADMIN, this requires that you signed in
within the last 15 minutes, with a one-time code if you enrolled an
authenticator. To sign in again, run \`auth-admin login\`.`,
} as const satisfies Record<AdministrationPolicy['signIn'], string>

export class Command extends Plain {
  /** The sign-in that it needs, where not any session suffices. */
  private needs: AdministrationPolicy['signIn'] = 'session'

  declare readonly commands: readonly Command[]

  /** Commands below it have these methods, too. */
  override createCommand(name?: string): Command {
    return new Command(name)
  }

  /** Adds text after the options in its help. */
  remarks(text: string): this {
    return this.addHelpText('after', () => `\n${helpInTerminalLanguage(text.trimStart())}`)
  }

  /** Ends its help with command lines, which begin after the name of the program. */
  examples(...lines: readonly string[]): this {
    const shown = lines.map(line => `\n  $ auth-admin ${line}`).join('')
    return this.remarks(`${lines.length > 1 ? 'Examples' : 'Example'}:${shown}`)
  }

  /** Adds the option of every command that answers. */
  json(): this {
    return this.option('--json', 'print one JSON document and nothing else; never prompt')
  }

  /** Adds the option that answers `confirm`. */
  yes(): this {
    return this.option('--yes', 'skip the confirmation; required without a terminal and with --json')
  }

  /** Adds the argument that names what it is about; digits alone are an id, as `#` and digits always are. */
  reference(what: string, how: string): this {
    return this.argument(`[${what}]`, how, readReference)
  }

  /** Adds the flags of a form. */
  fields(fields: readonly Field<string>[]): this {
    for (const field of fields) this.option(`${flagOf(field)} <text>`, field.about, field.read ?? readText)
    return this
  }

  /** Adds the options of a list. */
  pages(): this {
    return this.option('--limit <number>', `maximum number of rows (default: ${shownAtOnce})`, readNumber(1))
      .addOption(new Option('--all', 'all rows').conflicts('limit'))
      .option('--page-token <token>', 'continue where an earlier list ended')
      .json()
      .addOption(new Option('--jsonl', 'print each row as a JSON document on its own line').conflicts('json'))
  }

  /** Ends its help with the sign-in that its RPC requires, unless any session suffices. */
  signIn(rpc: Exclude<keyof typeof administrationPolicies, 'signIn'>): this {
    this.needs = administrationPolicies[rpc].signIn
    return this.addHelpText('afterAll', () => {
      const text = signIns[this.needs]
      return text && `\n${helpInTerminalLanguage(text.trimStart())}`
    })
  }

  /**
   * Makes it one that always works on the database itself, as with `--local`: it refuses `--context`. AUTH_CONTEXT is a default
   * only.
   */
  local(): this {
    return this.hook('preAction', (_, called) => {
      called.setOptionValue('local', true)
      if (called.optsWithGlobals<GlobalOptions>().context === undefined) return
      const path = pathOf(called).join(' ')
      misuse(
        `\`${path}\` works on the database that the settings of this environment name, never on a server: omit --context.`,
      )
    })
  }

  /**
   * Does `work` with the RPCs of Administration, its arguments, its options (those of every command, too), and itself.
   * `opening` is for commands that work on a database that isn't installed.
   */
  administers<A extends readonly unknown[]>(work: (api: Api, ...args: A) => Promise<unknown>, opening?: Opening): this {
    return this.action((...args) => {
      const options = this.optsWithGlobals<GlobalOptions>()
      const given = [...args.slice(0, -2), options, this] as unknown as A
      return administer(options, { needs: this.needs, opening }, api => work(api, ...given))
    })
  }
}

/** The words of a command, without the program. */
function pathOf(command: Plain): string[] {
  return command.parent ? [...pathOf(command.parent), command.name()] : []
}
