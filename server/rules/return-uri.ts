// Where browsers may be sent with the code of a user: what administrators may register, and what of it a request may name.

/** Maximum characters of a URI. */
const maxLength = 2_000

/**
 * Whether a URI may be registered: with https, with http on this machine, or with the scheme of an app, which has a dot, as its
 * author’s domain has (RFC 8252, 7.1). It has no fragment (RFC 6749, 3.1.2), no wildcard and no credentials.
 */
export function isReturnUri(text: string): boolean {
  // ASCII alone: it becomes a header. A parser takes a backslash for a slash.
  if (text.length > maxLength || !/^[!-~]+$/.test(text) || /[#*\\]/.test(text) || !URL.canParse(text)) return false
  const { protocol, hostname, username, password } = new URL(text)
  if (username !== '' || password !== '') return false
  if (!/^https?:/.test(protocol)) return /^[a-z][a-z\d+-]*(\.[a-z\d+-]+)+:$/.test(protocol)
  if (!/^https?:\/\/[^/]/i.test(text)) return false
  return protocol === 'https:' || ['127.0.0.1', '[::1]', 'localhost'].includes(hostname)
}

/**
 * Whether a redirect URI is one of the registered ones: the same string (RFC 9700, 2.1), but for the port of a loopback address,
 * which apps on a device can't choose ahead (RFC 8252, 7.3).
 */
export function isRegistered(registered: readonly string[], uri: string): boolean {
  return URL.canParse(uri) && registered.some(each => portless(each) === portless(uri))
}

/** Whether a page of an origin may be at one of the registered URIs; apps on a device have no pages. */
export function isOrigin(registered: readonly string[], origin: string): boolean {
  const ofPages = registered.filter(uri => /^https?:/.test(uri))
  return isRegistered(
    ofPages.map(uri => new URL(uri).origin),
    origin,
  )
}

/** A URI without the port of a loopback address. */
const portless = (uri: string) => uri.replace(/^(http:\/\/(?:127\.0\.0\.1|\[::1\])):\d{1,5}/, '$1')
