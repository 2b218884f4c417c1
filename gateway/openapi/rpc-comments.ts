/** The last paragraph of each RPC's comment in proto/: where HTTP has it, and why it refuses, with the gRPC codes. */
import type { DescService } from '@bufbuild/protobuf'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { administrationPolicies } from '../../server/policy/administration.js'
import { type Policy, type ReasonName, reasonsOf, sharedReasons } from '../../server/policy/policy.js'
import { clientServices } from '../../server/policy/services.js'
import { Refusal } from '../../server/requests/refusal.js'

/** All services, each with the policies of its RPCs. */
export const services: typeof clientServices = [...clientServices, [Administration, administrationPolicies]]

/** The file that defines a service. */
export const fileOf = ({ file }: DescService): string => `proto/${file.name}.proto`

/** Maximum characters of a line of a definition. */
const width = 128

/** Gives each RPC in the text of a definition its last paragraph, instead of the current one. */
export function withLastParagraphs(
  text: string,
  service: DescService,
  policies: Readonly<Record<string, Policy>>,
): string {
  return service.methods.reduce((all, { name, localName }) => {
    const paragraph = lastParagraph(policies[localName]!)
      .flatMap(line => wrap(line, width - '  // '.length))
      .map(line => `  // ${line}\n`)
      .join('')
    const comment = new RegExp(
      `((?:  //.*\\n)*?)(?:  //\\n  // (?:HTTP|Errors): .*\\n(?:  //.*\\n)*)?(?=  rpc ${name}\\()`,
    )
    return all.replace(comment, (_, rest: string) => (paragraph ? `${rest}  //\n${paragraph}` : rest))
  }, text)
}

/** The lines of the paragraph. */
function lastParagraph(policy: Policy): string[] {
  const own = reasonsOf(policy).filter(reason => !(sharedReasons as readonly string[]).includes(reason))
  return [
    ...(policy.http ? [`HTTP: ${placeOf(policy.http)}`] : []),
    ...(own.length > 0 ? [`Errors: ${own.map(withCode).join(', ')}`] : []),
  ]
}

function placeOf({ method, path, revisions }: NonNullable<Policy['http']>): string {
  if (revisions === undefined) return `${method} ${path}`
  return `${method} ${path}, ${revisions.length === 0 ? 'at the base path only' : `revision ${revisions.join()} only`}`
}

/** A reason with its gRPC code. */
export function withCode(reason: ReasonName): string {
  return `${reason} (${new Refusal(Reason[reason]).codeName})`
}

/** A comment without the paragraph, for documents that have it as data. */
export function withoutLastParagraph(comment: string | undefined): string | undefined {
  return comment?.replace(/\n\n(?:HTTP|Errors): .*$/, '')
}

/** Breaks a text into lines. */
function wrap(text: string, limit: number): string[] {
  const lines = ['']
  for (const word of text.split(' ')) {
    const line = lines.at(-1)!
    if (line === '') lines[lines.length - 1] = word
    else if (line.length + 1 + word.length <= limit) lines[lines.length - 1] = `${line} ${word}`
    else lines.push(word)
  }
  return lines
}
