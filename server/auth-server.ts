#!/usr/bin/env -S node --max-semi-space-size=8 --max-old-space-size=512
/** `auth-server`: the service without the gateway, behind an `auth-gateway`. */
import { answerArguments } from './process/usage.js'

const usage = `auth-server: the registry of users over gRPC

Environment variables:
  DATABASE_URL                   PostgreSQL; unset: an embedded one in AUTH_DATA_DIR
  AUTH_MASTER_KEY                wraps the keys of the registry
  AUTH_GRPC_ADDRESS              where it listens
  AUTH_METRICS_ADDRESS           where it serves metrics for Prometheus, and /healthz and /readyz for probes
  AUTH_TLS_CERT, AUTH_TLS_KEY    its certificate and key: turns on TLS
  AUTH_TLS_CA                    authority of the certificates that its callers must present
  AUTH_GATEWAY_NAMES             names in certificates of gateways
  AUTH_TRUSTED_PROXIES           addresses of gateways that present no certificate
and all other settings except AUTH_HTTP_*, AUTH_SERVER_*, AUTH_CORS_ORIGINS, AUTH_DEFAULT_REVISION and
AUTH_COMPATIBILITY.
`

if (!answerArguments(usage)) {
  process.env.AUTH_HTTP_ADDRESS = 'off'
  await import('./main.js')
}
