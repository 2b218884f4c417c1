// The connection to Administration: remote, by a context that `auth-admin login` made, or local, on the database itself.
import type { Client, Transport } from '@connectrpc/connect'
import type { AdministeredUser, Administration } from '../proto/gen/auth/v1/administration_pb.js'
import type { AdministrationPolicy } from '../server/policy/policy.js'
import type { NamedContext, ServerOptions } from './contexts.js'
import { explain } from './exit-codes.js'
import { type Opening, openSession } from './local.js'
import { askText, canAsk } from './terminal/ask.js'
import { interruptProgress } from './terminal/progress.js'

/** The RPCs of Administration, as functions. */
export type Api = Client<typeof Administration>

/** Options of every command. */
export interface GlobalOptions extends ServerOptions {
  /** Reason for a change, which the audit log records. */
  readonly reason?: string
  /** One JSON document instead of text. */
  readonly json?: boolean
}

/** A connection, and how it ends. */
interface Connection {
  readonly transport: Transport
  /** Prompts for what a call was refused for the lack of. Whether it did: then the call can be made again. */
  remedy(reason: string | undefined): Promise<boolean>
  /** Prompts for a new sign-in if the present one isn't recent. */
  refresh(): Promise<void>
  close(): Promise<void>
}

/**
 * Does `work` with the RPCs. The connection is made with the first call, so that questions and mistakes on the command line
 * cost nothing, and ends with the work.
 *
 * At a terminal it prompts for a recent sign-in as soon as it is known to be necessary, and for a missing reason.
 */
export async function administer(
  options: GlobalOptions,
  { needs, opening = {} }: { needs: AdministrationPolicy['signIn']; opening?: Opening | undefined },
  work: (api: Api) => Promise<unknown>,
): Promise<void> {
  const [{ createClient }, { Administration }] = await Promise.all([
    import('@connectrpc/connect'),
    import('../proto/gen/auth/v1/administration_pb.js'),
  ])
  const asks = canAsk(options)
  const signIn = asks ? needs : undefined
  let connecting: Promise<Connection> | undefined
  const transport: Transport = {
    async unary(...call) {
      connecting ??= connect(options, opening)
      const connection = await connecting
      const answer = await connection.transport.unary(...call).catch(async error => {
        if (!asks) throw error
        const { reason } = await explain(error)
        if (!(await interruptProgress(() => connection.remedy(reason)))) throw error
        return connection.transport.unary(...call)
      })
      const { user } = answer.message as { user?: AdministeredUser }
      if (signIn === 'recent for administrators' && user?.record?.role === 'ROLE_ADMIN')
        await interruptProgress(() => connection.refresh())
      return answer
    },
    stream: () => Promise.reject(new Error('There are no streams.')),
  }
  try {
    if (signIn === 'recent') {
      connecting = connect(options, opening)
      await (await connecting).refresh()
    }
    await work(createClient(Administration, transport))
  } finally {
    await (await connecting?.catch(() => undefined))?.close()
  }
}

async function connect(options: GlobalOptions, opening: Opening): Promise<Connection> {
  const { contextOf } = await import('./contexts.js')
  const chosen = await contextOf(options)
  if (!chosen) return connectLocally(options, opening)
  return connectRemotely(chosen, options.reason)
}

/** Seconds after which a sign-in is renewed before it is needed: the service accepts one of 15 minutes. */
const recentSeconds = 14 * 60

/** What a prompt for a new sign-in says when the present one isn't recent. */
const tooOld = 'This requires a sign-in in the last 15 minutes.'

async function connectRemotely(chosen: NamedContext, reason: string | undefined): Promise<Connection> {
  const [{ openRemote }, { readToken }, { createClient }, { Administration }] = await Promise.all([
    import('./remote.js'),
    import('./contexts.js'),
    import('@connectrpc/connect'),
    import('../proto/gen/auth/v1/administration_pb.js'),
  ])
  let token = await readToken(chosen)
  const { transport, close } = await openRemote({ name: chosen.name, ...chosen.context }, () => token, reason)
  const api = createClient(Administration, transport)
  const signInAgain = async (username: string | undefined, why: string) => {
    // A service has no username.
    if (username === undefined) return false
    const again = await import('./sign-in.js')
    token = await again.signInAgain(chosen, username, why)
    return true
  }
  const remedy = async (reason: string | undefined) => {
    if (reason === 'INVALID_TOKEN') return signInAgain(chosen.context.username, 'Your session has ended.')
    if (reason !== 'SIGN_IN_AGAIN') return false
    return signInAgain((await api.getSession({})).user?.record?.username, tooOld)
  }
  return {
    transport,
    remedy,
    async refresh() {
      try {
        const { user, signInTime } = await api.getSession({})
        const age = Date.now() / 1000 - Number(signInTime?.seconds ?? 0)
        if (age > recentSeconds) await signInAgain(user?.record?.username, tooOld)
      } catch (error) {
        if (!(await remedy((await explain(error)).reason))) throw error
      }
    },
    close,
  }
}

async function connectLocally({ reason }: GlobalOptions, opening: Opening): Promise<Connection> {
  const { administer, seal, close } = await openSession(opening)
  try {
    let transport = await administer(reason)
    return {
      get transport() {
        return transport
      },
      async remedy(missing) {
        if (missing !== 'JUSTIFICATION_NEEDED') return false
        transport = await administer(await askText('Reason, for the audit log:', { required: true }))
        return true
      },
      async refresh() {},
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
