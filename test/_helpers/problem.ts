import type { Assertions } from 'ava'
import { type Route, refusalsOf } from '../../gateway/operations.js'
import type { Answer } from './service.js'

/** Every status that a request of a route may be answered with, as its policy says. */
export function statusesOf(route: Route): Set<number> {
  return new Set([200, ...(route.file ? [304] : []), ...refusalsOf(route).keys()])
}

/** Asserts that an answer is a problem document (RFC 9457) with a status and, where given, a reason. */
export function refused(t: Assertions, answer: Answer, status: number, reason?: string): void {
  t.is(answer.status, status, answer.text)
  t.is(answer.headers.get('content-type'), 'application/problem+json')
  t.is(answer.headers.get('cache-control'), 'no-store')
  const { type, title, detail, requestId, errors, ...rest } = answer.json
  t.deepEqual(Object.keys(rest).sort(), ['reason', 'status'])
  t.is(rest.status, status)
  t.regex(rest.reason, /^[A-Z]+(_[A-Z]+)*$/)
  if (reason !== undefined) t.is(rest.reason, reason, answer.text)
  for (const text of [type, title, detail]) t.true(typeof text === 'string' && text.length > 0, answer.text)
  t.true(URL.canParse(type))
  t.is(requestId, answer.headers.get('x-request-id'))
  for (const { field, reason, message, suggestion = message, ...more } of errors ?? []) {
    for (const text of [field, message, suggestion]) t.true(typeof text === 'string' && text !== '', answer.text)
    t.regex(reason, /^[A-Z]+(_[A-Z]+)*$/)
    t.deepEqual(more, {})
  }
  // Neither a stack trace nor SQL.
  t.notRegex(answer.text, /\.[jt]s:\d|node_modules|\bSELECT\b|\bINSERT\b|\brelation\b|Sequelize/)
}

/** Names of the wrong fields of a refusal, sorted. */
export function wrongFields(answer: Answer): string[] {
  return (answer.json?.errors ?? []).map(({ field }: { field: string }) => field).sort()
}
