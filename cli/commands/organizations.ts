import { create } from '@bufbuild/protobuf'
import { Option } from 'commander'
import { type Organization, OrganizationFormSchema } from '../../proto/gen/auth/v1/administration_pb.js'
import { nicknameKey } from '../../server/rules/names.js'
import { formFields, type OrganizationAttribute } from '../../server/rules/organization.js'
import type { Api, GlobalOptions as Options } from '../administration.js'
import type { Command } from '../command.js'
import { explain, fail, misuse } from '../exit-codes.js'
import { canAsk, confirm, readNumber, readText } from '../terminal/ask.js'
import { askEdits, askFields, checkOf, type Field, filled, type Values } from '../terminal/form.js'
import { printFields, printJson, say } from '../terminal/output.js'
import { type List, type ListOptions, printPages } from '../terminal/pages.js'
import { type ExportOptions, exportAll, withExport } from './lists/export.js'
import { addImport } from './lists/import.js'
import { organizationOutput, referenceTo, withRecord } from './nouns.js'

/** The fields of an organization. */
const fields: readonly Field<OrganizationAttribute>[] = formFields.map(
  ({ field, attribute: key, about, required, ...row }) => ({
    field,
    key,
    about,
    needed: required && 'always',
    check: checkOf(row),
    read: key === 'type' ? readType : row.kind === 'number' ? text => String(readNumber(0)(text)) : undefined,
  }),
)

type OrganizationFields = Values<OrganizationAttribute | 'mayIssueKeys'>

/** The fields that change: what only administrators permit comes last. */
const editedFields: readonly Field<keyof OrganizationFields>[] = [
  ...fields,
  {
    field: 'may_issue_keys',
    key: 'mayIssueKeys',
    about: 'whether its active ROLE_INSTITUTION users may issue keys to its clients: yes or no',
    check: text => (/^(yes|no|sim|não)$/i.test(text) ? undefined : 'Use yes or no.'),
  },
]

/** Adds `auth-admin organizations`. */
export function addOrganizations(program: Command): void {
  const organizations = program
    .command('organizations')
    .description('Manage partner organizations and their activation keys.')

  organizations
    .command('create')
    .argument('[name]', 'its name, as --name', readText)
    .fields(fields)
    .description('Register an active organization, and print it with its activation key.')
    .option('--yes', 'register it even if another organization has its name')
    .json()
    .remarks(`
Names may repeat. If one exists, a terminal asks before it registers another;
without a terminal the command is refused (5) unless you pass --yes.`)
    .examples("organizations create 'Escola Azul' --type E")
    .administers(async (api, named: string | undefined, given: OrganizationFields & Options & { yes?: boolean }) => {
      const options = { ...given, name: named ?? given.name }
      const values = options.name || !canAsk(options) ? options : await askFields(fields, options)
      const { name } = values
      if (!name) misuse('Name the organization: pass its name.')
      if (!options.yes && (await isTaken(api, name))) {
        const exists = `There is an organization ${name} already`
        if (!canAsk(options)) fail(`${exists}: to register another one, pass --yes.`, 5)
        await confirm(`${exists}. Register another one?`, options)
      }
      const form = toForm(filled(fields, values))
      const { organization } = await api.createOrganization({ form })
      show(organization!, options, `Organization ${organization!.record!.id} is registered.`)
    })

  organizations
    .command('list')
    .pages()
    .description('List organizations by id, with the number of their members. Only --json has every field.')
    .addOption(new Option('--active', 'only those with enabled keys').conflicts('inactive'))
    .option('--inactive', 'only those with disabled keys')
    .option('--type <type>', 'only this kind', readText)
    .option('--text <words>', 'only with words that begin like these; case and accents don’t matter', readText)
    .examples('organizations list --active --json', "organizations list --text 'escola sao paulo'")
    .administers(async (api, options: ListOptions & ListFilter) => {
      const { active, inactive, type, text } = options
      const filter = { ...((active || inactive) && { active: !inactive }), type, text }
      await printPages(organizationList, options, page =>
        api.listOrganizations({ ...filter, ...page, countMembers: true }),
      )
    })

  withRecord(organizations.command('show'), 'organization')
    .description('Show an organization with its activation key.')
    .examples('organizations show 3', "organizations show 'Escola Azul'")
    .administers(async (api, name: string | undefined, options: Options) => {
      const organization = await referenceTo('organization', name, options)
      show((await api.getOrganization({ organization })).organization!, options)
    })

  withRecord(organizations.command('edit'), 'organization')
    .fields(editedFields)
    .description("Change fields of an organization. An empty value clears a field: --phone ''.")
    .examples("organizations edit 3 --responsible 'Ana Lima' --phone ''")
    .administers(async (api, name: string | undefined, options: OrganizationFields & Options) => {
      const organization = await referenceTo('organization', name, options)
      const read = async () => {
        const { record, etag, ...more } = (await api.getOrganization({ organization, omitKeys: true })).organization!
        const mayIssueKeys = more.mayIssueKeys ? 'yes' : 'no'
        const now = Object.entries({ ...more, ...record!, mayIssueKeys }).map(([key, value]) => [
          key,
          value && String(value),
        ])
        return { etag, now: Object.fromEntries(now) as OrganizationFields }
      }
      const { values, ...update } = await askEdits(editedFields, options, read)
      const form = toForm(values)
      const edited = (await api.updateOrganization({ organization, form, ...update })).organization!
      show(edited, options, `Organization ${edited.record!.id} is saved.`)
    })

  addImport(organizations, 'organizations')
  withExport(
    organizations
      .command('export')
      .argument('<file>', 'file to write, which ends in .csv or .jsonl; - for standard output'),
    'activation keys',
  )
    .json()
    .description('Write all organizations to a file.')
    .remarks(`
The file has the columns of \`organizations import\`. On a server --with-secrets
requires a sign-in within the last 15 minutes.`)
    .examples('organizations export organizations.csv', 'organizations export - --format jsonl')
    .administers((api, file: string, options: ExportOptions) => exportAll(api, 'organizations', file, options))
}

