/** All that is promised of the port (listener.test.ts), within TLS. */
process.env.TEST_LISTENER_TLS = 'on'
await import('./listener.test.js')
