/** What an OpenAPI document says about refusals: their schemas, reasons and examples. */
import { FieldReason, Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { statusOf } from '../../server/requests/reasons.js'
import { Refusal } from '../../server/requests/refusal.js'
import { refusalsOf, routes } from '../operations.js'
import { gatewayReasons, type Problem, problemDocument, problemOfReason } from '../problem.js'
import { type Comments, firstSentence } from './comments.js'
import type { Schema } from './schemas.js'

/** The schema of problem documents. */
export const problemSchema: Schema = {
  type: 'object',
  description: 'Why a request is refused (RFC 9457).',
  properties: {
    type: { type: 'string', format: 'uri', description: 'The reason as a URI.' },
    title: { type: 'string', description: 'The reason in words.' },
    status: { type: 'integer', description: 'HTTP status.' },
    detail: {
      type: 'string',
      description: 'Cause and suggested action, in Portuguese or English by `Accept-Language`.',
    },
    reason: { $ref: '#/components/schemas/Reason' },
    requestId: { type: 'string', description: 'Id of the request, as the log has it.' },
    errors: {
      type: 'array',
      description: 'Every invalid field.',
      items: {
        type: 'object',
        properties: {
          field: { type: 'string', description: 'Name of the field.' },
          reason: { $ref: '#/components/schemas/FieldReason' },
          message: { type: 'string', description: 'How to correct it, in the language of `detail`.' },
          suggestion: { type: 'string', description: 'A value that is accepted now, such as a free nickname.' },
        },
        required: ['field', 'reason', 'message'],
      },
    },
  },
  required: ['type', 'title', 'status', 'detail', 'reason', 'requestId'],
}

/** Names of reasons over HTTP. */
const reasonNames = [
  ...new Set([...routes.flatMap(route => [...refusalsOf(route).values()].flat()), ...Object.keys(gatewayReasons)]),
].sort()

/** The schema of the names of reasons. */
export const reasonSchema: Schema = {
  type: 'string',
  description: 'Why a request is refused: `x-reasons` has the meaning of each reason, and what to do about it.',
  enum: reasonNames,
}

/** The schema of what is wrong with a field. */
export function describeFieldReasons(comments: Comments): Schema {
  const names = Object.keys(FieldReason).filter(name => Number.isNaN(Number(name)) && name !== 'UNSPECIFIED')
  const meanings = names.map(name => `- \`${name}\`: ${comments.get(`auth.v1.FieldReason.FIELD_REASON_${name}`)}`)
  const introduction = 'What is wrong with a field. More may follow: show the text of one that you don’t know.\n'
  return { type: 'string', description: [introduction, ...meanings].join('\n'), enum: names }
}

/** Status, gRPC code, meaning and remedy of each reason. */
export function describeReasons(comments: Comments): Schema {
  return Object.fromEntries(
    reasonNames.map(name => {
      const reason = asReason(name)
      const about = aboutReason(name, comments)
      const meaning = firstSentence(about)
      const remedy = about.slice(meaning.length).trim()
      if (reason === undefined) return [name, { status: asOfGateway(name).status, meaning, remedy }]
      return [name, { status: statusOf(reason), code: new Refusal(reason).codeName, meaning, remedy }]
    }),
  )
}

/** The reason of a service with this name; undefined for one of the gateway alone. */
function asReason(name: string): Reason | undefined {
  return Reason[name as keyof typeof Reason]
}

function asOfGateway(name: string) {
  return gatewayReasons[name as keyof typeof gatewayReasons]
}

/** Meaning and remedy of a reason. */
export function aboutReason(name: string, comments: Comments): string {
  const comment = comments.get(`auth.v1.Reason.REASON_${name}`)
  return comment?.replace(/ \[[^\]]*\]$/, '') ?? asOfGateway(name).about
}

/** The problem document of a reason, as the gateway writes it. */
export function exampleOfProblem(status: number, name: string, comments: Comments): unknown {
  const reason = asReason(name)
  const problem: Problem =
    reason === undefined
      ? { status, reason: name, detail: firstSentence(aboutReason(name, comments)), headers: {} }
      : { ...problemOfReason(reason), status }
  return JSON.parse(problemDocument(problem, '0f8fad5b-d9cb-469f-a165-70867728950e'))
}
