/** The gateway as a process of its own, in front of servers that run elsewhere. */
import { createLog } from '../server/log.js'
import { readSettings, type Settings, write } from '../server/settings.js'
import { grace, pause, runSteps, stopOnSignals } from '../server/stopping.js'
import { createGateway } from './http.js'
import { createRemoteTransport } from './remote.js'

async function main(): Promise<void> {
  const settings = readSettings(process.env)
  const { httpAddress: address, serverUrl: target } = settings
  if (!address) throw new Error('AUTH_HTTP_ADDRESS is off: there is nothing for a gateway to do.')
  const tls = tlsOf(settings)
  const transport = createRemoteTransport({ target, ...(tls && { tls }) })
  const { defaultRevision, trustedProxies, corsOrigins, limitFactor } = settings
  const log = createLog(settings.logLevel)
  const gateway = createGateway({ transport, address, defaultRevision, trustedProxies, corsOrigins, limitFactor, log })

  process.stderr.write(`HTTP     http://${write(await gateway.listen())}\nservices ${target}\n`)
  stopOnSignals(async ({ drain, hurry }) => {
    const { drain: seconds = 5 } = settings
    if (drain && seconds > 0) {
      gateway.drain()
      await pause(seconds * 1000, hurry)
    }
    const onFault = (err: unknown) => log.error({ err }, 'the stop failed')
    const hung = await runSteps([{ what: 'calls under way', run: () => gateway.close(grace) }], { hurry, onFault })
    transport.close()
    return hung
  })
}

/** TLS where the servers' authority is set; the gateway presents itself where it has a certificate. */
function tlsOf({ tlsCa: ca, tlsCert: cert, tlsKey: key }: Settings) {
  return ca && { ca, ...(cert && key && { cert, key }) }
}

main().catch((error: Error) => {
  process.stderr.write(`${error.message}\n`)
  process.exit(1)
})
