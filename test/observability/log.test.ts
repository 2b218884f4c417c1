import test from 'ava'
import { createLog } from '../../server/observability/log.js'

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
