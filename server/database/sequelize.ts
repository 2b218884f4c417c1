import { onFirstUse } from '../process/lazy.js'

/** Sequelize, loaded when a model is used for the first time: it is as large as all that a start needs. */
export const orm = onFirstUse<typeof import('sequelize')>('sequelize')
