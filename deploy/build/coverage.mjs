/**
 * Prints how many lines of the compiled code the tests ran, by room. Processes with NODE_V8_COVERAGE leave what they ran in the folder
 * that is given here; this reads and deletes it all along, because thousands of processes leave 2 MB each. It ends at SIGTERM.
 */
import { readdir, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

const folder = process.argv[2]
const dist = new URL('../../dist/', import.meta.url)

/** Each file of the rooms: its text, and for each character whether a process ran it. */
const files = new Map()
for (const room of ['server', 'gateway', 'cli', 'proto/client'])
  for (const name of await readdir(new URL(room, dist), { recursive: true }))
    if (name.endsWith('.js')) {
      const url = new URL(`${room}/${name}`, dist)
      const text = await readFile(url, 'utf8')
      files.set(url.href, { room: `${room}/${name}`, text, ran: new Uint8Array(text.length) })
    }

function add({ url, functions }) {
  const file = files.get(url)
  if (!file) return
  const ran = new Uint8Array(file.ran.length)
  // What is inside comes after what surrounds it.
  for (const { ranges } of functions)
    for (const { startOffset, endOffset, count } of ranges) ran.fill(count > 0 ? 1 : 0, startOffset, endOffset)
  for (const [at, value] of ran.entries()) file.ran[at] |= value
}

async function readAll() {
  for (const name of await readdir(folder).catch(() => [])) {
    const path = join(folder, name)
    // A process may still write it.
    const report = await readFile(path, 'utf8')
      .then(JSON.parse)
      .catch(() => undefined)
    if (!report) continue
    report.result.forEach(add)
    await rm(path)
  }
}

const ending = new AbortController()
process.once('SIGTERM', () => ending.abort())
while (!ending.signal.aborted) {
  await readAll()
  await sleep(5_000, undefined, { signal: ending.signal }).catch(() => {})
}
await readAll()

/** Lines that ran, and lines with code, by room: a folder of the server, or all of another program. */
const rooms = new Map()
for (const { room, text, ran } of files.values()) {
  const [first, second, ...below] = room.split('/')
  const name = first === 'cli' || first === 'gateway' || below.length === 0 ? first : `${first}/${second}`
  let at = 0
  for (const line of text.split('\n')) {
    const [start, end] = [at + line.length - line.trimStart().length, at + line.trimEnd().length]
    at += line.length + 1
    if (start >= end || /^(\/\/|\/?\*)/.test(line.trim())) continue
    for (const each of [name, 'all']) {
      const sum = rooms.get(each) ?? { ran: 0, lines: 0 }
      sum.lines++
      if (ran.subarray(start, end).includes(1)) sum.ran++
      rooms.set(each, sum)
    }
  }
}
console.log('# lines that the tests ran, in percent of those of a room')
for (const [room, { ran, lines }] of [...rooms].sort(([a], [b]) => (a < b ? -1 : 1)))
  console.log(`# ${((100 * ran) / lines).toFixed(1).padStart(5)}  ${room} (${lines})`)
