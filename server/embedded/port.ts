// The port of the bundled PostgreSQL, which listens on 127.0.0.1 alone.
import { createServer } from 'node:net'
import { listens } from './folder-lock.js'

/** Returns the preferred port if it is free, else any free port. */
export async function choosePort(preferred = 0): Promise<number> {
  const server = createServer()
  if (!(await listens(server, { port: preferred, host: '127.0.0.1' }))) return choosePort()
  const { port } = server.address() as { port: number }
  await new Promise(done => server.close(done))
  return port
}
