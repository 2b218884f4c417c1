/** A process that uses the embedded PostgreSQL of the folder in its first argument until its input ends. */
import { startEmbedded } from '../../server/embedded/start.js'

const log = { info() {}, warn: (text: string) => process.stderr.write(`${text}\n`) }
const embedded = await startEmbedded({ dataDir: process.argv[2]!, log })
process.stdout.write(`${embedded.url}\n`)
process.stdin.resume().once('end', () => embedded.stop())
