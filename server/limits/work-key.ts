import { createContextKey } from '@connectrpc/connect'
import type { Work } from './scheduler.js'

/** The context key that passes the scheduled work of a call to a Transport in the same process. */
export const workKey = createContextKey<Work | undefined>(undefined)
