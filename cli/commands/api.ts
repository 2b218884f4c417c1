// `auth-admin api`: any RPC of Administration, with request and answer as JSON. For what is rare, and for scripts.
import { text as readAll } from 'node:stream/consumers'
import { clone, create, type DescMethod, fromJsonString, type Message, toJson } from '@bufbuild/protobuf'
import { Argument } from 'commander'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { administrationPolicies } from '../../server/policy/administration.js'
import { administer, type GlobalOptions } from '../administration.js'
import type { Command } from '../command.js'
import { end, explain, misuse } from '../exit-codes.js'
import { askText, canAsk, confirm } from '../terminal/ask.js'
import { printJson } from '../terminal/output.js'

/** `login` signs in: it keeps the token in a file instead of printing it. */
type Name = Exclude<keyof typeof Administration.method, 'signIn'>

/** The fields that the requests of changes have in common. */
type Change = Message & { validateOnly?: boolean; confirm?: string }

/** Adds `auth-admin api`. */
export function addApi(program: Command): void {
  const names = Administration.methods.map(({ name }) => name).filter(name => name !== 'SignIn')
  program
    .command('api')
    .description('Call any RPC of auth.v1.Administration, with its request as JSON, and print its answer as JSON.')
    .addArgument(new Argument('<rpc>', 'name of the RPC').choices(names))
    .argument('[request]', 'JSON object with the fields of the request; - for standard input, as for secrets', '{}')
    .yes()
    .json()
    .remarks(`
proto/auth/v1/administration.proto describes the RPCs and their fields, in
snake_case or lowerCamelCase. A terminal asks before a change, for the name
where it can't be undone; elsewhere pass --yes, and the name in \`confirm\`.
Neither is needed with \`validateOnly\`. To sign in, run \`auth-admin login\`.`)
    .examples(
      'api GetService \'{"name": "grades"}\'',
      'api GetAuditEvent \'{"id": 7}\'',
      'api SetPassword - --yes < request.json',
    )
    .action(async (name: string, json: string, _: unknown, command: Command) => {
      const rpc = Administration.methods.find(each => each.name === name)!
      const options = command.optsWithGlobals<GlobalOptions & { yes?: boolean }>()
      const request = readRequest(rpc, json === '-' ? await readAll(process.stdin) : json)
      const own = rpc.localName as Name
      await administer(options, { needs: administrationPolicies[own].signIn }, async api => {
        const call = api[own] as (request: Message) => Promise<object>
        const isChange = rpc.input.fields.some(({ localName }) => localName === 'validateOnly')
        if (isChange && !request.validateOnly) await confirmChange(rpc, request, options, call)
        const answer = create(rpc.output, (await call(request)) as Record<string, unknown>)
        printJson(toJson(rpc.output, answer, { alwaysEmitImplicit: true }))
        if ('sent' in answer && answer.sent === false) end(1)
      })
    })
}

/** Asks before a change, after the service has found no other obstacle: for the name where it requires that. */
async function confirmChange(
  { name, input }: DescMethod,
  request: Change,
  options: GlobalOptions & { yes?: boolean },
  call: (request: Change) => Promise<unknown>,
): Promise<void> {
  const validate = () => call(Object.assign(clone(input, request), { validateOnly: true }))
  try {
    await confirm(`${name} changes the registry. Continue?`, options, validate)
  } catch (error) {
    const { reason, fields } = await explain(error)
    if (reason !== 'CONFIRMATION_NEEDED' || !canAsk(options)) throw error
    request.confirm = await askText(fields?.[0]?.message ?? 'Confirm:', { required: true })
  }
}

function readRequest({ input }: DescMethod, json: string): Change {
  try {
    return fromJsonString(input, json)
  } catch (error) {
    return misuse(`The request is no ${input.name} as JSON: ${(error as Error).message}.`)
  }
}
