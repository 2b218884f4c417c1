/** Secrets that no service may write: run.ts searches for them in the output of all services under test. */
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'

/** Password of the administrator and of all users whom the tests sign up. */
export const password = 'cavalo-marinho-azul-42'

/** Secrets that tests know in advance. */
const known = [password, Buffer.alloc(32, 7).toString('base64'), Buffer.alloc(32, 7).toString('hex')]

/** Patterns of secrets that aren't known in advance. */
const forms: Readonly<Record<string, RegExp>> = {
  token: /\beyJ[\w-]{8,}\.eyJ[\w-]{8,}/,
  hash: /\$2[aby]\$\d\d\$|hmac1:/,
  'private key': /PRIVATE KEY-----/,
  'URL with a password': /\b(?:postgres|postgresql|smtps?):\/\/[^\s:/@"]*:[^\s/@"]+@/,
  // Not a secret, but a fault of the access policy that no single test detects.
  'refusal that no row lists': /that the policy of the RPC does not list/,
  'query string': /[?&](?:username|nickname|password|newpassword|key|activationkey|answer|email)=/i,
}

/** Folder for the output of the services and for the planted secrets; undefined if it isn't searched. */
export const outputFolder = process.env.TEST_OUTPUT

/**
 * Searches what was written to the folder: `.log` for what services wrote, `.report` for what the tests themselves did,
 * whose titles may look like secrets; `.secrets` are planted secrets, one a line. Returns where each secret was found, and
 * how much was searched.
 */
export async function searchOutput(folder: string): Promise<{ found: string[]; bytes: number; planted: number }> {
  const names = await readdir(folder)
  const read = (ending: string) =>
    Promise.all(names.filter(name => name.endsWith(ending)).map(name => readFile(join(folder, name), 'utf8')))
  const planted = new Set([...known, ...(await read('.secrets')).flatMap(text => text.split('\n').filter(Boolean))])
  const found: string[] = []
  let bytes = 0
  const logs = await read('.log')
  for (const text of [...logs, ...(await read('.report'))]) {
    bytes += text.length
    const note = (what: string, at: number) => {
      const start = text.lastIndexOf('\n', at) + 1
      found.push(`${what}: ${text.slice(start, start + 300).split('\n', 1)}`)
    }
    for (const secret of planted) {
      const at = text.indexOf(secret)
      if (at >= 0) note('planted secret', at)
    }
    for (const [what, form] of logs.includes(text) ? Object.entries(forms) : []) {
      const at = text.search(form)
      if (at >= 0) note(what, at)
    }
  }
  return { found, bytes, planted: planted.size }
}
