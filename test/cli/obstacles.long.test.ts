/** Every look-up of `auth-admin` against every obstacle, as a separate program. */
import test from 'ava'
import { spawnCli } from '../_helpers/cli.js'
import { meetObstacles } from '../_helpers/obstacles.js'

const commands = [
  ['organizations', 'list'],
  ['organizations', 'show', '1'],
  ['questions', 'list'],
  ['users', 'list'],
  ['users', 'show', 'admin'],
  ['users', 'why', 'admin'],
  ['keys', 'list'],
  ['audit', 'list'],
  ['audit', 'verify'],
]

for (const args of commands) {
  test(`${args.join(' ')} reports each obstacle in one sentence, and creates no database`, t =>
    meetObstacles(t, env => spawnCli(env, [...args, '--json'])))
}
