import { create } from '@bufbuild/protobuf'
import { timestampDate, timestampFromDate } from '@bufbuild/protobuf/wkt'
import { InvalidArgumentError } from 'commander'
import { type Service, ServiceFormSchema } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Scope } from '../../proto/gen/auth/v1/scopes_pb.js'
import { scopeName, scopeNames, scopeOf } from '../../server/rules/scopes.js'
import type { GlobalOptions as Options } from '../administration.js'
import type { Command } from '../command.js'
import { misuse } from '../exit-codes.js'
import { askChoices, canAsk, confirm, confirmName, given, readId, readTime } from '../terminal/ask.js'
import { askEdits, type Field, type Values } from '../terminal/form.js'
import { printFields, printJson, printTable, say } from '../terminal/output.js'
import { type List, type ListOptions, pagesOf, printPages } from '../terminal/pages.js'

/** The fields of a service that can change. */
const fields = [
  { field: 'name', key: 'name', about: 'name: lower-case letters, digits and hyphens', needed: 'always' },
  {
    field: 'may',
    key: 'may',
    about: `scopes, separated by commas: ${scopeNames.join(', ')}`,
    needed: 'always',
    read(text: string) {
      readScopes(text)
      return text
    },
  },
] as const satisfies readonly Field<string>[]

