import { create, toJson } from '@bufbuild/protobuf'
import { type Command, Option } from 'commander'
import {
  type Organization,
  OrganizationFormSchema,
  OrganizationSchema,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { PartnerOrganizationSchema } from '../../proto/gen/auth/v1/records_pb.js'
import { type OrganizationAttribute, organizationFields } from '../../server/rules/organization.js'
import { type Api, administering, withSignIn } from '../administration.js'
import { withReference } from '../arguments.js'
import { misuse } from '../exit-codes.js'
import { canAsk, confirm, confirmName, given, readText, yesOption } from '../terminal/ask.js'
import { askEdits, askFields, type Field, filled, type Values, withFields } from '../terminal/form.js'
import { jsonOption, printFields, printJson, say } from '../terminal/output.js'
import { type List, type ListOptions, printPages, withPages } from '../terminal/pages.js'
import { type ExportOptions, exportAll, withExport } from './lists/export.js'
import { addImport } from './lists/import.js'
import { listedFields, userList } from './users/output.js'

/** The fields of an organization. */
const fields: readonly Field<OrganizationAttribute>[] = organizationFields.map(
  ({ field, attribute: key, about, required, check }) => ({
    field,
    key,
    about,
    needed: required && 'always',
    check,
    read: key === 'type' ? readType : undefined,
  }),
)

type OrganizationFields = Values<OrganizationAttribute>
interface Options {
  readonly json?: boolean
}

/** Adds `auth-admin organizations`. */
export function addOrganizations(program: Command): void {
  const organizations = program
    .command('organizations')
    .description('Manage partner organizations and their activation keys.')

  withFields(organizations.command('create'), fields)
    .description('Register an active organization, and print it with its activation key.')
    .addOption(jsonOption())
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations create --name 'Escola Azul' --type E")
    .action(
      administering(async (api, options: OrganizationFields & Options) => {
        const values = options.name || !canAsk(options) ? options : await askFields(fields, options)
        if (!values.name) misuse('Pass the name of the organization with --name.')
        const form = create(OrganizationFormSchema, filled(fields, values))
        const { organization } = await api.createOrganization({ form })
        show(organization!, options, `Organization ${organization!.record!.id} is registered.`)
      }),
    )

  withPages(organizations.command('list'), organizationList)
    .description('List organizations by id. Only --json has every field.')
    .addOption(new Option('--active', 'only those with enabled keys').conflicts('inactive'))
    .option('--inactive', 'only those with disabled keys')
    .addOption(new Option('--type <type>', 'only this kind').argParser(readText))
    .addOption(
      new Option('--text <words>', 'only with words that begin like these; case and accents don’t matter').argParser(
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
        await printPages(organizationList, options, async page => {
          const { organizations, nextPageToken } = await api.listOrganizations({ ...filter, ...page })
          return { rows: organizations, nextPageToken }
        })
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

  withFields(withName(organizations.command('edit')), fields)
    .description("Change fields of an organization. An empty value clears a field: --phone ''.")
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations edit 3 --responsible 'Ana Lima' --phone ''")
    .action(
      administering(async (api, name: string | undefined, options: OrganizationFields & Options) => {
        const organization = await nameOf(name, options)
        const read = async () => {
          const { record, etag } = (await api.getOrganization({ organization, omitKeys: true })).organization!
          return { etag, now: record as OrganizationFields }
        }
        const { values, ...update } = await askEdits(fields, options, read)
        const form = create(OrganizationFormSchema, values)
        const edited = (await api.updateOrganization({ organization, form, ...update })).organization!
        show(edited, options, `Organization ${edited.record!.id} is saved.`)
      }),
    )

  withName(organizations.command('activate'))
    .description('Enable the activation keys of an organization and of its users.')
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations activate 'Escola Azul'")
    .action(
      administering(async (api, name: string | undefined, options: Options) => {
        const { organization, changed } = await api.activateOrganization({ organization: await nameOf(name, options) })
        report(organization!, options, `is active${changed ? '' : ' already'}.`)
      }),
    )

  withName(organizations.command('deactivate'))
    .description('Disable the activation keys of an organization and of its users.')
    .addOption(yesOption())
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations deactivate 'Escola Azul'")
    .action(
      administering(async (api, wanted: string | undefined, options: Options & { yes?: boolean }) => {
        const request = { organization: await nameOf(wanted, options) }
        await confirm(
          'The activation keys of the organization and of its users stop working at once. Continue?',
          options,
          () => api.deactivateOrganization({ ...request, validateOnly: true }),
        )
        const { organization, changed } = await api.deactivateOrganization(request)
        report(organization!, options, `is inactive${changed ? '' : ' already'}.`)
      }),
    )

  withName(organizations.command('rotate-key'))
    .description('Replace the activation key, and print the new one. The current key stops working at once.')
    .addOption(yesOption())
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations rotate-key 'Escola Azul'")
    .action(
      administering(async (api, name: string | undefined, options: Options & { yes?: boolean }) => {
        const request = { organization: await nameOf(name, options) }
        await confirm('The present key stops working at once. Replace it?', options, () =>
          api.rotateOrganizationKey({ ...request, validateOnly: true }),
        )
        const rotated = await api.rotateOrganizationKey(request)
        show(
          rotated.organization!,
          options,
          `Organization ${rotated.organization!.record!.id} has a new activation key.`,
        )
      }),
    )

  const members = organizations.command('members').description('Show the users who belong to an organization.')
  withPages(withReference(members.command('list'), 'organization', reference), userList)
    .description('List the users who belong to an organization.')
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations members list 'Escola Azul'")
    .action(
      administering(async (api, name: string | undefined, options: ListOptions) => {
        const organization = await nameOf(name, options)
        await printPages(userList, options, async page => {
          const { users, nextPageToken } = await api.listUsers({ organization, ...page })
          return { rows: users, nextPageToken }
        })
      }),
    )

  withName(withSignIn(organizations.command('delete'), 'deleteOrganization'))
    .description('Delete an organization that has no members. This can’t be undone.')
    .addOption(new Option('--confirm <name>', 'the name again; a terminal prompts for it'))
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations delete 7 --confirm 'Escola Azul'")
    .action(
      administering(async (api, name: string | undefined, options: Options & { confirm?: string }) => {
        const found = await find(api, name, options)
        const { id, name: itsName = '' } = found.record!
        const request = { organization: `#${id}`, etag: found.etag }
        const sentence = `This permanently deletes organization ${itsName} and its key.`
        const validate = (confirm: string) => api.deleteOrganization({ ...request, confirm, validateOnly: true })
        const confirm = await confirmName(sentence, itsName, options, validate)
        await api.deleteOrganization({ ...request, confirm })
        if (options.json) printJson({ id, deleted: true })
        else say(`Organization ${id} (${itsName}) is deleted.`)
      }),
    )

  addImport(organizations, 'organizations')
  withExport(
    organizations
      .command('export')
      .argument('<file>', 'file to write, which ends in .csv or .jsonl; - for standard output'),
    'activation keys',
  )
    .addOption(jsonOption())
    .description('Write all organizations to a file.')
    .addHelpText(
      'after',
      `
The file has the columns of \`organizations import\`. On a server --with-secrets
requires a sign-in within the last 15 minutes.

Examples:
  $ auth-admin organizations export organizations.csv
  $ auth-admin organizations export - --format jsonl`,
    )
    .action(
      administering((api, file: string, options: ExportOptions) => exportAll(api, 'organizations', file, options)),
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
  return given(name, 'Which organization (id or name)?', 'Name the organization: pass its id or name.', options)
}

/** What names an organization. */
const reference = 'id, INEP code or name'

function withName(command: Command): Command {
  return withReference(command, 'organization', reference).addOption(jsonOption())
}

/** Reads a kind of organization; the letters of the contract in any case. */
function readType(value: string): string {
  const text = readText(value)
  return /^[edno]$/i.test(text) ? text.toUpperCase() : text
}

/** An organization in the fields of the contract, and what else administrators see; what is absent is left out. */
function toOutput({ record, members, etag }: Organization) {
  const json = toJson(OrganizationSchema, create(OrganizationSchema, { record: record! })) as { record: object }
  return { ...json.record, ...(members !== undefined && { members }), etag }
}

const organizationList: List<Organization> = {
  name: 'organizations',
  fields: [...listedFields(PartnerOrganizationSchema), 'etag'],
  toOutput,
  head: { titles: ['id', 'name', 'type', 'active', 'phone', 'email'], whole: ['phone'] },
  toCells({ record }) {
    const { id, name, type, active, phone, email } = record!
    return [id, name, type, active === 'true', phone, email]
  },
  empty: 'No organizations match.',
}

function show(organization: Organization, { json }: Options, sentence?: string): void {
  const { etag: _, ...fields } = toOutput(organization)
  if (json) printJson(toOutput(organization))
  else {
    if (sentence) say(sentence)
    printFields(fields)
  }
}

function report(organization: Organization, { json }: Options, what: string): void {
  if (json) printJson(toOutput(organization))
  else say(`Organization ${organization.record!.id} (${organization.record!.name}) ${what}`)
}
