import { type Command, InvalidArgumentError, Option } from 'commander'
import type { Registry } from '../server/models/definemodels.js'
import type { OrganizationDetails, OrganizationRow } from '../server/models/organization.js'
import { isEmailAddress, nicknameKey } from '../server/names.js'
import { askText, canAsk, given, readText } from './ask.js'
import { fail, misuse } from './failure.js'
import { jsonOption, printFields, printJson, printTable, say } from './output.js'
import { type Session, withRegistry } from './session.js'

/** Flags of an organization's details; each field of the contract beside its column. */
const details = [
  { field: 'name', column: 'name', about: 'name, unique whatever its case' },
  { field: 'email', column: 'email', about: 'e-mail address that activation keys are sent to (RFC 5321)' },
  { field: 'address', column: 'address', about: 'postal address' },
  { field: 'inep_code', column: 'inepCode', about: 'INEP code of a school' },
  { field: 'login', column: 'login', about: 'login name in systems of its own' },
  { field: 'phone', column: 'phone', about: 'telephone number' },
  { field: 'responsible', column: 'responsible', about: 'person responsible' },
  { field: 'type', column: 'type', about: 'E school, D civil defense, N non-governmental, O others' },
  { field: 'website', column: 'website', about: 'address of the web site' },
] as const

type Given = Partial<Record<keyof OrganizationDetails, string>> & { json?: boolean }

