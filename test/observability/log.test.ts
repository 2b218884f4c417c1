import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { createLog } from '../../server/observability/log.js'
import { waitForValue } from '../_helpers/wait.js'

test('texts that an error or a field may quote stay out of the log', t => {
  const lines: string[] = []
  const log = createLog('info', line => lines.push(line))
  const cause = Object.assign(new Error('Key (username)=(hunter2) exists'), { code: '23505', detail: 'hunter2' })
  log.error({ err: new Error('could not log in with hunter2', { cause }), requestId: 'r1' }, 'call failed')
  log.warn({ password: 'hunter2', user: { token: 'hunter2' } }, 'by mistake')
  log.debug('not at this level')
  t.is(lines.length, 2)
  t.false(lines.join('').includes('hunter2'))
  const { level, msg, requestId, err } = JSON.parse(lines[0]!)
  t.deepEqual({ level, msg, requestId }, { level: 'error', msg: 'call failed', requestId: 'r1' })
  t.is(err.type, 'Error')
  t.is(err.cause.code, '23505')
  t.regex(err.stack[0], /^at /)
})

test('of entries with the same message and error one is written a second, with the number left out; others are all written', async t => {
  const lines: Record<string, unknown>[] = []
  const log = createLog('info', line => lines.push(JSON.parse(line)))
  const refused = () => Object.assign(new Error('connect'), { code: 'ECONNREFUSED' })
  const outage = (from: number, to: number) => {
    for (let id = from; id <= to; id++) log.error({ err: refused(), id }, 'call failed')
  }
  const written = () => lines.splice(0).map(({ msg, id, suppressed }) => [msg, id, suppressed])
  outage(1, 300)
  for (const id of [1, 2]) log.info({ id }, 'call')
  log.error({ err: refused(), id: 1 }, 'mail failed')
  log.error({ err: Object.assign(new Error(''), { code: '57P03' }), id: 1 }, 'call failed')
  t.deepEqual(written(), [
    ['call failed', 1, undefined],
    ['call', 1, undefined],
    ['call', 2, undefined],
    ['mail failed', 1, undefined],
    ['call failed', 1, undefined],
  ])
  await waitForValue(
    () => lines,
    value => value.length > 0,
  )
  t.deepEqual(written(), [['call failed', 300, 298]])
  outage(301, 302)
  await waitForValue(
    () => lines,
    value => value.length > 0,
  )
  t.deepEqual(written(), [['call failed', 302, 1]])
  // A quiet second ends it.
  await sleep(1_500)
  outage(303, 303)
  t.deepEqual(written(), [['call failed', 303, undefined]])
})

test('external faults are logged without a stack trace, and all others with one', t => {
  const lines: string[] = []
  const log = createLog('info', line => lines.push(line))
  const fault = (code: unknown, type = Error) => Object.assign(new type('x'), { code })
  const outside = [
    'ECONNREFUSED',
    'ETIMEDOUT',
    'EAI_AGAIN',
    'ENOSPC',
    '08006',
    '25006',
    '53100',
    '57P01',
    '55P03',
    14,
    4,
  ]
  const ended = ['Connection terminated unexpectedly', 'Client has encountered a connection error and is not queryable']
  const lost = ended.map(text => new Error('statement', { cause: new Error(text) }))
  for (const [index, err] of [...outside.map(code => fault(code)), ...lost].entries())
    log.error({ err }, `failure ${index}`)
  const faults = lines.splice(0)
  t.is(faults.length, outside.length + lost.length)
  t.notRegex(faults.join(''), /stack/)
  const others = [fault('ERR_INVALID_ARG_TYPE'), fault('23505'), fault('42P01'), fault(13), fault(undefined, TypeError)]
  for (const err of others) log.error({ err }, 'failed')
  t.is(lines.length, others.length)
  for (const line of lines) t.regex(line, /"stack":\["at /)
})
