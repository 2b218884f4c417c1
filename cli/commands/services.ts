import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { InvalidArgumentError } from 'commander'
import type { Service } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Scope } from '../../proto/gen/auth/v1/scopes_pb.js'
import { scopeNames, scopeOf } from '../../server/rules/scopes.js'
import type { GlobalOptions as Options } from '../administration.js'
import type { Command } from '../command.js'
import { misuse } from '../exit-codes.js'
import { askChoices, canAsk, readTime } from '../terminal/ask.js'
import { printJson, say } from '../terminal/output.js'
import { type List, type ListOptions, printPages } from '../terminal/pages.js'
import { referenceTo, serviceOutput } from './nouns.js'

interface CreateOptions {
  readonly may?: Scope[]
  readonly expires?: Date
  readonly redirectUri?: string[]
  readonly postLogoutUri?: string[]
  readonly public?: boolean
  readonly title?: string
}

const collect = (value: string, former: string[] = []) => [...former, value]

/** Adds `auth-admin services`. */
export function addServices(program: Command): void {
  const services = program
    .command('services')
    .description('Manage services, which call with their own keys, and what they may do.')

  withExpiry(withServiceForm(services.command('create').signIn('createService')))
    .reference('service', 'name: lower-case letters, digits and hyphens')
    .json()
    .description('Register a service, and print its first key, which is shown only once; a public client gets none.')
    .examples(
      'services create grades --may users.read --expires 90d',
      'services create wiki --redirect-uri https://wiki.example.org/cb',
    )
    .administers(async (api, given: string | undefined, options: Options & CreateOptions) => {
      const name = await referenceTo('service', given, options)
      const { may, redirectUri, expires } = options
      const scopes = may ?? (redirectUri ? [] : await askScopes(options))
      const expireTime = expires && timestampFromDate(expires)
      const { service, key } = await api.createService({ ...formOf(options), name, scopes, expireTime })
      if (options.json) return printJson({ ...serviceOutput(service!), key: key || undefined })
      say(`Service ${service!.name} is registered.`)
      if (key) printServiceKey(key)
    })

  services
    .command('list')
    .pages()
    .description('List services by name. `services show` shows the keys of one.')
    .examples('services list --json')
    .administers(async (api, options: ListOptions) => {
      await printPages(serviceList, options, page => api.listServices(page))
    })
}

/** Adds the flags of what a service is. */
export function withServiceForm(command: Command): Command {
  return command
    .option('--may <scopes>', `scopes, separated by commas: ${scopeNames.join(', ')}`, readScopes)
    .option(
      '--redirect-uri <uri>',
      'where browsers go on after a sign-in: makes it a client of OpenID Connect; repeatable',
      collect,
    )
    .option('--post-logout-uri <uri>', 'where browsers go on after signing out; repeatable', collect)
    .option('--public', 'a client without a secret: an app on devices, or in browsers')
    .option('--title <text>', 'how the page where people sign in calls it; by default its name')
}

/** Adds the flag of a new key. */
export function withExpiry(command: Command): Command {
  return command.option(
    '--expires <time>',
    'expiry of the key: in days (90d) or hours (12h), or a time in ISO 8601; by default a year',
    readExpiry,
  )
}

/** Prints a new key. */
export function printServiceKey(key: string): void {
  say('Its key, shown only once:')
  say(key)
}

/** The fields of a service that have flags. */
function formOf({ may, redirectUri, postLogoutUri, public: isPublic, title }: CreateOptions) {
  return { scopes: may, redirectUris: redirectUri, postLogoutUris: postLogoutUri, public: isPublic, title }
}

/** The flags of a change. */
export type ServiceChange = Partial<CreateOptions> & { readonly name?: string }

/** The fields of a change of a service: those with flags. */
export function readServiceChange(options: ServiceChange) {
  const form = { name: options.name, ...formOf(options) }
  const paths = Object.entries(form).flatMap(([key, value]) =>
    value === undefined ? [] : [key.replace(/[A-Z]/g, letter => `_${letter.toLowerCase()}`)],
  )
  if (paths.length === 0) misuse('Nothing to change: pass one or more options.')
  return { form, updateMask: { paths } }
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

const serviceList: List<Service, 'services'> = {
  name: 'services',
  toOutput: serviceOutput,
  head: { titles: ['name', 'scopes', 'keys', 'expires', 'last used'] },
  toCells(service) {
    const { name, scopes, keys } = serviceOutput(service)
    const expire = Math.max(...keys.map(({ expireTime }) => expireTime.getTime()))
    const used = keys.map(({ lastUsed }) => lastUsed ?? '').sort()
    return [name, scopes.join(', '), keys.length, keys.length > 0 ? new Date(expire) : '', used.at(-1)]
  },
  empty: 'There are no services.',
}
