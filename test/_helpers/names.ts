/** A DNS server (RFC 1035) on this machine that serves one name for the length of a test. */
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import type { Teardown } from './database.js'

/** Starts it. It answers A queries for any name with the result of `addresses`, and others with an empty answer. */
export async function startNames(t: Teardown, addresses: () => readonly string[]): Promise<{ readonly at: string }> {
  const socket = createSocket('udp4')
  socket.on('message', (query, { port, address }) => {
    // The name ends with an empty label; type and class follow.
    const end = query.indexOf(0, 12) + 5
    const question = query.subarray(12, end)
    const found = question.readUInt16BE(question.length - 4) === 1 ? addresses() : []
    const header = Buffer.from([query[0]!, query[1]!, 0x81, 0x80, 0, 1, 0, found.length, 0, 0, 0, 0])
    // The name is that of the question; the TTL is a second.
    const answers = found.map(ip => Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, ...ip.split('.').map(Number)]))
    socket.send(Buffer.concat([header, question, ...answers]), port, address)
  })
  await once(socket.bind(0, '127.0.0.1'), 'listening')
  t.teardown(async () => void socket.close())
  return { at: `127.0.0.1:${socket.address().port}` }
}