interface ListFilter {
  readonly active?: boolean
  readonly inactive?: boolean
  readonly type?: string
  readonly text?: string
}

/** Whether an organization has this name. */
async function isTaken(api: Api, name: string): Promise<boolean> {
  try {
    const { organization } = await api.getOrganization({ organization: name, omitKeys: true })
    // Digits may be the id or the INEP code of one with another name.
    return nicknameKey(organization!.record!.name!) === nicknameKey(name)
  } catch (error) {
    const { reason } = await explain(error)
    // More than one has it.
    if (reason === 'INVALID_ARGUMENT') return true
    if (reason === 'RECORD_NOT_FOUND') return false
    throw error
  }
}

/** The form of these texts, some of which are numbers. */
function toForm(values: OrganizationFields) {
  const given = formFields.flatMap(({ attribute, kind }) => {
    const text = values[attribute]
    return text === undefined ? [] : [[attribute, kind === 'number' ? Number(text) : text]]
  })
  const { mayIssueKeys } = values
  return create(OrganizationFormSchema, {
    ...Object.fromEntries(given),
    ...(mayIssueKeys && { mayIssueKeys: /^(yes|sim)$/i.test(mayIssueKeys) }),
  })
}

/** Reads a kind of organization; the letters of the contract in any case. */
function readType(value: string): string {
  const text = readText(value)
  return /^[edno]$/i.test(text) ? text.toUpperCase() : text
}

const organizationList: List<Organization, 'organizations'> = {
  name: 'organizations',
  toOutput: organizationOutput,
  head: { titles: ['id', 'name', 'inep', 'type', 'active', 'members', 'phone', 'email'], whole: ['inep', 'phone'] },
  toCells({ record, members }) {
    const { id, name, inepCode, type, active, phone, email } = record!
    return [id, name, inepCode, type, active === 'true', members, phone, email]
  },
  empty: 'No organizations match.',
}

function show(organization: Organization, { json }: Options, sentence?: string): void {
  if (json) printJson(organizationOutput(organization))
  else {
    if (sentence) say(sentence)
    printOrganization(organization)
  }
}

/** Prints an organization in lines. */
export function printOrganization(organization: Organization): void {
  const { etag: _, ...fields } = organizationOutput(organization)
  printFields({ ...fields, active: organization.record!.active === 'true' })
}
