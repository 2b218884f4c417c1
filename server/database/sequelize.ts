import { createRequire } from 'node:module'

const require = createRequire(import.meta.url)

/** Returns Sequelize, loaded at the first use of a model: startup and most calls don't need its 60 ms and 14 MB. */
export const orm = (): typeof import('sequelize') => require('sequelize')