/** Adds `auth-admin organizations`. */
export function addOrganizations(program: Command): void {
  const organizations = program.command('organizations').description('Partner organizations and their activation keys')

  withDetails(organizations.command('add'))
    .description('Register an active organization. Prints it with its activation key.')
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations add --name 'Escola Azul' --type E")
    .action(async (options: Given) => {
      const values = await askForDetails(options)
      const added = await withRegistry(async ({ registry, change }) => {
        const form = toForm(values)
        if (form.name === undefined) return misuse('Give the organization a name with --name.')
        const { name, nameKey } = form as { name: string; nameKey: string }
        const row = await change(async t => {
          const result = await unique(registry.organizations.add({ ...form, name, nameKey }, t), name)
          return { result, event: { action: 'organization.add' as const, object: `organization:${result.id}` } }
        })
        return toJson(row, registry)
      })
      show(added, options, `Organization ${added.id} is registered.`)
    })

  organizations
    .command('list')
    .description('List organizations by id. Only --json holds every field.')
    .addOption(new Option('--active', 'only those whose keys work').conflicts('inactive'))
    .option('--inactive', 'only those whose keys do not work')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin organizations list --active --json')
    .action(async (options: { active?: boolean; inactive?: boolean; json?: boolean }) => {
      const rows = await withRegistry(async ({ registry }) => {
        const filter = options.active ? { active: true } : options.inactive ? { active: false } : {}
        const all = await registry.organizations.list(filter)
        return all.map(row => toJson(row, registry))
      })
      if (options.json) return printJson(rows)
      const cells = rows.map(row => [row.id, row.name, row.type, row.active === 'true', row.phone, row.email])
      printTable(['id', 'name', 'type', 'active', 'phone', 'email'], cells, 'There are no such organizations.')
    })

  withName(organizations.command('show'))
    .description('Show an organization with its activation key.')
    .addHelpText(
      'after',
      "\nExamples:\n  $ auth-admin organizations show 3\n  $ auth-admin organizations show 'Escola Azul'",
    )
    .action(async (name: string | undefined, options: { json?: boolean }) => {
      const wanted = await nameOf(name, options)
      const found = await withRegistry(async ({ registry }) =>
        toJson(await findOrganization(registry, wanted), registry),
      )
      show(found, options)
    })

  withDetails(withName(organizations.command('edit')))
    .description("Change details of an organization. An empty value clears a detail: --phone ''.")
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations edit 3 --responsible 'Ana Lima' --phone ''")
    .action(async (name: string | undefined, options: Given) => {
      const wanted = await nameOf(name, options)
      const edited = await withRegistry(async session => {
        const { registry, change } = session
        const before = await findOrganization(registry, wanted)
        const { id } = before
        const form = toForm(await askForChanges(options, before))
        if (form.name === null) misuse('An organization needs a name: give --name a text.')
        const row = await change(async t => {
          const before = await lockOrganization(session, id, t)
          const changed = details.filter(({ column }) => column in form && form[column] !== before[column])
          if (changed.length === 0) return { result: before }
          await unique(registry.organizations.edit(id, form as Partial<OrganizationDetails>, t), String(form.name))
          const reason = changed.map(({ field }) => field).join(',')
          const event = { action: 'organization.edit', object: `organization:${id}`, reason } as const
          return { result: await lockOrganization(session, id, t), event }
        })
        return toJson(row, registry)
      })
      show(edited, options, `Organization ${edited.id} is saved.`)
    })

  const verbs = [
    { verb: 'activate', active: true, about: 'Let the keys of an organization and of its users work.' },
    {
      verb: 'deactivate',
      active: false,
      about: 'Stop the keys of an organization and of its users from activating anyone.',
    },
  ] as const
  for (const { verb, active, about } of verbs) {
    withName(organizations.command(verb))
      .description(about)
      .addHelpText('after', `\nExample:\n  $ auth-admin organizations ${verb} 'Escola Azul'`)
      .action(async (name: string | undefined, options: { json?: boolean }) => {
        const wanted = await nameOf(name, options)
        const { organization, changed } = await withRegistry(async session => {
          const { registry, change } = session
          const { id } = await findOrganization(registry, wanted)
          return change(async t => {
            const row = await lockOrganization(session, id, t)
            const changed = row.active !== active
            if (changed) await registry.organizations.setActive(id, active, t)
            const result = { organization: toJson(await lockOrganization(session, id, t), registry), changed }
            const event = { action: `organization.${verb}`, object: `organization:${id}` } as const
            return { result, ...(changed && { event }) }
          })
        })
        const state = active ? 'active' : 'inactive'
        if (options.json) return printJson(organization)
        say(`Organization ${organization.id} (${organization.name}) is ${state}${changed ? '' : ' already'}.`)
      })
  }

  withName(organizations.command('rotate-key'))
    .description('Replace the activation key: the old one stops working at once. Prints the new one.')
    .addHelpText('after', "\nExample:\n  $ auth-admin organizations rotate-key 'Escola Azul'")
    .action(async (name: string | undefined, options: { json?: boolean }) => {
      const wanted = await nameOf(name, options)
      const rotated = await withRegistry(async session => {
        const { registry, change } = session
        const { id } = await findOrganization(registry, wanted)
        return change(async t => {
          await lockOrganization(session, id, t)
          await registry.organizations.rotateKey(id, t)
          const result = toJson(await lockOrganization(session, id, t), registry)
          return { result, event: { action: 'organization.rotate-key' as const, object: `organization:${id}` } }
        })
      })
      show(rotated, options, `Organization ${rotated.id} has a new activation key.`)
    })
}

/** The organization with an id (`3`, `#3`) or a name in any spelling. Fails when there is none. */
export async function findOrganization({ organizations }: Registry, wanted: string) {
  const id = /^#?(\d{1,9})$/.exec(wanted.trim())?.[1]
  const byId = id === undefined ? undefined : await organizations.find({ id: Number(id) })
  const found = byId ?? (await organizations.find({ nameKey: nicknameKey(wanted) }))
  return found ?? fail(`There is no organization ${wanted.trim()}: see \`auth-admin organizations list\`.`)
}

async function lockOrganization({ registry }: Session, id: number, t: Parameters<Parameters<Session['change']>[0]>[0]) {
  return (await registry.organizations.lock(id, t)) ?? fail('The organization is gone.')
}

function withName(command: Command): Command {
  return command.argument('[organization]', 'id or name').addOption(jsonOption())
}

