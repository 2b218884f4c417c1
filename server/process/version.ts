import { createRequire } from 'node:module'

/** The version of the package. */
export const version: string = createRequire(import.meta.url)('#package').version

/** Warns if this version of Node.js gets no security updates any longer: 20 has had none since 2026-04-30. */
export function warnOfNode(log: { warn(message: string): void }): void {
  if (Number.parseInt(process.versions.node, 10) < 22)
    log.warn(`Node.js ${process.versions.node} gets no security updates: use Node.js 24`)
}
