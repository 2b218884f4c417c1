// The way to Administration: remote, by a context that `auth-admin login` made, or local, on the database itself.
import type { Client, Transport } from '@connectrpc/connect'
import type { Command } from 'commander'
import type { Administration } from '../proto/gen/auth/v1/administration_pb.js'
import { administrationPolicies } from '../server/policy/administration.js'
import type { AdministrationPolicy } from '../server/policy/policy.js'
import { type Opening, openSession } from './session.js'

/** The RPCs of Administration, as functions. */
export type Api = Client<typeof Administration>

/** Options of every command. */
export interface GlobalOptions {
  /** Works on the database itself, in any context. */
  readonly local?: boolean
  /** Name of the context to use. */
  readonly context?: string
  /** Reason for changes of administrators and passwords on the database itself. */
  readonly reason?: string
  /** One JSON document instead of text. */
  readonly json?: boolean
}

/** What help says about the sign-in that an RPC requires. */
const signIns = {
  session: '',
  recent: `
On a server this requires a sign-in within the last 15 minutes, with a one-time
code if codes are enrolled.`,
  'recent for administrators': `
On a server this requires, for an administrator, a sign-in within the last 15
minutes, with a one-time code if codes are enrolled.`,
} as const satisfies Record<AdministrationPolicy['signIn'], string>

/** Ends the help of a command with the sign-in that its RPC requires, unless any session suffices. */
export function withSignIn(command: Command, rpc: Exclude<keyof typeof administrationPolicies, 'signIn'>): Command {
  return command.addHelpText('afterAll', signIns[administrationPolicies[rpc].signIn])
}

/** A connection, and how it ends. */
interface Connection {
  readonly transport: Transport
  close(): Promise<void>
}

/**
 * The action of a command that administers: `work` gets the RPCs, then arguments, options (those of every command, too) and
 * command. The connection is made with the first call, so that questions and mistakes on the command line cost nothing,
 * and ends with the command. `opening` is for commands that work on a database that isn't installed.
 */
export function administering<A extends readonly unknown[]>(
  work: (api: Api, ...args: A) => Promise<void>,
  opening: Opening = {},
): (...args: unknown[]) => Promise<void> {
  return async (...args) => {
    const command = args.at(-1) as Command
    const options = command.optsWithGlobals<GlobalOptions>()
    const [{ createClient }, { Administration }] = await Promise.all([
      import('@connectrpc/connect'),
      import('../proto/gen/auth/v1/administration_pb.js'),
    ])
    let connecting: Promise<Connection> | undefined
    const transport: Transport = {
      async unary(...call) {
        connecting ??= connect(options, opening)
        const connection = await connecting
        return connection.transport.unary(...call)
      },
      stream: () => Promise.reject(new Error('There are no streams.')),
    }
    try {
      const given = [...args.slice(0, -2), options, command]
      await work(createClient(Administration, transport), ...(given as unknown as A))
    } finally {
      await (await connecting?.catch(() => undefined))?.close()
    }
  }
}

async function connect(options: GlobalOptions, opening: Opening): Promise<Connection> {
  const { contextOf, readToken } = await import('./contexts.js')
  const chosen = await contextOf(options)
  if (!chosen) return connectLocally(options, opening)
  const { openRemote } = await import('./remote.js')
  return openRemote(chosen.context, await readToken(chosen))
}

async function connectLocally({ reason }: GlobalOptions, opening: Opening): Promise<Connection> {
  const { administer, seal, close } = await openSession(opening)
  try {
    return {
      transport: await administer(reason),
      async close() {
        await seal()
        await close()
      },
    }
  } catch (error) {
    await close()
    throw error
  }
}
