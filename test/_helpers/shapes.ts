/** Bodies and queries of every kind that a stranger can make large, for each field of a message and for unknown ones. */
import type { DescField, DescMessage } from '@bufbuild/protobuf'

/** The largest body, nearly, in bytes; and the largest query. */
export const [largestBody, largestQuery] = [65_000, 7_500]

/** A body, or with the type `query` a query. */
export interface Shape {
  readonly name: string
  readonly type: 'json' | 'form' | 'query' | 'binary'
  /** Of about so many bytes. */
  make(bytes: number): Buffer
}

const units = ['1', '""', '{}', '[]', '"\\u00e9"', '{"a":1}', '{"id":"a"}']

/** The fields of a message, and of those inside it. */
function fieldsOf({ fields }: DescMessage, depth = 0): DescField[] {
  return fields.flatMap(field => [field, ...(field.message && depth < 2 ? fieldsOf(field.message, depth + 1) : [])])
}

/** How often something of a length fits: at most so often that it isn't refused as too many values. */
const timesIn = (bytes: number, length: number) => Math.min(9_900, Math.max(1, Math.floor(bytes / length)))

const repeated = (unit: string, bytes: number, separator = '') =>
  Array(timesIn(bytes, Buffer.byteLength(unit) + separator.length))
    .fill(unit)
    .join(separator)

const text =
  (type: Shape['type']) =>
  (name: string, make: (bytes: number) => string): Shape => ({ name, type, make: bytes => Buffer.from(make(bytes)) })
const [json, form, query] = [text('json'), text('form'), text('query')]

/** JSON: wide, deep and long, with known and unknown names, right and wrong types. */
export function jsonShapes(message: DescMessage): Shape[] {
  const names = [...new Set([...fieldsOf(message).map(({ jsonName }) => jsonName), 'unknown'])]
  const deep = `${'{"a":'.repeat(29)}1${'}'.repeat(29)}`
  return [
    json('small', () => '{}'),
    json('many names', bytes => `{${Array.from({ length: timesIn(bytes, 9) }, (_, index) => `"k${index}":1`)}}`),
    json('numbered names', bytes => `{${Array.from({ length: timesIn(bytes, 8) }, (_, index) => `"${index}":1`)}}`),
    json('a long name', bytes => `{"${'k'.repeat(bytes)}":1}`),
    json('too deep', bytes => '['.repeat(bytes / 2) + ']'.repeat(bytes / 2)),
    json('deep objects', bytes => `{"unknown":[${repeated(deep, bytes, ',')}]}`),
    ...names.flatMap(name => [
      json(`${name} again and again`, bytes => `{${repeated(`"${name}":1`, bytes, ',')}}`),
      json(`long ${name}`, bytes => `{"${name}":"${repeated('é,', bytes)}"}`),
      json(`escaped ${name}`, bytes => `{"${name}":"${repeated('\\u0301', bytes)}"}`),
      ...units.map(unit => json(`${name} of ${unit}`, bytes => `{"${name}":[${repeated(unit, bytes, ',')}]}`)),
    ]),
  ]
}

/** Forms and queries: pairs of known and unknown names, long values, encoded ones. */
export function pairShapes(type: 'form' | 'query', message: DescMessage): Shape[] {
  const shape = type === 'form' ? form : query
  const names = [...new Set([...fieldsOf(message).map(({ jsonName }) => jsonName), 'unknown'])]
  return [
    shape('no pair', bytes => '&'.repeat(bytes)),
    shape('many names', bytes => Array.from({ length: timesIn(bytes, 8) }, (_, index) => `k${index}=1`).join('&')),
    ...names.flatMap(name => [
      ...['', '=', '=x', '=%41', '=%C3%A9+', '={}'].map(rest =>
        shape(`${name}${rest} again and again`, bytes => repeated(name + rest, bytes, '&')),
      ),
      ...['é', '%C3%A9', '+', '[]'].map(unit =>
        shape(`${name} of ${unit}`, bytes => `${name}=${repeated(unit, bytes)}`),
      ),
      shape(`${name} of JSON`, bytes => `${name}=[${repeated('{}', bytes, ',')}]`),
    ]),
  ]
}

/** Messages as bytes: each field and an unknown one, of each wire type, with contents of several lengths. */
export function binaryShapes({ fields }: DescMessage): Shape[] {
  const contents = ['00', '0361c3a9', '02080a', '0a0a00120012001a002200']
  return [
    { name: 'small', type: 'binary', make: () => Buffer.alloc(0) },
    ...[...fields.map(({ number }) => number), 15].flatMap(number =>
      contents.map((content, index): Shape => {
        const tag = (number << 3) | (index === 0 ? 0 : 2)
        const unit = Buffer.from([
          ...(tag < 128 ? [tag] : [(tag & 127) | 128, tag >> 7]),
          ...Buffer.from(content, 'hex'),
        ])
        return {
          name: `field ${number} of ${content}`,
          type: 'binary',
          make: bytes => Buffer.alloc(timesIn(bytes, unit.length) * unit.length, unit),
        }
      }),
    ),
  ]
}