function withDetails(command: Command): Command {
  for (const { field, column, about } of details) {
    const flag = `--${field.replace('_', '-')} <text>`
    command.addOption(new Option(flag, about).argParser(column === 'type' ? readType : readText))
  }
  return command.options.some(({ long }) => long === '--json') ? command : command.addOption(jsonOption())
}

function readType(value: string): string {
  const type = value.trim().toUpperCase()
  if (type !== '' && !['E', 'D', 'N', 'O'].includes(type)) throw new InvalidArgumentError('Give E, D, N or O.')
  return type
}

function nameOf(name: string | undefined, options: { json?: boolean }): Promise<string> {
  return given(name, 'Which organization (id or name)?', 'Say which organization: give its id or name.', options)
}

async function askForDetails(options: Given): Promise<Given> {
  if (options.name || !canAsk(options)) return options
  return askForEach(options)
}

async function askForChanges(options: Given, now: OrganizationRow): Promise<Given> {
  if (details.some(({ column }) => options[column] !== undefined)) return options
  const flags = details.map(({ field }) => `--${field.replace('_', '-')}`)
  if (!canAsk(options)) misuse(`Say what to change: give one or more of ${flags.join(', ')}.`)
  return askForEach(options, now)
}

/** Asks for each detail that no flag gives, beginning with what there is now. */
async function askForEach(options: Given, now?: OrganizationRow): Promise<Given> {
  say(now ? 'Enter keeps what there is, Tab edits it, Backspace empties it.' : 'Leave empty what there is none of.')
  const values: Given = { ...options }
  for (const { column, about } of details) {
    if (values[column] !== undefined) continue
    const answer = await askText(`${about[0]!.toUpperCase()}${about.slice(1)}:`, {
      required: column === 'name',
      check: text => detailProblem(column, text),
      fallback: now?.[column] ?? '',
    })
    values[column] = column === 'type' ? readType(answer) : readText(answer)
  }
  return values
}

function detailProblem(column: string, text: string): string | undefined {
  try {
    if (column === 'type') readType(text)
    else readText(text)
    return column === 'email' && text !== '' && !isEmailAddress(text) ? 'This is no valid e-mail address.' : undefined
  } catch (error) {
    return (error as Error).message
  }
}

/** The columns that are given, null for those to clear. */
function toForm(options: Given): Partial<Record<keyof OrganizationDetails | 'nameKey', string | null>> {
  const columns = details.map(({ column }) => column).filter(column => options[column] !== undefined)
  const form = Object.fromEntries(columns.map(column => [column, options[column] || null]))
  if (form.email && !isEmailAddress(form.email)) misuse('The address of --email is not a valid e-mail address.')
  if (!form.name) return form
  const nameKey = nicknameKey(form.name)
  if (nameKey === '') misuse('The name of --name has no visible character.')
  return { ...form, nameKey }
}

async function unique<T>(work: Promise<T>, name: string): Promise<T> {
  try {
    return await work
  } catch (error) {
    const { brokenConstraint } = await import('../server/database/connection.js')
    if (brokenConstraint(error) !== 'organizations_name_key_key') throw error
    return fail(`There is an organization with the name ${name} already.`)
  }
}

/** An organization in the fields of the contract; what is absent is left out. */
function toJson(row: OrganizationRow, { organizations }: Registry) {
  const texts = details.map(({ field, column }) => [field, row[column]] as const).filter(([, text]) => text !== null)
  return {
    id: row.id,
    active: String(row.active),
    creation_date: row.creationDate,
    ...(Object.fromEntries(texts) as { name: string; type?: string; phone?: string; email?: string }),
    activationkey: organizations.activationKey(row),
  }
}

function show(organization: ReturnType<typeof toJson>, { json }: { json?: boolean }, sentence?: string): void {
  if (json) printJson(organization)
  else {
    if (sentence) say(sentence)
    printFields(organization)
  }
}
