/** Builds the conformance suite, starts it, and runs its plans. */
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import type { IncomingMessage } from 'node:http'
import { request } from 'node:https'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Plan } from './plans.js'
import { start } from './processes.js'

/** The last commit that needs neither Java 21 nor a repository besides Maven Central. */
const commit = '52c007906419c68e9653f17338be0a22e69e0350'

/** The program that a build makes. */
export const jarOf = (folder: string): string => join(folder, 'target/fapi-test-suite.jar')

/** Results of conditions that the report names. */
const notable = ['FAILURE', 'WARNING', 'REVIEW', 'SKIPPED']

/** Seconds after which a module that waits for a page has failed. */
const patience = 180

/** How a module of a plan ended. */
export interface Outcome {
  readonly module: string
  /** PASSED, WARNING, REVIEW, SKIPPED or FAILED. */
  readonly result: string
  /** The conditions that didn't hold, or that a person is to look at. */
  readonly conditions: readonly string[]
}

/** Builds the suite from a git directory, with a database in its memory instead of a MongoDB server. */
export async function buildSuite(gitDir: string, folder: string): Promise<void> {
  await mkdir(folder, { recursive: true })
  execFileSync('sh', ['-c', 'git --git-dir="$0" archive "$1" | tar x -C "$2"', gitDir, commit, folder])
  const replace = async (path: string, former: string, next: string) => {
    const content = await readFile(join(folder, path), 'utf8')
    if (!content.includes(former)) throw new Error(`${path} has no ${former}`)
    await writeFile(join(folder, path), content.replace(former, next))
  }
  const dependency =
    '<dependency><groupId>de.bwaldvogel</groupId><artifactId>mongo-java-server</artifactId><version>1.45.0</version></dependency>'
  await replace('pom.xml', '<dependencies>', `<dependencies>${dependency}`)
  const main = 'src/main/java/net/openid/conformance/Application.java'
  // The database in memory has no such commands.
  await replace(main, '@EventListener(ApplicationReadyEvent.class)', '')
  const database = 'new de.bwaldvogel.mongo.MongoServer(new de.bwaldvogel.mongo.backend.memory.MemoryBackend())'
  const run = 'springApplication.run(args)'
  await replace(main, run, `${database}.bind("127.0.0.1", Integer.getInteger("database.port")); ${run}`)
  const options = ['-B', '-q', 'package', '-DskipTests', '-Dpmd.skip', '-Dcheckstyle.skip']
  execFileSync('mvn', options, { cwd: folder, stdio: 'inherit' })
}

/** Starts a suite that anybody on this machine may use, and waits until it serves. */
export async function startSuite(
  folder: string,
  suite: { readonly base: string },
  { cert, key, database }: { cert: string; key: string; database: number },
): Promise<void> {
  const login = 'spring.security.oauth2.client'
  const properties = {
    'server.address': '127.0.0.1',
    'server.port': new URL(suite.base).port,
    'server.ssl.certificate': cert,
    'server.ssl.certificate-private-key': key,
    'spring.data.mongodb.uri': `mongodb://127.0.0.1:${database}/suite`,
    'fintechlabs.base_url': suite.base,
    'fintechlabs.base_mtls_url': suite.base,
    'fintechlabs.devmode': 'true',
    // The suite would look for the sign-ins of its own users on the internet.
    [`${login}.registration.google.provider`]: 'none',
    [`${login}.registration.gitlab.provider`]: 'none',
    [`${login}.provider.none.authorization-uri`]: 'https://none.invalid',
    [`${login}.provider.none.token-uri`]: 'https://none.invalid',
  }
  const flags = Object.entries(properties).map(([name, value]) => `--${name}=${value}`)
  const args = ['-Xmx700m', `-Ddatabase.port=${database}`, '-jar', jarOf(folder), ...flags]
  await start('java', args, {}, /Started Application/)
}

/** Sends a request over https, and returns the body of the answer. Throws unless that is a success. */
export async function ask(ca: Buffer, method: string, url: string, body?: object): Promise<string> {
  const outgoing = request(url, { method, headers: { 'content-type': 'application/json' }, ca })
  outgoing.end(body && JSON.stringify(body))
  const [answer] = (await once(outgoing, 'response')) as [IncomingMessage]
  const content = await text(answer)
  if (answer.statusCode! >= 300) throw new Error(`${method} ${url}: ${answer.statusCode} ${content.slice(0, 1000)}`)
  return content
}

/** An entry in the log of a module. */
interface Entry {
  readonly src: string
  readonly msg: string
  readonly result?: string
  /** Claims that scopes stand for. */
  readonly missing_items?: readonly string[]
  /** The page for which a test asks as a screenshot. */
  readonly page_source?: string
}

/** What an entry says, in one line. */
function lineOf({ result, src, msg, missing_items: missing, page_source: page }: Entry): string {
  const [first] = msg.split('\n')
  const words = page?.replace(/^.*<body>|<[^>]+>/gs, ' ').replace(/\s+/g, ' ')
  return `${result} ${src}: ${first}${missing ? ` (${missing.join(', ')})` : ''}${words ? ` Seen:${words}` : ''}`
}

/** A running suite, by its REST interface. */
export function connectSuite(base: string, ca: Buffer) {
  // biome-ignore lint/suspicious/noExplicitAny: the suite's JSON
  async function call(method: string, path: string, query: Record<string, string> = {}, body?: object): Promise<any> {
    return JSON.parse(await ask(ca, method, `${base}/api/${path}?${new URLSearchParams(query)}`, body))
  }

  async function runModule(plan: string, module: { testModule: string; variant: object }): Promise<Outcome> {
    const { testModule: test, variant } = module
    const { id } = await call('POST', 'runner', { test, plan, variant: JSON.stringify(variant) })
    let info: { status: string; result?: string } = { status: 'CREATED' }
    for (let seconds = 0; !['FINISHED', 'INTERRUPTED'].includes(info.status) && seconds < patience; seconds++) {
      await sleep(1000)
      info = await call('GET', `info/${id}`)
    }
    const { status, result = '' } = info
    if (status === 'FINISHED' && result === 'PASSED') return { module: test, result, conditions: [] }
    const log: Entry[] = await call('GET', `log/${id}`)
    const conditions = log.filter(entry => notable.includes(entry.result ?? '')).map(lineOf)
    if (status === 'FINISHED') return { module: test, result, conditions }
    return { module: test, result: 'FAILED', conditions: [`It ended as ${status}.`, ...conditions] }
  }

  return {
    base,
    /** Runs the modules of a plan one by one: their redirect URIs are the same. */
    async runPlan({ name, variant }: Plan, configuration: object): Promise<Outcome[]> {
      const query = { planName: name, variant: JSON.stringify(variant) }
      const { id, modules } = await call('POST', 'plan', query, configuration)
      const outcomes: Outcome[] = []
      for (const module of modules) outcomes.push(await runModule(id, module))
      return outcomes
    },
  }
}
