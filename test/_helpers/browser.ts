/** Headless Chromium, if it is installed, and the errors of a page in it. */
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core'
import { testWith } from './tools.js'
import { root } from './versions.js'

const names = ['chromium-headless-shell', 'chromium', 'chromium-browser', 'google-chrome']

/** Its path, by the names of Debian and other distributions, first that without windows; empty if it isn't installed. */
const executablePath = execFileSync(
  'sh',
  ['-c', 'for name; do command -v "$name" && break; done || true', 'sh', ...names],
  { encoding: 'utf8' },
).trim()

/** A test in Chromium; skipped if it isn't installed. */
export const browserTest = testWith('Chromium', executablePath !== '')

/** A page, and its errors. */
export interface Watched {
  readonly page: Page
  /** Errors and hints on its console, violations of its policy, and requests to other origins than those allowed. */
  readonly faults: string[]
}

let browser: Promise<Browser> | undefined
test.after.always(async () => (await browser)?.close())

/**
 * Opens a page that may send requests to these origins. `expected` matches errors on the console that aren't faults: Chromium
 * writes one for each answer that isn't 2xx.
 */
export async function openPage(
  t: ExecutionContext,
  origins: readonly string[],
  { expected, ...options }: BrowserContextOptions & { readonly expected?: RegExp } = {},
): Promise<Watched> {
  browser ??= chromium.launch({ executablePath, args: ['--no-sandbox'] })
  const context = await (await browser).newContext(options)
  t.teardown(() => context.close())
  const page = await context.newPage()
  const faults: string[] = []
  page.on('console', message => {
    const text = message.text()
    if (['error', 'warning', 'verbose'].includes(message.type()) && !expected?.test(text)) faults.push(text)
  })
  page.on('pageerror', error => faults.push(String(error)))
  page.on('request', request => {
    const { origin, protocol } = new URL(request.url())
    if (!origins.includes(origin) && protocol !== 'data:') faults.push(`request to ${request.url()}`)
  })
  return { page, faults }
}

const axe = () => readFileSync(join(root, 'node_modules/axe-core/axe.min.js'), 'utf8')

/** The serious and critical findings of axe-core in a page: the rule, and the elements that break it. */
export async function accessibilityViolations(page: Page): Promise<string[]> {
  // By the debugger, to which the policy of the page doesn't apply.
  await page.evaluate(axe())
  const violations = (await page.evaluate('axe.run().then(({ violations }) => violations)')) as readonly {
    readonly id: string
    readonly impact: string
    readonly nodes: readonly { readonly html: string }[]
  }[]
  return violations
    .filter(({ impact }) => ['serious', 'critical'].includes(impact))
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(' | ')}`)
}