/** Adds `auth-admin services`. */
export function addServices(program: Command): void {
  const services = program
    .command('services')
    .description('Manage services that call with their own keys, and what they may do.')

  withExpiry(withName(services.command('create').signIn('createService')))
    .description('Register a service, and print its first key, which is shown only once.')
    .option('--may <scopes>', fields[1].about, readScopes)
    .examples('services create grades --may users.read --expires 90d')
    .administers(async (api, given: string | undefined, options: Options & { may?: Scope[]; expires?: Date }) => {
      const name = await nameOf(given, options)
      const form = { name, scopes: options.may ?? (await askScopes(options)), ...expiry(options.expires) }
      const { service, key } = await api.createService(form)
      showKey(service!, key, options, `Service ${service!.name} is registered.`)
    })

  services
    .command('list')
    .pages(serviceList)
    .description('List services by name. Only --json shows their keys, each by its first characters.')
    .examples('services list --json')
    .administers(async (api, options: ListOptions) => {
      await printPages(serviceList, options, page => api.listServices(page))
    })

  withName(services.command('show'))
    .description('Show a service and its keys, without the keys themselves.')
    .examples('services show grades')
    .administers(async (api, name: string | undefined, options: Options) => {
      show((await api.getService({ name: await nameOf(name, options) })).service!, options)
    })

  withName(services.command('edit').signIn('updateService'))
    .fields(fields)
    .description('Change the name or the scopes of a service. Its keys stay valid; processes follow within a second.')
    .remarks('Events that are already in the audit log keep the former name.')
    .examples('services edit grades --may users.read,tokens.verify')
    .administers(async (api, given: string | undefined, options: Values<'name' | 'may'> & Options) => {
      const name = await nameOf(given, options)
      const read = async () => {
        const service = (await api.getService({ name })).service!
        return { etag: service.etag, now: { name: service.name, may: toOutput(service).scopes.join(',') } }
      }
      const { values, updateMask, etag } = await askEdits(fields, options, read)
      const form = create(ServiceFormSchema, {
        name: values.name,
        scopes: values.may ? readScopes(values.may) : [],
      })
      const paths = updateMask.paths.map(path => (path === 'may' ? 'scopes' : path))
      const { service, changed } = await api.updateService({ name, form, updateMask: { paths }, etag })
      if (options.json) printJson(toOutput(service!))
      else say(`Service ${service!.name} ${changed ? 'is saved' : 'is up to date already'}.`)
    })

  withName(services.command('delete').signIn('deleteService'))
    .description('Delete a service with all its keys. This can’t be undone.')
    .option('--confirm <name>', 'the name again; a terminal prompts for it')
    .examples('services delete grades --confirm grades')
    .administers(async (api, given: string | undefined, options: Options & { confirm?: string }) => {
      const { name } = (await api.getService({ name: await nameOf(given, options) })).service!
      const sentence = `This permanently deletes service ${name} and its keys.`
      const validate = (confirm: string) => api.deleteService({ name, confirm, validateOnly: true })
      await api.deleteService({ name, confirm: await confirmName(sentence, name, options, validate) })
      if (options.json) printJson({ name, deleted: true })
      else say(`Service ${name} is deleted.`)
    })

  const keys = services.command('keys').description('Manage the keys of a service, each with its own expiry.')

  keys
    .command('list')
    .reference('service', reference)
    .pages(keyList)
    .description('List the keys of a service, each by its first characters.')
    .examples('services keys list grades')
    .administers(async (api, given: string | undefined, options: ListOptions) => {
      const { service } = await api.getService({ name: await nameOf(given, options) })
      await printPages(keyList, options, pagesOf(keyList, toOutput(service!).keys))
    })

  withExpiry(withName(keys.command('create').signIn('createServiceKey')))
    .description('Add a key to a service, and print it. It is shown only once.')
    .examples('services keys create grades --expires 90d')
    .administers(async (api, name: string | undefined, options: Options & { expires?: Date }) => {
      const form = { name: await nameOf(name, options), ...expiry(options.expires) }
      const { service, key } = await api.createServiceKey(form)
      showKey(service!, key, options, `Service ${service!.name} has a new key.`)
    })

  withName(keys.command('delete').signIn('deleteServiceKey'))
    .argument('[id]', 'id of the key, as `services keys list` shows it', readId)
    .description('Delete a key of a service: all processes refuse it within a second.')
    .yes()
    .examples('services keys delete grades 7 --yes')
    .administers(
      async (api, name: string | undefined, id: number | undefined, options: Options & { yes?: boolean }) => {
        const service = await nameOf(name, options)
        const missing = 'Name the key: pass its id.'
        const check = (text: string) => (/^#?\d{1,9}$/.test(text) ? undefined : 'Use an id, such as 7.')
        const key = id ?? readId(await given(undefined, 'Which key (its id)?', missing, options, check))
        const request = { name: service, id: key }
        await confirm(`Calls with key ${key} are refused from now on. Delete it?`, options, () =>
          api.deleteServiceKey({ ...request, validateOnly: true }),
        )
        const left = await api.deleteServiceKey(request)
        if (options.json) printJson(toOutput(left.service!))
        else say(`Key ${key} of service ${service} is deleted. Keys left: ${left.service!.keys.length}.`)
      },
    )
}

/** What names a service. */
const reference = 'name: lower-case letters, digits and hyphens'

function withName(command: Command): Command {
  return command.reference('service', reference).json()
}

function withExpiry(command: Command): Command {
  const about = 'expiry of the key: in days (90d) or hours (12h), or a time in ISO 8601; by default a year'
  return command.option('--expires <time>', about, readExpiry)
}

/** Reads a time that is to come. */
function readExpiry(value: string): Date {
  const { digits, unit } = /^(?<digits>\d{1,5})(?<unit>[hd])$/.exec(value.trim())?.groups ?? {}
  if (digits) return new Date(Date.now() + Number(digits) * { h: 3_600_000, d: 86_400_000 }[unit!]!)
  if (!/^\d{4}-\d\d-\d\d/.test(value.trim())) {
    throw new InvalidArgumentError('Use 90d, 12h, or a time such as 2027-01-31T12:00:00Z.')
  }
  return readTime(value)
}

function readScopes(value: string): Scope[] {
  const names = value.split(',').map(name => name.trim().toLowerCase())
  const known = names.map(name => scopeNames.find(each => each === name))
  const unknown = names.filter((_, index) => known[index] === undefined)
  if (unknown.length > 0) {
    throw new InvalidArgumentError(`Use one or more of ${scopeNames.join(', ')}, separated by commas.`)
  }
  return known.map(name => scopeOf(name!))
}

async function askScopes(options: Options): Promise<Scope[]> {
  if (!canAsk(options)) misuse(`Without a terminal, pass the scopes with --may: ${scopeNames.join(', ')}.`)
  return (await askChoices('What may it do?', scopeNames)).map(scopeOf)
}

const expiry = (at: Date | undefined) => at && { expireTime: timestampFromDate(at) }

function nameOf(name: string | undefined, options: Options): Promise<string> {
  return given(name, 'Which service (name)?', 'Name the service: pass its name.', options)
}

/** A service in plain words, without the keys themselves. */
function toOutput({ name, scopes, keys, createTime }: Service) {
  return {
    name,
    scopes: scopes.map(scope => scopeName(scope) ?? String(scope)),
    createTime: timestampDate(createTime!),
    keys: keys.map(({ id, beginning, createTime, expireTime, lastUsed }) => ({
      id,
      beginning,
      createTime: timestampDate(createTime!),
      expireTime: timestampDate(expireTime!),
      lastUsed: lastUsed || undefined,
    })),
  }
}

const serviceList: List<Service, 'services'> = {
  name: 'services',
  fields: ['name', 'scopes', 'createTime', 'keys'],
  toOutput,
  head: { titles: ['name', 'scopes', 'keys', 'expires', 'last used'] },
  toCells(service) {
    const { name, scopes, keys } = toOutput(service)
    const expire = Math.max(...keys.map(({ expireTime }) => expireTime.getTime()))
    const used = keys.map(({ lastUsed }) => lastUsed ?? '').sort()
    return [name, scopes.join(', '), keys.length, keys.length > 0 ? new Date(expire) : '', used.at(-1)]
  },
  empty: 'There are no services.',
}

type Key = ReturnType<typeof toOutput>['keys'][number]

const keyList: List<Key, 'keys'> = {
  name: 'keys',
  fields: ['id', 'beginning', 'createTime', 'expireTime', 'lastUsed'],
  toOutput: key => key,
  head: { titles: ['id', 'beginning', 'created', 'expires', 'last used'] },
  toCells: key => [key.id, key.beginning, key.createTime, key.expireTime, key.lastUsed],
  empty: 'It has no keys.',
}

function showKey(service: Service, key: string, options: Options, sentence: string): void {
  if (options.json) {
    printJson({ ...toOutput(service), key })
    return
  }
  say(sentence)
  say('Its key, shown only once:')
  say(key)
}

function show(service: Service, options: Options): void {
  const output = toOutput(service)
  if (options.json) {
    printJson(output)
    return
  }
  const { name, scopes, createTime, keys } = output
  printFields({ name, scopes: scopes.join(', '), created: createTime })
  printTable(keyList.head, keys.map(keyList.toCells), keyList.empty)
}
