// The process that answers runs most checks (server/administration/doctor.ts). This file adds those of the machine of the
// command line: whether it gets an answer, its settings, and who may read the files that they name.
import { stat } from 'node:fs/promises'
import type { Check as Found } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Api, GlobalOptions } from '../administration.js'
import type { Command } from '../command.js'
import { contextOf } from '../contexts.js'
import { end, explain } from '../exit-codes.js'
import { inTerminalLanguage } from '../terminal/language.js'
import { printJson, say } from '../terminal/output.js'
import { withProgress } from '../terminal/progress.js'

/** What was examined, and what was found. */
type Check = Pick<Found, 'check' | 'status' | 'detail' | 'fix'>

/** Adds `auth-admin doctor`. */
export function addDoctor(program: Command): void {
  program
    .command('doctor')
    .description('Check the service and suggest fixes. Exits with 1 if a check fails.')
    .json()
    .remarks("Warnings don't change the exit code. An unreachable database is a failed check.")
    .examples('doctor')
    .administers(
      async (api, options: GlobalOptions) => {
        const here = !(await contextOf(options)) ? await examineHere() : []
        // The service needs them.
        const isReady = here.every(({ check, status }) => check !== 'settings' || status !== 'failed')
        const there = isReady ? await withProgress('Checking the service', () => examineService(api)) : []
        const checks = [...here, ...there]
        if (options.json) printJson({ checks })
        else for (const check of checks) print(check)
        if (checks.some(({ status }) => status === 'failed')) end(1)
      },
      { installed: false },
    )
}

function print({ check, status, detail, fix }: Check): void {
  const [word, name, found, remedy] = [status, check, detail, fix].map(inTerminalLanguage)
  say(`${word!.padEnd(7)}  ${name}: ${found}`)
  if (fix !== '') say(`         -> ${remedy}`)
}

/** The checks of the process that answers, or a failed one if none answers. */
async function examineService(api: Api): Promise<Check[]> {
  try {
    const { checks } = await api.diagnose({})
    return checks.map(({ check, status, detail, fix }) => ({ check, status, detail, fix }))
  } catch (error) {
    const { message = 'It was stopped.' } = await explain(error)
    return [{ check: 'service', status: 'failed', detail: message, fix: 'Fix this first, and run doctor again.' }]
  }
}

/** Which settings the checks use: a command can't know those of the service. */
const whose =
  'The checks use the settings of this environment; after `auth-admin login URL`, they use those of the service there.'

/** The settings of this process, and the files that they name. */
async function examineHere(): Promise<Check[]> {
  const { describeSettings, readSettings } = await import('../../server/process/settings.js')
  const { unknown } = describeSettings(process.env)
  const names = unknown.join(', ')
  const examine = () => {
    try {
      readSettings(process.env)
    } catch (error) {
      const detail = (error as Error).message.replaceAll('\n', ' ')
      return { status: 'failed', detail: `${detail}.`, fix: 'Fix them; `auth-admin config` lists all.' }
    }
    return unknown.length > 0
      ? { status: 'warning', detail: `Unknown settings: ${names}.`, fix: 'Unset or correct them.' }
      : { status: 'ok', detail: 'All are valid.', fix: '' }
  }
  const { detail, ...found } = examine()
  return [{ check: 'settings', detail: `${detail} ${whose}`, ...found }, await examineFiles(process.env)]
}

/** Whether others on this machine can read what is secret. */
async function examineFiles(env: NodeJS.ProcessEnv): Promise<Check> {
  const { describeSettings } = await import('../../server/process/settings.js')
  const files = describeSettings(env)
    .settings.filter(({ origin }) => origin === 'file')
    .map(({ name }) => env[`${name}_FILE`]!)
  const secret = [...files, ...(env.AUTH_TLS_KEY ? [env.AUTH_TLS_KEY] : []), env.AUTH_DATA_DIR || './.auth']
  const open: string[] = []
  for (const path of secret) {
    // Other checks report missing files.
    const found = await stat(path).catch(() => undefined)
    // A folder that others may only pass through is not readable: a service that root starts opens its data folder so.
    if (found && (found.mode & 0o006) !== 0) open.push(path)
  }
  const check = 'secret files'
  if (open.length === 0)
    return { check, status: 'ok', detail: 'No other user of this machine can read the files of the settings.', fix: '' }
  const detail = `Every user of this machine can read ${open.join(', ')}.`
  return { check, status: 'warning', detail, fix: `chmod o-rw ${open.join(' ')}` }
}
