/** Bounds of the input of every RPC, which hold while it is read, at every endpoint; and the cost of reading it. */
import { create, type DescField, type DescMessage, fromBinary, type Message } from '@bufbuild/protobuf'
import { BinaryReader, WireType } from '@bufbuild/protobuf/wire'
import { LoginByUsernameAndAnswersRequestSchema } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import type { FieldViolation } from './refusal.js'

/** Maximum number of values in the input: of JSON all of them, of a form its parameters, of protobuf its fields. */
export const maxValues = 10_000

/** Maximum number of wrong fields that a refusal lists. The rest of the input isn't read. */
export const maxWrongFields = 100

/** Maximum numbers of items of the lists that may have fewer than `usualItems`. */
const fewerItems: ReadonlyMap<DescField, number> = new Map([[LoginByUsernameAndAnswersRequestSchema.field.answers, 10]])
const usualItems = 500

/** The fault of a list with so many items; undefined if it may have them. Its items need not be read. */
export function faultOfList(field: DescField, items: number): string | undefined {
  const most = fewerItems.get(field) ?? usualItems
  return items > most ? `Give at most ${most}.` : undefined
}

/** Milliseconds of the main thread that it takes to read so many bytes, not compressed, and values. */
export function costOfInput(bytes: number, values = 0): number {
  return 0.3 * (bytes / 8192) + 0.0004 * values
}

/** A message from bytes. */
interface FromBytes {
  readonly message: Message
  /** Fields that were read. */
  readonly values: number
  /** Whether the bytes are no message of this type, or exceed the limits: `message` is then empty. */
  readonly undecodable?: boolean
  /** The lists that are too long, which make it undecodable, too. */
  readonly malformed?: readonly FieldViolation[]
}

/** Decodes a message within the limits. */
export function readBinary(schema: DescMessage, bytes: Uint8Array): FromBytes {
  const count = { values: 0, malformed: [] as FieldViolation[] }
  const refused = { message: create(schema), undecodable: true }
  try {
    countFields(schema, new BinaryReader(bytes), bytes.length, count)
    if (count.values > maxValues || count.malformed.length > 0) return { ...refused, ...count }
    return { message: fromBinary(schema, bytes, { readUnknownFields: false }), values: count.values }
  } catch {
    return { ...refused, values: count.values }
  }
}

/** Counts the fields of a message, and of those inside it, up to the first that exceeds a limit. */
function countFields(
  schema: DescMessage,
  reader: BinaryReader,
  end: number,
  count: { values: number; malformed: FieldViolation[] },
): void {
  const items = new Map<DescField, number>()
  while (reader.pos < end && count.values <= maxValues && count.malformed.length === 0) {
    const [number, wireType] = reader.tag()
    count.values++
    const field = schema.fields.find(field => field.number === number)
    if (field?.fieldKind === 'list') {
      const length = (items.get(field) ?? 0) + 1
      items.set(field, length)
      const message = faultOfList(field, length)
      if (message) count.malformed.push({ field: field.jsonName, reason: 'MALFORMED', message })
    }
    if (field?.message && wireType === WireType.LengthDelimited) {
      const length = reader.uint32()
      countFields(field.message, reader, reader.pos + length, count)
    } else reader.skip(wireType, number)
  }
}
