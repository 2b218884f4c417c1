/** The gateway as a process of its own, in front of servers that run elsewhere. */
import { readSettings, write } from '../server/settings.js'
import { createGateway } from './http.js'
import { createRemoteTransport } from './remote.js'

const settings = read()
if (!settings.httpAddress) fail('AUTH_HTTP_ADDRESS is off: there is nothing for a gateway to do.')

const { serverUrl: target, tlsCa: ca, tlsCert: cert, tlsKey: key } = settings
const transport = createRemoteTransport({ target, ...(ca && { tls: { ca, ...(cert && key && { cert, key }) } }) })
const gateway = createGateway({
  transport,
  address: settings.httpAddress,
  defaultRevision: settings.defaultRevision,
  trustedProxies: settings.trustedProxies,
  corsOrigins: settings.corsOrigins,
  log: { error },
})

console.log(`Gateway ready at http://${write(await gateway.listen())}, services at ${settings.serverUrl}`)

async function stop() {
  await gateway.close()
  transport.close()
}
process.once('SIGINT', () => void stop())
process.once('SIGTERM', () => void stop())

/** One JSON object a line. Of an error only its class and place: the message may quote what a client sent. */
function error({ error, ...fields }: { error?: unknown }, message: string) {
  const { name, stack } = error instanceof Error ? error : { name: typeof error, stack: '' }
  const at = stack?.split('\n').find(line => line.startsWith('    at '))
  console.error(JSON.stringify({ level: 'error', ...fields, error: name, at: at?.trim(), message }))
}

function read() {
  try {
    return readSettings(process.env)
  } catch (error) {
    return fail((error as Error).message)
  }
}

function fail(message: string): never {
  console.error(message)
  process.exit(1)
}
