/** Models and tables: each table has a matching model, whose verbs keep the invariants of its rows. */
import test from 'ava'
import { openModels } from '../_helpers/models.js'

test('the attributes of every model are the columns of its table, of their types, and as optional as they are', async t => {
  const { sequelize } = (await openModels(t)).database
  const [columns] = (await sequelize.query(`
    SELECT c.table_name AS table, c.column_name AS column,
      (SELECT format_type(atttypid, NULL) FROM pg_attribute
        WHERE attrelid = c.table_name::regclass AND attname = c.column_name) AS type,
      c.is_nullable = 'YES' OR c.column_default IS NOT NULL OR c.is_identity = 'YES' AS optional,
      EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
        WHERE i.indisprimary AND i.indrelid = c.table_name::regclass AND a.attname = c.column_name) AS key
    FROM information_schema.columns c WHERE c.table_schema = 'public'`)) as [Record<string, unknown>[], unknown]
  const attributes = Object.values(sequelize.models).flatMap(model =>
    Object.values(model.getAttributes()).map(({ field, type, allowNull, primaryKey = false }) => ({
      table: model.getTableName(),
      column: field,
      type: (type as unknown as { toSql(): string }).toSql().toLowerCase(),
      optional: allowNull,
      key: primaryKey,
    })),
  )
  const sorted = (rows: object[]) => rows.map(row => JSON.stringify(row)).sort()
  t.true(attributes.length > 60)
  t.deepEqual(sorted(attributes), sorted(columns.filter(({ table }) => String(table) in sequelize.models)))
})

test('a transaction whose work throws is rolled back, and its connection serves the next caller', async t => {
  const { database, questions } = await openModels(t)
  const work = database.transact(async transaction => {
    await questions.add({ question: 'a', questionKey: 'a' }, transaction)
    throw new Error('no')
  })
  await t.throwsAsync(work, { message: 'no' })
  t.is((await questions.all()).length, 0)
  await database.transact(transaction => questions.add({ question: 'b', questionKey: 'b' }, transaction))
  t.deepEqual([(await questions.all()).map(({ question }) => question), database.stats().inUse], [['b'], 0])
})
