/**
 * Attribute tables. An attribute table describes an entity once; the Sequelize model (`defineTable`), the columns of
 * hand-written statements (`selectList`) and the types of rows derive from it.
 */
import { DataTypes, literal, type Model, type ModelAttributeColumnOptions, type ModelStatic } from 'sequelize'
import type { Database } from './database.js'

/** A column type, by its name in Sequelize's DataTypes; `[]` makes it an array. */
type ScalarType = 'BIGINT' | 'BLOB' | 'BOOLEAN' | 'DATE' | 'DATEONLY' | 'DOUBLE' | 'INTEGER' | 'JSONB' | 'TEXT' | 'UUID'
type ColumnType = ScalarType | `${ScalarType}[]`

/** An attribute as Sequelize describes it, whose values are of type T. */
export interface Attribute<T = unknown, P extends boolean = boolean> extends ModelAttributeColumnOptions {
  /** Whether a new row may omit the attribute, because the column has a default. */
  readonly hasDefault: P
  /** How `selectList` formats a day: a template for PostgreSQL's `to_char`. */
  readonly format?: string
  /** Carries T in the type. Never set. */
  readonly value?: T
}

/** An attribute table: attributes by name. */
type Attributes = Readonly<Record<string, Attribute>>

type Value<A> = A extends Attribute<infer T> ? T : never

/** A stored row. */
export type Row<A extends Attributes> = { readonly [K in keyof A]: Value<A[K]> }

/** A new row, which may omit attributes with a default. */
export type NewRow<A extends Attributes> = {
  readonly [K in keyof A as A[K]['hasDefault'] extends true ? never : K]: Value<A[K]>
} & { readonly [K in keyof A as A[K]['hasDefault'] extends true ? K : never]?: Value<A[K]> }

/** The attributes of a row in an outer join, under names that begin with P. */
export type Joined<P extends string, A extends Attributes> = {
  readonly [K in keyof A & string as `${P}${Capitalize<K>}`]: Value<A[K]> | null
}

/** A required attribute. */
export function attribute<T>(type: ColumnType): Attribute<T, false> {
  const scalar = DataTypes[type.replace('[]', '') as ScalarType]
  return { type: type.endsWith('[]') ? DataTypes.ARRAY(scalar) : scalar, allowNull: false, hasDefault: false }
}

export const text = attribute<string>('TEXT')
export const integer = attribute<number>('INTEGER')
/** A 64-bit integer, as a string of digits. */
export const bigint = attribute<string>('BIGINT')
export const flag = attribute<boolean>('BOOLEAN')
export const bytes = attribute<Buffer>('BLOB')
export const time = attribute<Date>('DATE')
/** A day, stored and passed as yyyy-MM-dd. */
export const day = (format = 'YYYY-MM-DD') => ({ ...attribute<string>('DATEONLY'), format })

/** Makes an attribute nullable. */
export const nullable = <T, P extends boolean>(of: Attribute<T, P>): Attribute<T | null, P> => ({
  ...of,
  allowNull: true,
})

/** Makes an attribute optional in new rows: the column has a default or is nullable. */
export const hasDefault = <T>(of: Attribute<T>): Attribute<T, true> => ({
  ...of,
  allowNull: true,
  hasDefault: true,
  autoIncrement: of.primaryKey,
})

/** Makes an attribute the primary key, or a part of it. */
export const key = <T, P extends boolean>(of: Attribute<T, P>): Attribute<T, P> => ({ ...of, primaryKey: true })

/** Sets the column name of an attribute, by default its name in snake case. */
export const column = <T, P extends boolean>(field: string, of: Attribute<T, P>): Attribute<T, P> => ({ ...of, field })

/** A Sequelize model of rows of these attributes. */
type Table<A extends Attributes> = ModelStatic<Model<Row<A>, NewRow<A>>>

/** Describes a table, and returns its model. */
export function defineTable<A extends Attributes>(
  { sequelize }: Pick<Database, 'sequelize'>,
  name: string,
  of: A,
): Table<A> {
  // Sequelize writes into descriptions, which tables share.
  const own = Object.entries(of).map(([attribute, description]) => [attribute, { ...description }])
  return sequelize.define(name, Object.fromEntries(own))
}

/** Returns the select list of attributes, from a table with an alias. With a prefix, `name` becomes `prefixName`. */
export function selectList(of: Attributes, alias: string, prefix = ''): string {
  return Object.entries(of)
    .map(([attribute, { field = snakeCase(attribute), format }]) => {
      const value = format ? `to_char(${alias}.${field}, '${format}')` : `${alias}.${field}`
      const name = prefix === '' ? attribute : `${prefix}${attribute[0]!.toUpperCase()}${attribute.slice(1)}`
      return value === `${alias}.${name}` ? value : `${value} AS "${name}"`
    })
    .join(', ')
}

/** Returns an SQL expression as a value of an attribute. Sequelize accepts one instead of any value, but most of its types don't declare it. */
export function expression<T>(text: string): T {
  return literal(text) as unknown as T
}

/** Returns an SQL expression: the time `seconds` from now, by the clock of the database, which all replicas share. */
export function fromNow(seconds: number): Date {
  if (!Number.isFinite(seconds)) throw new TypeError('Seconds must be a number.')
  return expression(`now() + make_interval(secs => ${seconds})`)
}

/** Returns the column name of an attribute that sets none. */
export function snakeCase(name: string): string {
  return name.replace(/[A-Z]/g, letter => `_${letter.toLowerCase()}`)
}
