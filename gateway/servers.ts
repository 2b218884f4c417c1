/** gRPC's round_robin load balancing, which also reports the number of connected servers. */
import { connectivityState, experimental } from '@grpc/grpc-js'

/** The servers behind a target. */
export interface ServerStats {
  /** Addresses of the target. */
  readonly known: number
  /** Connected addresses, which receive calls. */
  readonly connected: number
}

/** Option of a channel: a function that is called with `ServerStats` whenever they change. */
export const statsOption = 'auth.server_stats'

const name = 'auth_round_robin'

/** Its entry in a service config. */
export const roundRobin = { [name]: {} }

type Report = (stats: ServerStats) => void

/** grpc-js calls it with `new`, once for each channel. */
function Balancer(helper: experimental.ChannelControlHelper): experimental.LoadBalancer {
  const connected = new Set<string>()
  let known = 0
  let report: Report = () => {}
  const onState: experimental.ConnectivityStateListener = (subchannel, _, state) => {
    if (state === connectivityState.READY) connected.add(subchannel.getAddress())
    else connected.delete(subchannel.getAddress())
    report({ known, connected: connected.size })
  }
  const child = new experimental.ChildLoadBalancerHandler(
    experimental.createChildChannelControlHelper(helper, {
      createSubchannel(address, options) {
        const subchannel = helper.createSubchannel(address, options)
        subchannel.addConnectivityStateListener(onState)
        return subchannel
      },
    }),
  )
  return {
    updateAddressList(endpoints, _, options, note) {
      if (endpoints.ok) known = endpoints.value.length
      report = options[statsOption] as Report
      report({ known, connected: connected.size })
      return child.updateAddressList(endpoints, plain, options, note)
    },
    exitIdle: () => child.exitIdle(),
    resetBackoff: () => child.resetBackoff(),
    destroy: () => child.destroy(),
    getTypeName: () => name,
  }
}

const plain = experimental.parseLoadBalancingConfig({ round_robin: {} })
const config = { getLoadBalancerName: () => name, toJsonObject: () => roundRobin }
experimental.registerLoadBalancerType(name, Balancer as never, { createFromJson: () => config } as never)
