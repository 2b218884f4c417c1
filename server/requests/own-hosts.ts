/** Whether the value of a `Host` header names this service. */
export type IsOwnHost = (host: string | undefined) => boolean

/**
 * Creates the check of the `Host` header for what only this machine reaches: a web page can let its own name mean 127.0.0.1 (DNS
 * rebinding). IP addresses, `localhost` and the hosts of `urls` pass, and so does a request without the header, which no browser
 * sends.
 */
export function createIsOwnHost(urls: readonly string[]): IsOwnHost {
  const names = new Set(['localhost', ...urls.map(hostOf)])
  return host => {
    if (!host) return true
    const name = hostOf(`http://${host}`)
    // A URL has IPv4 addresses in canonical text.
    return name !== undefined && (names.has(name) || /^[\d.]+$|^\[/.test(name))
  }
}

function hostOf(url: string): string | undefined {
  return URL.canParse(url) ? new URL(url).hostname : undefined
}
