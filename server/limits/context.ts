import { createContextKey } from '@connectrpc/connect'
import type { Work } from './scheduler.js'

/** By which a call through a Transport in the same process carries its place in the scheduler. */
export const workKey = createContextKey<Work | undefined>(undefined)
