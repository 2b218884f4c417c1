import { once } from 'node:events'
import { createServer } from 'node:net'
import { type Address, formatAddress } from './settings.js'

/**
 * Opens each address, closes all, and throws an Error that names the setting of each that can't be opened. A program calls
 * it before it changes anything: a failed first start must not install a registry with the address as its issuer. Keys are
 * names of settings, whose address is undefined when they are `off`.
 */
export async function checkPorts(addresses: Readonly<Record<string, Address | undefined>>): Promise<void> {
  const open = async ([setting, address]: [string, Address | undefined]) => {
    if (!address) return {}
    const port = createServer(socket => socket.destroy())
    try {
      await once(port.listen(address), 'listening')
      return { port }
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      const why = code === 'EADDRINUSE' ? 'is in use' : `can’t be opened (${code})`
      const stop = code === 'EADDRINUSE' ? ', or stop the program that uses it' : ''
      return { fault: `${setting}: ${formatAddress(address)} ${why}. Choose another address${stop}.` }
    }
  }
  // All are open at once, so that an address of two settings is found, too.
  const opened = await Promise.all(Object.entries(addresses).map(open))
  await Promise.all(opened.map(({ port }) => port && once(port.close(), 'close')))
  const faults = opened.flatMap(({ fault = [] }) => fault)
  if (faults.length > 0) throw new Error(faults.join('\n'))
}
