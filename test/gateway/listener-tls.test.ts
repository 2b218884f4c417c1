/** The promises of listener.test.ts, over TLS. */
process.env.TEST_LISTENER_TLS = 'on'
await import('./listener.test.js')
