// The records that commands name: how each is asked for, found, called in a sentence, and printed as JSON.
import { create, toJson } from '@bufbuild/protobuf'
import { type Timestamp, timestampDate } from '@bufbuild/protobuf/wkt'
import {
  type AdministeredQuestion,
  type AdministeredUser,
  type Import,
  ImportKind,
  ImportState,
  type Organization,
  OrganizationSchema,
  type QueuedEmail,
  type Service,
  type SigningKey,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { scopeName } from '../../server/rules/scopes.js'
import type { Api } from '../administration.js'
import type { Command } from '../command.js'
import { given, readId } from '../terminal/ask.js'
import { userOutput } from './users/output.js'

/** A record that a command names by its argument. */
export interface Noun {
  /** Its field in requests, which has the reference. */
  readonly field: string
  /** Its name in usage, and what names it. */
  readonly place: string
  readonly how: string
  readonly question: string
  readonly missing: string
  readonly read?: (reference: string) => string | number
  /** Reads the record, where its name or its etag is needed and isn't the reference. */
  readonly find?: (api: Api, reference: string) => Promise<Found>
}

/** A record as sentences and confirmations name it. */
export interface Found {
  readonly who: string
  /** What confirms a change that can't be undone. */
  readonly name: string
  readonly etag?: string
  /** What `--json` prints of it where the answer doesn't have it. */
  readonly brief: object
}

export const foundUser = ({ record, etag }: AdministeredUser): Found => ({
  who: `User ${record!.id} (${record!.username})`,
  name: record!.username!,
  etag,
  brief: { id: record!.id, username: record!.username },
})

export const foundOrganization = ({ record, etag }: Organization): Found => ({
  who: `Organization ${record!.id} (${record!.name})`,
  name: record!.name!,
  etag,
  brief: { id: record!.id },
})

/** The nouns of verbs. */
export const nouns = {
  user: {
    ...{ field: 'user', place: 'user', how: 'username or id' },
    question: 'Which user (username or id)?',
    missing: 'Name the user: pass a username or an id.',
    find: async (api, user) => foundUser((await api.getUser({ user, omitKeys: true })).user!),
  },
  organization: {
    ...{ field: 'organization', place: 'organization', how: 'id, INEP code or name' },
    question: 'Which organization (id or name)?',
    missing: 'Name the organization: pass its id or name.',
    find: async (api, organization) =>
      foundOrganization((await api.getOrganization({ organization, omitKeys: true })).organization!),
  },
  question: {
    ...{ field: 'question', place: 'question', how: 'id or text' },
    question: 'Which question (id or text)?',
    missing: 'Name the question: pass its id or text.',
  },
  service: {
    ...{ field: 'name', place: 'service', how: 'name' },
    question: 'Which service (name)?',
    missing: 'Name the service: pass its name.',
  },
  key: {
    ...{ field: 'kid', place: 'key', how: 'id of the key, as `keys list` shows it' },
    question: 'Which key (id)?',
    missing: 'Name the key: pass its id.',
  },
  email: {
    ...{ field: 'id', place: 'e-mail', how: 'id, as `mail list` shows it', read: readId },
    question: 'Which e-mail (id)?',
    missing: 'Name the e-mail: pass its id.',
  },
  address: {
    ...{ field: 'email', place: 'address', how: 'e-mail address' },
    question: 'E-mail address:',
    missing: 'Pass the e-mail address.',
  },
  import: {
    ...{ field: 'id', place: 'import', how: 'id, as `imports list` shows it', read: readId },
    question: 'Which import (id)?',
    missing: 'Name the import: pass its id.',
  },
} as const satisfies Record<string, Noun>

export type NounName = keyof typeof nouns

/** Adds the argument that names a record, and --json, to a command. */
export function withRecord(command: Command, noun: NounName): Command {
  return command.reference(nouns[noun].place, nouns[noun].how).json()
}

/** The reference on the command line, or the answer to a prompt. */
export function referenceTo(
  noun: NounName,
  reference: string | undefined,
  options: { json?: boolean },
): Promise<string> {
  return given(reference, nouns[noun].question, nouns[noun].missing, options)
}

/** What the answers of verbs have. */
export interface Answer {
  readonly user?: AdministeredUser
  readonly organization?: Organization
  readonly question?: AdministeredQuestion
  readonly service?: Service
  readonly email?: QueuedEmail | string
  readonly import?: Import
  readonly key?: string | SigningKey
  readonly changed?: boolean
  readonly expireTime?: Timestamp
  readonly cleared?: number
  readonly successor?: string
  readonly sent?: boolean
  readonly answer?: string
  readonly milliseconds?: number
}

/** The record of an answer as JSON; undefined if it has none. */
export function outputOf({ user, organization, question, service, import: made }: Answer): object | undefined {
  if (user) return userOutput(user)
  if (organization) return organizationOutput(organization)
  if (question) return questionOutput(question)
  if (service) return serviceOutput(service)
  return made && importOutput(made)
}

/** How sentences call the record of an answer; undefined if it has none. */
export function whoIn({ user, organization, question, service }: Answer): string | undefined {
  if (user) return foundUser(user).who
  if (organization) return foundOrganization(organization).who
  if (question) return `Question ${question.record!.id}`
  return service && `Service ${service.name}`
}

/** An organization in the fields of the contract, and what else administrators see; what is absent is left out. */
export function organizationOutput(organization: Organization) {
  const json = toJson(OrganizationSchema, create(OrganizationSchema, organization)) as { record: object; etag: string }
  const { record, etag, ...more } = json
  return { ...record, ...more, etag }
}

/** Whether users may answer a question, in a word. */
export function stateOf(active: number | undefined): string {
  return active === 1 ? 'offered' : 'retired'
}

/** A question in the fields of the contract, and what else administrators see. */
export function questionOutput({ record, etag }: AdministeredQuestion) {
  const { id, question, active } = record!
  return { id, question, active, status: stateOf(active), etag }
}

/** A service in plain words, without the keys themselves. */
export function serviceOutput(service: Service) {
  const { name, scopes, keys, createTime, redirectUris, postLogoutUris, public: isPublic, title } = service
  return {
    name,
    scopes: scopes.map(scope => scopeName(scope) ?? String(scope)),
    ...(redirectUris.length > 0 && { redirectUris, postLogoutUris, public: isPublic, title }),
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

/** An import in plain words. */
export function importOutput({ $typeName: _, $unknown: __, kind, state, createTime, updateTime, ...rest }: Import) {
  const times = { createTime: timestampDate(createTime!), updateTime: timestampDate(updateTime!) }
  return { kind: ImportKind[kind].toLowerCase(), state: ImportState[state].toLowerCase(), ...rest, ...times }
}
