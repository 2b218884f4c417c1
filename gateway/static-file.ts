/** Files of the build that the gateway sends as they are, or compressed. */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { IncomingHttpHeaders } from 'node:http'
import { createRequire } from 'node:module'
import { gzipSync } from 'node:zlib'
import { chooseLocale } from '../server/requests/locale.js'
import type { Answer } from './exchange.js'
import { pagePolicy } from './security-headers.js'

const { resolve } = createRequire(import.meta.url)

/** Answers a request with these headers. */
type AnswerFile = (headers: IncomingHttpHeaders) => Answer

/** An `Accept-Encoding` with gzip, and not with the weight 0 (RFC 9110, 12.4.2). */
const acceptsGzip = /(^|,)\s*gzip\s*(;\s*q=(?!0(\.0*)?\s*(,|$))[^,]*)?\s*(,|$)/i

/**
 * Creates the answer of a file, as `imports` in package.json names it: with `{locale}` in its name, the one in the language
 * that the client prefers. A file is read, and compressed, at the first request. A request with its ETag is answered without
 * the body (RFC 9110, 13.1.2).
 */
export function createFileAnswer(name: string, mediaType: string, cache: string): AnswerFile {
  const isLocalized = name.includes('{locale}')
  const answers = new Map<string, Answer>()

  return headers => {
    const locale = isLocalized ? chooseLocale(headers['accept-language'], 'en') : undefined
    const isPacked = acceptsGzip.test(String(headers['accept-encoding']))
    const key = `${locale} ${isPacked}`
    const answer = answers.get(key) ?? read(locale, isPacked)
    answers.set(key, answer)
    const tags = headers['if-none-match']?.split(',').map(tag => tag.trim().replace(/^W\//, ''))
    const isCurrent = tags?.some(tag => tag === '*' || tag === answer.headers.etag)
    return isCurrent ? { ...answer, status: 304, body: '' } : answer
  }

  function read(locale: string | undefined, isPacked: boolean): Answer {
    const file = readFileSync(resolve(locale ? name.replace('{locale}', locale) : name))
    const body = isPacked ? gzipSync(file, { level: 9 }) : file
    const etag = `"${createHash('sha256').update(body).digest('base64url').slice(0, 22)}"`
    const headers = {
      'content-type': mediaType,
      'cache-control': cache,
      etag,
      vary: isLocalized ? 'accept-encoding, accept-language' : 'accept-encoding',
      ...(locale && { 'content-language': locale }),
      ...(isPacked && { 'content-encoding': 'gzip' }),
      ...(mediaType.startsWith('text/html') && { 'content-security-policy': pagePolicy }),
    }
    return { status: 200, headers, body }
  }
}
