/** The comments of the definitions as readers of the HTTP interface need them: with its paths and names of fields. */
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { Health } from '../../proto/gen/grpc/health/v1/health_pb.js'
import { routes } from '../operations.js'
import type { Comments } from './comments.js'

/** RPCs by name, with method and path. */
const paths = new Map(
  routes.flatMap(({ rpc, method, path }) =>
    rpc && rpc.parent !== Health ? [[rpc.name, `\`${method} ${path}\``]] : [],
  ),
)

/** Fields whose name in JSON is another. */
const fields = new Map(
  [Users, ForgotPasswords].flatMap(({ file }) =>
    file.messages.flatMap(message =>
      message.fields.flatMap(({ name, jsonName }) => (name === jsonName ? [] : [[name, jsonName]])),
    ),
  ),
)

const rpcName = new RegExp(`(?<![/.])\`?\\b(${[...paths.keys()].join('|')})\\b\`?`, 'g')
const fieldName = new RegExp(`\`(${[...fields.keys()].join('|')})\``, 'g')

/** Replaces the names of RPCs by their paths, and those of fields by the ones of JSON. */
export function forHttp(comments: Comments): Comments {
  const replaced = (text: string) =>
    text.replace(rpcName, (_, name) => paths.get(name)!).replace(fieldName, (_, name) => `\`${fields.get(name)}\``)
  return new Map([...comments].map(([name, text]) => [name, replaced(text)]))
}
