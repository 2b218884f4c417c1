import { create, toJson } from '@bufbuild/protobuf'
import { type Command, Option } from 'commander'
import {
  type Organization,
  type OrganizationForm,
  OrganizationFormSchema,
  OrganizationSchema,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { isEmailAddress } from '../../server/rules/names.js'
import { type Api, administering, withSignIn } from '../administration.js'
import { misuse } from '../exit-codes.js'
import { flagOf, withReference } from '../references.js'
import { askText, canAsk, confirm, confirmName, given, readText, textProblem } from '../terminal/ask.js'
import { jsonOption, printFields, printJson, printTable, say } from '../terminal/output.js'
import { inFields, type ListOptions, printList, readPages, withPages } from '../terminal/pages.js'
import { printUsers, userOutput } from './users/output.js'

/** Flags of an organization's details, by their names in the form. */
const details = [
  { field: 'name', key: 'name', about: 'name; others may have the same' },
  { field: 'email', key: 'email', about: 'e-mail address that activation keys are sent to (RFC 5321)' },
  { field: 'address', key: 'address', about: 'postal address' },
  { field: 'inep_code', key: 'inepCode', about: 'INEP code of a school; no two have the same' },
  { field: 'login', key: 'login', about: 'login name in systems of its own' },
  { field: 'phone', key: 'phone', about: 'telephone number' },
  { field: 'responsible', key: 'responsible', about: 'person responsible' },
  { field: 'type', key: 'type', about: 'kind, such as E school, D civil defense, N non-governmental, O others' },
  { field: 'website', key: 'website', about: 'address of the web site' },
] as const satisfies readonly { key: keyof OrganizationForm; field: string; about: string }[]

type Details = Partial<Record<(typeof details)[number]['key'], string>>
interface Options {
  readonly json?: boolean
}

/** Adds `auth-admin organizations`. */
export function addOrganizations(program: Command): void {
  const organizations = program.command('organizations').description('Partner organizations and their activation keys')

  withDetails(organizations.command('add'))
    .description('Register an active organization. Prints it with its activation key.')
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations add --name 'Escola Azul' --type E")
    .action(
      administering(async (api, options: Details & Options) => {
        const values = options.name || !canAsk(options) ? options : await askForEach(options)
        if (!values.name) misuse('Give the organization a name with --name.')
        const form = create(OrganizationFormSchema, valuesOf(values))
        const { organization } = await api.createOrganization({ form })
        show(organization!, options, `Organization ${organization!.record!.id} is registered.`)
      }),
    )

  withPages(organizations.command('list'))
    .description('List organizations by id. Only --json holds every field.')
    .addOption(new Option('--active', 'only those whose keys work').conflicts('inactive'))
    .option('--inactive', 'only those whose keys do not work')
    .addOption(new Option('--type <type>', 'only this kind').argParser(readText))
    .addOption(
      new Option('--text <words>', 'only with these beginnings of words, whatever case and accents').argParser(
        readText,
      ),
    )
    .addHelpText(
      'after',
      "\nExamples:\n  $ auth-admin organizations list --active --json\n  $ auth-admin organizations list --text 'escola sao paulo'",
    )
    .action(
      administering(async (api, options: ListOptions & ListFilter) => {
        const { active, inactive, type, text } = options
        const filter = { ...((active || inactive) && { active: !inactive }), type, text }
        const listed = await readPages(
          options,
          async page => {
            const { organizations, nextPageToken } = await api.listOrganizations({ ...filter, ...page })
            return { rows: organizations, nextPageToken }
          },
          toOutput,
        )
        if (inFields(options)) {
          return printList('organizations', { ...listed, rows: listed.rows.map(toOutput) }, options)
        }
        const cells = listed.rows.map(({ record }) => {
          const { id, name, type, active, phone, email } = record!
          return [id, name, type, active === 'true', phone, email]
        })
        const head = ['id', 'name', 'type', 'active', 'phone', 'email']
        printTable(head, cells, 'There are no such organizations.', listed)
      }),
    )

  withName(organizations.command('show'))
    .description('Show an organization with its activation key.')
    .addHelpText(
      'after',
      "\nExamples:\n  $ auth-admin organizations show 3\n  $ auth-admin organizations show 'Escola Azul'",
    )
    .action(
      administering(async (api, name: string | undefined, options: Options) => {
        const organization = await nameOf(name, options)
        show((await api.getOrganization({ organization })).organization!, options)
      }),
    )

  withDetails(withName(organizations.command('edit')))
    .description("Change details of an organization. An empty value clears a detail: --phone ''.")
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations edit 3 --responsible 'Ana Lima' --phone ''")
    .action(
      administering(async (api, name: string | undefined, options: Details & Options) => {
        const organization = await nameOf(name, options)
        const given = details.some(({ key }) => options[key] !== undefined)
        if (!given && !canAsk(options)) {
          misuse(`Say what to change: give one or more of ${details.map(flagOf).join(', ')}.`)
        }
        if (options.name !== undefined && options.name.trim() === '') {
          misuse('An organization needs a name: give --name a text.')
        }
        const now = given ? undefined : (await api.getOrganization({ organization, omitKeys: true })).organization!
        const values = now ? await askForEach(options, now.record) : options
        const paths = details.filter(({ key }) => values[key] !== undefined).map(({ field }) => field)
        const edited = await api.updateOrganization({
          organization,
          form: create(OrganizationFormSchema, valuesOf(values)),
          updateMask: { paths },
          // Whoever answered questions saw this one.
          etag: now?.etag ?? '',
        })
        show(edited.organization!, options, `Organization ${edited.organization!.record!.id} is saved.`)
      }),
    )

  withName(organizations.command('activate'))
    .description('Let the keys of an organization and of its users work.')
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations activate 'Escola Azul'")
    .action(
      administering(async (api, name: string | undefined, options: Options) => {
        const { organization, changed } = await api.activateOrganization({ organization: await nameOf(name, options) })
        tell(organization!, options, `is active${changed ? '' : ' already'}.`)
      }),
    )

  withName(organizations.command('deactivate'))
    .description('Stop the keys of an organization and of its users from activating anyone.')
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations deactivate 'Escola Azul'")
    .action(
      administering(async (api, name: string | undefined, options: Options) => {
        const { organization, changed } = await api.deactivateOrganization({
          organization: await nameOf(name, options),
        })
        tell(organization!, options, `is inactive${changed ? '' : ' already'}.`)
      }),
    )

  withName(organizations.command('rotate-key'))
    .description('Replace the activation key: the old one stops working at once. Prints the new one.')
    .option('--yes', 'don’t ask whether to do it')
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations rotate-key 'Escola Azul'")
    .action(
      administering(async (api, name: string | undefined, options: Options & { yes?: boolean }) => {
        const organization = await nameOf(name, options)
        await confirm('Whoever holds the old key can activate nobody with it any more. Replace it?', options)
        const rotated = await api.rotateOrganizationKey({ organization })
        show(
          rotated.organization!,
          options,
          `Organization ${rotated.organization!.record!.id} has a new activation key.`,
        )
      }),
    )

  withName(organizations.command('members'))
    .description('List the users who belong to an organization.')
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations members 'Escola Azul'")
    .action(
      administering(async (api, name: string | undefined, options: Options) => {
        const organization = await nameOf(name, options)
        const listed = await readPages({ all: true }, async page => {
          const { users, nextPageToken } = await api.listUsers({ organization, ...page })
          return { rows: users, nextPageToken }
        })
        if (options.json) return printJson(listed.rows.map(userOutput))
        printUsers(listed)
      }),
    )

  withName(withSignIn(organizations.command('delete'), 'deleteOrganization'))
    .description('Remove an organization that has no members. This can’t be undone.')
    .addOption(new Option('--confirm <name>', 'its name, once more; asked for at a terminal'))
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations delete 7 --confirm 'Escola Azul'")
    .action(
      administering(async (api, name: string | undefined, options: Options & { confirm?: string }) => {
        const found = await find(api, name, options)
        const { id, name: itsName = '' } = found.record!
        const organization = `#${id}`
        const confirm = await confirmName(
          `Organization ${itsName} and its key will be gone for good.`,
          itsName,
          options,
        )
        await api.deleteOrganization({ organization, confirm, etag: found.etag })
        if (options.json) printJson({ id, deleted: true })
        else say(`Organization ${id} (${itsName}) is removed.`)
      }),
    )
}

interface ListFilter {
  readonly active?: boolean
  readonly inactive?: boolean
  readonly type?: string
  readonly text?: string
}

async function find(api: Api, name: string | undefined, options: Options): Promise<Organization> {
  const organization = await nameOf(name, options)
  return (await api.getOrganization({ organization, omitKeys: true })).organization!
}

function nameOf(name: string | undefined, options: Options): Promise<string> {
  return given(name, 'Which organization (id or name)?', 'Say which organization: give its id or name.', options)
}

function withName(command: Command): Command {
  return withReference(command, 'organization', 'id, INEP code or name').addOption(jsonOption())
}

function withDetails(command: Command): Command {
  for (const detail of details) {
    const parse = detail.key === 'type' ? readType : readText
    command.addOption(new Option(`${flagOf(detail)} <text>`, detail.about).argParser(parse))
  }
  return command.options.some(({ long }) => long === '--json') ? command : command.addOption(jsonOption())
}

/** Reads a kind of organization; the letters of the contract in any case. */
function readType(value: string): string {
  const text = readText(value)
  return /^[edno]$/i.test(text) ? text.toUpperCase() : text
}

function valuesOf(values: Details): Details {
  return Object.fromEntries(details.flatMap(({ key }) => (values[key] ? [[key, values[key]]] : [])))
}

/** Asks for each detail that no flag gives, beginning with what there is now. */
async function askForEach(options: Details, now?: Organization['record']): Promise<Details> {
  say(now ? 'Enter keeps what there is, Tab edits it, Backspace empties it.' : 'Leave empty what there is none of.')
  const values: Details = { ...options }
  for (const { key, about } of details) {
    if (values[key] !== undefined) continue
    const answer = await askText(`${about[0]!.toUpperCase()}${about.slice(1)}:`, {
      required: key === 'name',
      check: text =>
        key === 'email' && text !== '' && !isEmailAddress(text)
          ? 'This is no valid e-mail address.'
          : textProblem(text),
      fallback: now?.[key] ?? '',
    })
    values[key] = key === 'type' ? readType(answer) : answer
  }
  return values
}

/** An organization in the fields of the contract, and what else administrators see; what is absent is left out. */
function toOutput({ record, members, etag }: Organization) {
  const json = toJson(OrganizationSchema, create(OrganizationSchema, { record: record! })) as { record: object }
  return { ...json.record, ...(members !== undefined && { members }), etag }
}

function show(organization: Organization, { json }: Options, sentence?: string): void {
  const { etag: _, ...fields } = toOutput(organization)
  if (json) printJson(toOutput(organization))
  else {
    if (sentence) say(sentence)
    printFields(fields)
  }
}

function tell(organization: Organization, { json }: Options, what: string): void {
  if (json) printJson(toOutput(organization))
  else say(`Organization ${organization.record!.id} (${organization.record!.name}) ${what}`)
}
