// The batches of an import.
import { create, type DescMessage, toBinary } from '@bufbuild/protobuf'
import { ImportProblemSchema, type UserForm } from '../../../../proto/gen/auth/v1/administration_pb.js'
import type { Reading, toOrganizationRow, toUserRow } from '../../../files/columns.js'
import { readRows, type Source, type SourceRow } from '../../../files/source.js'
import { type Noun, nouns } from './nouns.js'

/** Maximum encoded bytes and rows of a batch, and passwords to hash in it: its transaction must be short on a busy machine, too. */
const most = { bytes: 60_000, rows: 100, passwords: 16 }

/** A batch of rows. */
interface Batch {
  readonly firstRow: number
  readonly rows: readonly {
    readonly source: SourceRow
    readonly message: ReturnType<typeof toUserRow | typeof toOrganizationRow>
  }[]
}

/** Cuts the rows of a file into batches, always in the same way. */
export async function* readBatches(source: Source, noun: Noun, keepIds: boolean): AsyncGenerator<Batch> {
  const how: Reading = { isCsv: source.format === 'csv', keepIds }
  let [firstRow, bytes, passwords] = [0, 0, 0]
  let rows: Batch['rows'][number][] = []
  const { toRow, schema } = nouns[noun]
  // A row that can't be read has nothing but the reason.
  const withProblem = (text: string): Message =>
    create(schema, { problems: [create(ImportProblemSchema, { field: '', message: text })] })
  const sizeOf = (message: Message) => toBinary(schema as DescMessage, message).length + tagAndLength
  for await (const row of readRows(source)) {
    const read = row.problem ? withProblem(row.problem) : toRow(row.cells, how)
    read.line = row.line
    const message = sizeOf(read) > most.bytes ? withProblem('The row is too long.') : read
    const size = sizeOf(message)
    const hasPassword = Boolean((message.form as Partial<UserForm> | undefined)?.password)
    if (rows.length > 0 && (bytes + size > most.bytes || rows.length === most.rows || passwords === most.passwords)) {
      yield { firstRow, rows }
      firstRow += rows.length
      ;[rows, bytes, passwords] = [[], 0, 0]
    }
    rows.push({ source: row, message })
    bytes += size
    passwords += Number(hasPassword)
  }
  if (rows.length > 0) yield { firstRow, rows }
}

type Message = Batch['rows'][number]['message']

/** Bytes by which a row is longer in a request, at most. */
const tagAndLength = 6

/** The request for a batch. */
export function toRequest(id: number, noun: Noun, { firstRow, rows }: Batch) {
  return { id, firstRow, [noun]: rows.map(({ message }) => message) }
}
