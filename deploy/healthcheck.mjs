/**
 * Checks whether the process in the same container is ready: `/readyz` on the metrics port of its settings, with TLS if a
 * certificate is set. Exits with 0 or 1. For `HEALTHCHECK` of the image.
 */
import http from 'node:http'
import https from 'node:https'

const address = process.env.AUTH_METRICS_ADDRESS || '127.0.0.1:9090'
const cert = process.env.AUTH_TLS_CERT

if (address === 'off') {
  console.error('AUTH_METRICS_ADDRESS is off: nothing there says whether the process is ready.')
  process.exit(1)
}

// Turns a listening address into one to connect to.
const at = address.replace(/^0\.0\.0\.0:/, '127.0.0.1:').replace(/^\[::\]:/, '[::1]:')
const url = `${cert ? 'https' : 'http'}://${at}/readyz`
// The process is local, so the name in its certificate isn't checked; the request has no secrets.
const options = { signal: AbortSignal.timeout(4_000), rejectUnauthorized: false }
const request = (cert ? https : http).get(url, options, ({ statusCode }) => process.exit(statusCode === 200 ? 0 : 1))
request.on('error', () => process.exit(1))
