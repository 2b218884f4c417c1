/**
 * Attribute tables: what an entity is made of, told once. Its Sequelize model (`defineTable`), the columns that a
 * statement by hand reads (`selectList`) and the types of its rows all come from there.
 */
import type { Model, ModelAttributes, ModelStatic } from 'sequelize'
import type { Database } from './connection.js'
import { orm } from './sequelize.js'

/** A type of columns, by its name in Sequelize's DataTypes; `[]` makes it an array. */
type ScalarType = 'BIGINT' | 'BLOB' | 'BOOLEAN' | 'DATE' | 'DATEONLY' | 'DOUBLE' | 'INTEGER' | 'JSONB' | 'TEXT' | 'UUID'
type ColumnType = ScalarType | `${ScalarType}[]`

/** An attribute whose values are of type T. */
export interface Attribute<T = unknown, P extends boolean = boolean> {
  readonly type: ColumnType
  readonly nullable: boolean
  /** The database fills it in where a new row leaves it out. */
  readonly hasDefault: P
  readonly primaryKey?: true
  /** Name of the column, unless it is the attribute's own in snake case. */
  readonly column?: string
  /** How `selectList` writes a day: a template of PostgreSQL's `to_char`. */
  readonly format?: string
  /** Carries T and is never there. */
  readonly value?: T
}

/** An attribute table: attributes by name. */
export type Attributes = Readonly<Record<string, Attribute>>

type Value<A> = A extends Attribute<infer T> ? T : never

/** A row as it is stored. */
export type Row<A extends Attributes> = { readonly [K in keyof A]: Value<A[K]> }

/** A row to be added: an attribute may be left out only where the database fills it in. */
export type NewRow<A extends Attributes> = {
  readonly [K in keyof A as A[K]['hasDefault'] extends true ? never : K]: Value<A[K]>
} & { readonly [K in keyof A as A[K]['hasDefault'] extends true ? K : never]?: Value<A[K]> }

/** What an outer join finds of a row, under names that begin with P. */
export type Joined<P extends string, A extends Attributes> = {
  readonly [K in keyof A & string as `${P}${Capitalize<K>}`]: Value<A[K]> | null
}

/** An attribute that every row has. */
export function attribute<T>(type: ColumnType): Attribute<T, false> {
  return { type, nullable: false, hasDefault: false }
}

export const text = attribute<string>('TEXT')
export const integer = attribute<number>('INTEGER')
/** A 64-bit integer, as a string of digits. */
export const bigint = attribute<string>('BIGINT')
export const flag = attribute<boolean>('BOOLEAN')
export const bytes = attribute<Buffer>('BLOB')
export const time = attribute<Date>('DATE')
/** A day, stored and given as yyyy-MM-dd. */
export const day = (format = 'YYYY-MM-DD') => ({ ...attribute<string>('DATEONLY'), format })

/** The attribute, or null. */
export const nullable = <T, P extends boolean>(of: Attribute<T, P>): Attribute<T | null, P> => ({
  ...of,
  nullable: true,
})

/** The attribute with a default in the database, or without need of one. */
export const hasDefault = <T>(of: Attribute<T>): Attribute<T, true> => ({ ...of, hasDefault: true })

/** The attribute as the primary key, or as a part of it. */
export const key = <T, P extends boolean>(of: Attribute<T, P>): Attribute<T, P> => ({ ...of, primaryKey: true })

/** The attribute in a column of another name. */
export const column = <T, P extends boolean>(name: string, of: Attribute<T, P>): Attribute<T, P> => ({
  ...of,
  column: name,
})

/** A Sequelize model of rows of these attributes. */
export type Table<A extends Attributes> = ModelStatic<Model<Row<A>, NewRow<A>>>

/** Describes a table. Its Sequelize model is made when it is asked for. */
export function defineTable<A extends Attributes>(
  { define }: Pick<Database, 'define'>,
  name: string,
  of: A,
): () => Table<A> {
  return define(name, () => columnsOf(of)) as () => Table<A>
}

function columnsOf(of: Attributes): ModelAttributes {
  const columns = Object.entries(of).map(([attribute, { type, nullable, hasDefault, primaryKey = false, column }]) => [
    attribute,
    {
      type: dataType(type),
      field: column ?? snakeCase(attribute),
      allowNull: nullable || hasDefault,
      primaryKey,
      autoIncrement: primaryKey && hasDefault,
    },
  ])
  return Object.fromEntries(columns)
}

function dataType(type: ColumnType) {
  const { DataTypes } = orm()
  const scalar = DataTypes[type.replace('[]', '') as ScalarType]
  return type.endsWith('[]') ? DataTypes.ARRAY(scalar) : scalar
}

/** The attributes as a SELECT reads them from a table with an alias. With a prefix `name` becomes `prefixName`. */
export function selectList(of: Attributes, alias: string, prefix = ''): string {
  return Object.entries(of)
    .map(([attribute, { column = snakeCase(attribute), format }]) => {
      const value = format ? `to_char(${alias}.${column}, '${format}')` : `${alias}.${column}`
      const name = prefix === '' ? attribute : `${prefix}${attribute[0]!.toUpperCase()}${attribute.slice(1)}`
      return value === `${alias}.${name}` ? value : `${value} AS "${name}"`
    })
    .join(', ')
}

/** The moment some seconds from now, by the clock of the database: all replicas have that one in common. */
export function fromNow(seconds: number): Date {
  if (!Number.isFinite(seconds)) throw new TypeError('Seconds are a number.')
  // Sequelize takes an expression wherever it takes a value, but its types know that of few verbs.
  return orm().literal(`now() + make_interval(secs => ${seconds})`) as unknown as Date
}

function snakeCase(name: string): string {
  return name.replace(/[A-Z]/g, letter => `_${letter.toLowerCase()}`)
}
