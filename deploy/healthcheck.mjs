/**
 * Asks the process beside it whether it is ready, as its own settings say where it listens: `/readyz` over HTTP, with
 * TLS or without, or grpc.health.v1 where nobody listens for HTTP, as with `auth-server`. Ends with 0 or 1. For
 * `HEALTHCHECK` of the image, and for Kubernetes where gRPC takes TLS, which its own probes don't speak.
 */
import { readFileSync } from 'node:fs'
import http from 'node:http'
import https from 'node:https'

const { AUTH_HTTP_ADDRESS, AUTH_GRPC_ADDRESS, AUTH_TLS_CERT, AUTH_TLS_KEY } = process.env
const patience = 4_000

// It is the process beside this one, whatever name is in its certificate; nothing secret is told to it.
const anyName = { rejectUnauthorized: false }

const ready =
  AUTH_HTTP_ADDRESS === 'off'
    ? overGrpc()
    : overHttp(http)
        .catch(() => overHttp(https))
        .catch(({ code }) => code === 'ECONNREFUSED' && overGrpc())
process.exit((await ready.catch(() => false)) ? 0 : 1)

/** An address that was listened at, as one to connect to. */
function near(address, port) {
  const at = address || `127.0.0.1:${port}`
  return at.replace(/^0\.0\.0\.0:/, '127.0.0.1:').replace(/^\[::\]:/, '[::1]:')
}

function overHttp(protocol) {
  const scheme = protocol === https ? 'https' : 'http'
  const options = { signal: AbortSignal.timeout(patience), ...anyName }
  return new Promise((resolve, reject) => {
    const url = `${scheme}://${near(AUTH_HTTP_ADDRESS, 8080)}/readyz`
    protocol.get(url, options, answer => resolve(answer.statusCode === 200)).on('error', reject)
  })
}

async function overGrpc() {
  const { Client, credentials } = await import('@grpc/grpc-js')
  const own = AUTH_TLS_CERT && AUTH_TLS_KEY && { key: readFileSync(AUTH_TLS_KEY), cert: readFileSync(AUTH_TLS_CERT) }
  const channel = own ? credentials.createSsl(null, own.key, own.cert, anyName) : credentials.createInsecure()
  // An IP address is no name for TLS (RFC 6066).
  const options = { 'grpc.ssl_target_name_override': 'localhost' }
  const client = new Client(near(AUTH_GRPC_ADDRESS, 50051), channel, options)
  return new Promise(resolve => {
    const as = bytes => bytes
    const deadline = Date.now() + patience
    client.makeUnaryRequest('/grpc.health.v1.Health/Check', as, as, Buffer.alloc(0), { deadline }, (error, answer) => {
      // HealthCheckResponse { status: SERVING }
      resolve(!error && answer.equals(Buffer.from([8, 1])))
    })
  })
}
