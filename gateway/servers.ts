/**
 * gRPC load balancing over the servers behind a target: round robin over those that answer. A server that is not ready gets
 * calls only while no other is ready, and a lost one, which no longer answers, only while all others are lost, too: it may be
 * busy. gRPC's round_robin keeps the connections; remote.ts asks each server for its health.
 */
import { connectivityState, experimental, Metadata } from '@grpc/grpc-js'

/** What is known of a server: whether it reports to be ready, and `lost` if it doesn't answer. */
export type Health = 'ready' | 'not ready' | 'lost'

/** A server behind a target. */
export interface Server {
  /** Address and port. */
  readonly address: string
  /** Its connection. */
  subchannel: experimental.SubchannelInterface
  /** Absent until its first check has ended. */
  health?: Health
  /** When it last answered a call or check, by `performance.now()`. */
  answeredAt: number
  /** Why the last attempt to connect to it failed, or its connection ended; absent while it has one. */
  failure?: string | undefined
}

/** The servers behind a target, by address. */
export type Servers = Map<string, Server>

/** The number of servers behind a target. */
export interface ServerStats {
  /** Addresses of the target. */
  readonly known: number
  /** Servers that are connected and answer. */
  readonly connected: number
}

/** Counts the servers. */
export function countServers(servers: Servers): ServerStats {
  const connected = [...servers.values()].filter(server => isConnected(server) && server.health !== 'lost').length
  return { known: servers.size, connected }
}

/** A call, and the server that got it. */
export interface BalancedCall {
  /** The only server that may get it, for a check. */
  readonly only?: Server
  server?: Server
}

/** Metadata that identify their call to the load balancing. */
export class CallMetadata extends Metadata {
  constructor(readonly call: BalancedCall) {
    super()
  }

  override clone(): CallMetadata {
    const copy = new CallMetadata(this.call)
    copy.merge(this)
    return copy
  }
}

/** Option of a channel: its `Servers`, which the load balancing keeps up to date. */
export const serversOption = 'auth.servers'

const name = 'auth_round_robin'

/** Its entry in a service config. */
export const roundRobin = { [name]: {} }

const { READY, TRANSIENT_FAILURE } = connectivityState
const { COMPLETE, QUEUE } = experimental.PickResultType

/** Whether a server has a connection. */
export function isConnected({ subchannel }: Server): boolean {
  return subchannel.getConnectivityState() === READY
}

/** Servers of the lowest rank get the calls. A server that has just connected counts as ready. */
const ranks: Readonly<Record<Health, number>> = { ready: 0, 'not ready': 1, lost: 2 }

const rankOf = ({ health = 'ready' }: Server) => ranks[health]

/** grpc-js calls it with `new`, once for each channel. */
function Balancer(helper: experimental.ChannelControlHelper): experimental.LoadBalancer {
  let servers: Servers = new Map()
  let turn = 0

  /** The next server in turn; undefined while none is connected. */
  function next(): Server | undefined {
    const connected = [...servers.values()].filter(isConnected)
    const best = Math.min(...connected.map(rankOf))
    const candidates = connected.filter(server => rankOf(server) === best)
    return candidates[turn++ % candidates.length]
  }

  /** A picker that leaves it to gRPC's own what to do with a call while no server is connected. */
  const pickerOf = (own: experimental.Picker): experimental.Picker => ({
    pick(given) {
      const { call } = given.metadata as CallMetadata
      const server = call.only ?? next()
      if (!server) return own.pick(given)
      const none = { subchannel: null, status: null, onCallStarted: null, onCallEnded: null }
      if (!isConnected(server))
        return server.subchannel.getConnectivityState() === TRANSIENT_FAILURE
          ? unavailable.pick(given)
          : { ...none, pickResultType: QUEUE }
      call.server = server
      return { ...none, pickResultType: COMPLETE, subchannel: server.subchannel }
    },
  })

  const child = new experimental.ChildLoadBalancerHandler(
    experimental.createChildChannelControlHelper(helper, {
      createSubchannel(at, options) {
        const subchannel = helper.createSubchannel(at, options)
        const address = subchannel.getAddress()
        const server: Server = servers.get(address) ?? { address, subchannel, answeredAt: 0 }
        server.subchannel = subchannel
        servers.set(address, server)
        subchannel.addConnectivityStateListener((_subchannel, _before, state, _keepalive, message) => {
          if (server.subchannel === subchannel)
            server.failure = state === READY ? undefined : (message ?? server.failure)
        })
        return subchannel
      },
      updateState: (state, picker, error) => helper.updateState(state, pickerOf(picker), error),
    }),
  )
  return {
    updateAddressList(endpoints, _, options, note) {
      servers = options[serversOption] as Servers
      if (endpoints.ok) {
        const listed = endpoints.value.flatMap(({ addresses }) => addresses.map(experimental.subchannelAddressToString))
        for (const address of servers.keys()) if (!listed.includes(address)) servers.delete(address)
      }
      return child.updateAddressList(endpoints, plain, options, note)
    },
    exitIdle: () => child.exitIdle(),
    resetBackoff: () => child.resetBackoff(),
    destroy: () => child.destroy(),
    getTypeName: () => name,
  }
}

const unavailable = new experimental.UnavailablePicker()
const plain = experimental.parseLoadBalancingConfig({ round_robin: {} })
const config = { getLoadBalancerName: () => name, toJsonObject: () => roundRobin }
experimental.registerLoadBalancerType(name, Balancer as never, { createFromJson: () => config } as never)
