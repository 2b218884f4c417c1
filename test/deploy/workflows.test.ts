/** The workflows of a fork on GitHub: what they run, and with which rights. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import test from 'ava'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const read = (name: string) => readFileSync(join(root, name), 'utf8')
const workflows = readdirSync(join(root, '.github/workflows')).map(name => `.github/workflows/${name}`)

test('each action is pinned by its commit', t => {
  const used = workflows.flatMap(file => read(file).match(/\buses: .*/g) ?? [])
  t.true(used.length > 5)
  for (const action of used) t.regex(action, /^uses: [\w-]+\/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$/)
})

test('a workflow may read the repository at most, a job that may do more isn’t run for changes, and none runs as root', t => {
  for (const file of workflows) {
    const text = read(file)
    t.regex(text, /^permissions:( \{\}|\n {2}contents: read)\n(?! )/m, file)
    if (/: write$/m.test(text)) t.notRegex(text, /pull_request|branches:/, file)
    for (const [line] of text.matchAll(/.*\bsudo .*/g)) t.regex(line, /sudo (apt-get|sysctl) /, file)
    t.notRegex(text, /pull_request_target/, file)
  }
})

test('the placeholder of CODEOWNERS is named where releases are described', t => {
  t.regex(read('.github/CODEOWNERS'), /^\* @OWNER$/m)
  t.regex(read('RELEASING.md'), /`\.github\/CODEOWNERS` put your account or team\s+in place of `OWNER`/)
})
