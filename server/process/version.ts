import { createRequire } from 'node:module'

/** The version of the package. */
export const version: string = createRequire(import.meta.url)('#package').version
