/** One niceness for all hash threads, tried against today's two kinds: 19, and 5 where that starves. */
import { cp, mkdir, readdir, readFile, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { loginSegments } from './logins.js'
import type { Prepared, Row, Segment } from './measure.js'
import { root, startBaseline, startLoad } from './processes.js'
import { bcrypt, besideBusyNeighbours } from './segments.js'
import { type Bench, serviceOn } from './world.js'

/** The same service with each niceness, by turns. */
export async function niceness(bench: Bench): Promise<Prepared> {
  const baseline = await startBaseline('bcrypt')
  const loads = { load: startLoad(), lightLoad: startLoad() }
  const segments: Record<string, Segment> = {
    'bcrypt 10': bcrypt(baseline, 10, 4),
    'bcrypt 10 beside neighbours': besideBusyNeighbours(bcrypt(baseline, 10, 5)),
  }
  const rows: Row[] = []
  for (const nice of [undefined, 5, 10, 15]) {
    const folder = nice === undefined ? root : await buildWith(nice, bench.folder)
    const on = await serviceOn(bench, 1000, 10, { folder })
    const { me, logins, meBeside, besideNeighbours } = loginSegments(loads, on)
    const name = nice === undefined ? 'today’s two' : `niceness ${nice}`
    segments['me alone'] ??= me
    Object.assign(segments, {
      [`${name}: logins`]: logins,
      [`${name}: me beside`]: meBeside,
      [`${name}: neighbours`]: besideNeighbours,
    })
    rows.push(
      {
        label: `${name}: logins ÷ bare bcrypt`,
        subject: `${name}: logins`,
        baseline: 'bcrypt 10',
        figure: 'perSecond',
      },
      { label: `${name}: me beside 200 logins`, subject: `${name}: me beside`, baseline: 'me alone', figure: 'p99' },
      {
        label: `${name}: logins beside busy neighbours`,
        subject: `${name}: neighbours`,
        baseline: 'bcrypt 10 beside neighbours',
        figure: 'perSecond',
      },
    )
  }
  return { segments, rows }
}

/** A copy of the build in which every hash thread has one niceness and keeps its job however long it takes. */
async function buildWith(nice: number, parent: string): Promise<string> {
  const folder = join(parent, `niceness-${nice}`)
  await mkdir(folder)
  for (const part of ['server', 'chunks'])
    await cp(join(root, 'dist', part), join(folder, 'dist', part), { recursive: true })
  await cp(join(root, 'package.json'), join(folder, 'package.json'))
  for (const part of ['node_modules', 'server']) await symlink(join(root, part), join(folder, part))
  const changes: readonly (readonly [string, string])[] = [
    ['var niceness = { yielding: 19, firm: 5 };', `var niceness = { yielding: ${nice}, firm: ${nice} };`],
    ['var starving = 8;', 'var starving = 1e4;'],
  ]
  const chunks = join(folder, 'dist/chunks')
  for (const [from, to] of changes) {
    let changed = 0
    for (const name of await readdir(chunks)) {
      const text = name.endsWith('.js') ? await readFile(join(chunks, name), 'utf8') : ''
      if (!text.includes(from)) continue
      await writeFile(join(chunks, name), text.replace(from, to))
      changed++
    }
    // Each program has its own.
    if (changed === 0) throw new Error(`The build has nothing of what is to be changed: ${from}`)
  }
  return folder
}
