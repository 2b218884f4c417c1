import { createRequire } from 'node:module'

const require = createRequire(import.meta.url)

/** Sequelize, loaded with the first model that is used: 60 ms and 14 MB that a start and most calls don't need. */
export const orm = (): typeof import('sequelize') => require('sequelize')
