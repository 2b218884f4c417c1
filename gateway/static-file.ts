/** Files of the build that the gateway sends as they are. */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import type { Answer } from './translate.js'

const { resolve } = createRequire(import.meta.url)

/** Answers a request; `ifNoneMatch` is its header. */
export type AnswerFile = (ifNoneMatch: string | undefined) => Answer

/**
 * Creates the answer of a file, as `imports` in package.json names it. The file is read at the first request. A request with
 * its ETag is answered without the body (RFC 9110, 13.1.2).
 */
export function createFileAnswer(name: string, mediaType: string, cache: string): AnswerFile {
  let file: { body: Buffer; headers: Record<string, string> } | undefined
  return ifNoneMatch => {
    file ??= read()
    const { body, headers } = file
    const tags = ifNoneMatch?.split(',').map(tag => tag.trim().replace(/^W\//, ''))
    const isCurrent = tags?.some(tag => tag === '*' || tag === headers.etag)
    return isCurrent ? { status: 304, headers, body: '' } : { status: 200, headers, body }
  }

  function read() {
    const body = readFileSync(resolve(name))
    const etag = `"${createHash('sha256').update(body).digest('base64url').slice(0, 22)}"`
    return { body, headers: { 'content-type': mediaType, 'cache-control': cache, etag } }
  }
}
