/** Time limits of PostgreSQL: no session holds a row or a connection for long. */
import test from 'ava'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()

test('PostgreSQL ends a statement, a wait for a lock, an idle transaction and a long one of the service', async t => {
  const { database } = service.registry
  const show = async (name: string) => {
    const [row] = await database.run<{ setting: string }>(
      { name: '', text: `SELECT current_setting('${name}') AS setting` },
      [],
    )
    return row!.setting
  }
  t.is(await show('statement_timeout'), '5s')
  t.is(await show('lock_timeout'), '2s')
  t.is(await show('idle_in_transaction_session_timeout'), '5s')
  t.is(await show('transaction_timeout'), '10s')
})
