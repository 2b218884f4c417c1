/**
 * A process that uses the embedded PostgreSQL of the folder in its first argument until its input ends; with the argument
 * `lock`, one that takes the lock of the folder and keeps it.
 */
import { withFolderLock } from '../../server/embedded/folder-lock.js'
import { startEmbedded } from '../../server/embedded/start.js'

const [dataDir, lock] = process.argv.slice(2)
if (lock) {
  await withFolderLock(dataDir!, () => {
    process.stdout.write('locked\n')
    return new Promise(() => {})
  })
}
const log = { info() {}, warn: (text: string) => process.stderr.write(`${text}\n`) }
const embedded = await startEmbedded({ dataDir: dataDir!, log })
process.stdout.write(`${embedded.url}\n`)
process.stdin.resume().once('end', () => embedded.stop())
