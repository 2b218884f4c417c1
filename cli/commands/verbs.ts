// The verbs of `auth-admin`: a row for each.
import { timestampDate, timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Argument, Option } from 'commander'
import { named } from '../../server/rules/remedies.js'
import type { Command } from '../command.js'
import { misuse } from '../exit-codes.js'
import { askOrganization, canAsk, readId, readNumber, readText } from '../terminal/ask.js'
import { printFields, say, timeText } from '../terminal/output.js'
import { type Answer, serviceOutput } from './nouns.js'
import { printOrganization } from './organizations.js'
import { printServiceKey, readServiceChange, type ServiceChange, withExpiry, withServiceForm } from './services.js'
import { changeMembers } from './users/of-organization.js'
import { addVerb, type Verb } from './verb.js'

const kidOf = (key: Answer['key']) => (typeof key === 'object' ? key.kid : key)

/** The option by which a verb is for all members of an organization. */
const ofOrganization = (rpc: 'suspendUsers' | 'resumeUsers'): Pick<Verb, 'more' | 'instead'> => ({
  more: command =>
    command
      .option('--organization <organization>', 'instead of one user, the members of this organization', readText)
      .option('--confirm <count>', 'with --organization, their number; a terminal asks', readNumber(0)),
  async instead(api, options) {
    if (options.organization === undefined) return false
    await changeMembers(api, rpc, options)
    return true
  },
})

const withDesk = (command: Command) =>
  command.addArgument(new Argument('<what>', 'what it may do: desk').choices(['desk']))

/** The verbs, by their words. */
const table: Readonly<Record<string, Verb>> = {
  'users suspend': {
    about: 'Suspend a user: it can’t sign in, and all its tokens are revoked at once.',
    rpc: 'suspendUser',
    on: 'user',
    ...ofOrganization('suspendUsers'),
    asks: '{0} can no longer sign in, and its tokens are revoked at once. Suspend it?',
    says: '{0} is suspended.',
    already: '{0} is suspended already.',
    examples: ["users suspend '(11)98765-4321'", "users suspend --organization 'Escola Azul'"],
  },
  'users resume': {
    about: 'End the suspension of a user.',
    rpc: 'resumeUser',
    on: 'user',
    ...ofOrganization('resumeUsers'),
    says: '{0} is no longer suspended.',
    already: '{0} is not suspended.',
    examples: ["users resume '(11)98765-4321'", "users resume --organization 'Escola Azul'"],
  },
  'users move': {
    about: 'Move a user to another organization, or out of its organization.',
    rpc: 'setOrganization',
    on: 'user',
    more: command =>
      command
        .option('--organization <organization>', 'the new organization: id, INEP code or name', readText)
        .addOption(new Option('--out', 'out of its organization, into none').conflicts('organization')),
    async request({ organization, out, json }, api) {
      if (out) return {}
      if (organization) return { organization }
      if (!canAsk({ json })) misuse('Pass --organization, or --out to move it out of its organization.')
      return { organization: await askOrganization(api, 'Which organization does the user move to?') }
    },
    says: ({ user }) =>
      user!.record!.partnerOrganization
        ? `{0} belongs to ${user!.record!.partnerOrganization.name} (#${user!.record!.partnerOrganization.id}).`
        : '{0} belongs to no organization.',
    remarks: `
The provider key of a ROLE_INSTITUTION ends. If it is active, it gets another
one for its new organization, and an e-mail about it.`,
    examples: ["users move '(11)98765-4321' --organization 'Escola Azul'", 'users move 7 --out'],
  },
  'users issue-key': {
    about: 'Issue a key to hand over, with which a user signs in once and sets a password of its own.',
    rpc: 'issueKey',
    on: 'user',
    more: command => command.option('--hours <number>', 'hours for which it is valid (default: 24)', readNumber(1)),
    request: ({ hours }) => ({ hours }),
    says: ({ expireTime }) => `{0} signs in with this key once, until ${timeText(timestampDate(expireTime!))}:`,
    prints: ({ key }) => say(String(key)),
    output: ({ key, expireTime }) => ({ key, expireTime: timestampDate(expireTime!) }),
    examples: ["users issue-key '(11)98765-4321'", 'users issue-key 7 --hours 2'],
  },
  'users grant': {
    about: 'Let a user do what a help desk does: find, activate, lock and suspend users, and issue keys.',
    rpc: 'grantDesk',
    on: 'user',
    more: withDesk,
    asks: '{0} may find, activate, lock and suspend users, change e-mail addresses, and issue keys. Grant it?',
    says: '{0} may do what a help desk does.',
    already: '{0} may do that already.',
    examples: ['users grant ana desk'],
  },
  'users revoke': {
    about: 'Take from a user what `users grant` gave it. Its sessions at Administration end.',
    rpc: 'revokeDesk',
    on: 'user',
    more: withDesk,
    says: '{0} can no longer do what a help desk does.',
    already: '{0} couldn’t do that.',
    examples: ['users revoke ana desk'],
  },
  'users clear-answers': {
    about: 'Delete all answers of a user to security questions. The user gets an e-mail about it.',
    rpc: 'clearAnswers',
    on: 'user',
    asks: '{0} can no longer sign in by answers until it saves new ones. Delete its answers?',
    says: ({ cleared }) => `{0} has no answers any more: ${cleared} deleted.`,
    output: ({ cleared }, user) => ({ ...user, cleared }),
    remarks: 'Sessions that the answers opened go on until `users revoke-tokens`.',
    examples: ["users clear-answers '(11)98765-4321'"],
  },
  'users rotate-provider-key': {
    about: 'Replace the provider key of a user, and print the new one. The current key stops working at once.',
    rpc: 'rotateProviderKey',
    on: 'user',
    asks: 'The present provider key of {0} stops working at once. Replace it?',
    says: '{0} has a new provider key:',
    prints: ({ user }) => say(user!.record!.providerActivationKey!.activationkey!),
    examples: ["users rotate-provider-key '(11)98765-4321'"],
  },
  'users revoke-tokens': {
    about: 'Sign a user out everywhere: all its tokens are revoked at once.',
    rpc: 'revokeTokens',
    on: 'user',
    asks: '{0} has to sign in again everywhere. Sign it out?',
    says: '{0} is signed out everywhere.',
    examples: ["users revoke-tokens '(11)98765-4321'"],
  },
  'users send-key': {
    about: 'Mail a recovery key to the address of a user. It is valid for 15 minutes.',
    rpc: 'sendRecoveryKey',
    on: 'user',
    finds: true,
    says: ({ email }) => `{0} gets a recovery key: it is queued for ${email}.`,
    output: ({ email }, user) => ({ ...user, email }),
    examples: ["users send-key '(11)98765-4321'"],
  },
  'users delete': {
    about: 'Delete a user. `users restore` brings it back for 30 days. After that, it is erased.',
    rpc: 'deleteUser',
    on: 'user',
    asks: '{0} can no longer sign in, and is erased 30 days from now. Delete it?',
    says: '{0} is deleted.',
    already: '{0} is deleted already.',
    examples: ["users delete '(11)98765-4321'"],
  },
  'users restore': {
    about: 'Bring back a user who was deleted less than 30 days ago.',
    rpc: 'undeleteUser',
    on: 'user',
    says: '{0} is restored.',
    already: '{0} is not deleted.',
    examples: ["users restore '(11)98765-4321'"],
  },
  'organizations activate': {
    about: 'Enable the activation keys of an organization and of its users.',
    rpc: 'activateOrganization',
    on: 'organization',
    says: '{0} is active.',
    already: '{0} is active already.',
    examples: ["organizations activate 'Escola Azul'"],
  },
  'organizations deactivate': {
    about: 'Disable the activation keys of an organization and of its users.',
    rpc: 'deactivateOrganization',
    on: 'organization',
    asks: 'The activation keys of {0} and of its users stop working at once. Its members can still sign in. Continue?',
    says: ({ organization }) =>
      `{0} is inactive: no key activates a user there. Its members can still sign in: ${named('suspend members', { ORGANIZATION: organization!.record!.id })} ends that.`,
    examples: ["organizations deactivate 'Escola Azul'"],
  },
  'organizations rotate-key': {
    about: 'Replace the activation key, and print the new one. The current key stops working at once.',
    rpc: 'rotateOrganizationKey',
    on: 'organization',
    asks: 'The present key of {0} stops working at once. Replace it?',
    says: '{0} has a new activation key.',
    prints: ({ organization }) => printOrganization(organization!),
    examples: ["organizations rotate-key 'Escola Azul'"],
  },
  'organizations delete': {
    about: 'Delete an organization that has no members. This can’t be undone.',
    rpc: 'deleteOrganization',
    on: 'organization',
    warns: 'This permanently deletes {0} and its key.',
    says: '{0} is deleted.',
    output: (_, organization) => ({ ...organization, deleted: true }),
    examples: ["organizations delete 7 --confirm 'Escola Azul'"],
  },
  'questions retire': {
    about: 'Retire a question: it takes no new answers. Saved answers still count.',
    rpc: 'retireQuestion',
    on: 'question',
    says: '{0} is retired.',
    already: '{0} is retired already.',
    examples: ['questions retire 3'],
  },
  'questions offer': {
    about: 'Offer a retired question again.',
    rpc: 'offerQuestion',
    on: 'question',
    says: '{0} is offered.',
    already: '{0} is offered already.',
    examples: ['questions offer 3'],
  },
  'services show': {
    about: 'Show a service with its keys, each by its first characters.',
    rpc: 'getService',
    on: 'service',
    says: ({ service }) => (service!.keys.length === 0 ? '{0} has no key.' : '{0}:'),
    prints({ service }) {
      const { scopes, keys, createTime, redirectUris = [], postLogoutUris = [] } = serviceOutput(service!)
      printFields({ scopes: scopes.join(', '), created: createTime })
      for (const uri of redirectUris) printFields({ 'redirect URI': uri })
      for (const uri of postLogoutUris) printFields({ 'post-logout URI': uri })
      for (const { id, beginning, expireTime, lastUsed } of keys)
        printFields({ key: id, beginning, expires: expireTime, 'last used': lastUsed })
    },
    examples: ['services show grades'],
  },
  'services edit': {
    about: 'Change the name, the scopes or the addresses of a service. Its keys stay.',
    rpc: 'updateService',
    on: 'service',
    more: command => withServiceForm(command).option('--name <name>', 'another name', readText),
    request: options => readServiceChange(options as ServiceChange),
    says: '{0} is saved.',
    already: '{0} is up to date already.',
    examples: ['services edit grades --may users.read,users.watch', 'services edit grades --name marks'],
  },
  'services delete': {
    about: 'Delete a service with all its keys. This can’t be undone.',
    rpc: 'deleteService',
    on: 'service',
    warns: 'This permanently deletes service {0} and its keys, which stop working at once.',
    says: 'Service {0} is deleted.',
    output: (_, service) => ({ ...service, deleted: true }),
    examples: ['services delete grades --confirm grades'],
  },
  'services keys add': {
    about: 'Add a key to a service, and print it. It is shown only once.',
    rpc: 'createServiceKey',
    on: 'service',
    more: withExpiry,
    request: ({ expires }) => (expires ? { expireTime: timestampFromDate(expires as Date) } : {}),
    says: '{0} has another key.',
    output: ({ key }, service) => ({ ...service, key }),
    prints: ({ key }) => printServiceKey(String(key)),
    examples: ['services keys add grades --expires 90d'],
  },
  'services keys delete': {
    about: 'Delete a key of a service. It stops working at once.',
    rpc: 'deleteServiceKey',
    on: 'service',
    more: command => command.argument('<id>', 'id of the key, as `services show` shows it', readId),
    request: (_options, _api, id: number) => ({ id }),
    asks: 'The key of service {0} stops working at once. Delete it?',
    says: 'The key of {0} is deleted.',
    examples: ['services keys delete grades 7'],
  },
  'mail delete': {
    about: 'Delete an e-mail from the queue. It isn’t sent.',
    rpc: 'discardEmail',
    on: 'email',
    asks: 'E-mail {0} is never sent. Delete it?',
    says: 'E-mail {0} is deleted.',
    output: (_, email) => ({ ...email, deleted: true }),
    examples: ['mail delete 12'],
  },
  'mail test': {
    about: 'Send an e-mail for testing, and print what the mail server answers.',
    rpc: 'sendTestEmail',
    on: 'address',
    says: ({ sent, answer, milliseconds }) =>
      sent
        ? `The mail server accepted it in ${milliseconds} ms: ${answer}`
        : `The mail server didn’t accept it: ${answer}`,
    output: ({ sent, answer, milliseconds }, address) => ({ ...address, sent, answer, milliseconds }),
    examples: ['mail test ana@example.org'],
  },
  'keys rotate': {
    about: 'Publish a new key that signs tokens. It signs once verifiers know it.',
    rpc: 'rotateSigningKey',
    more: command => command.option('--now', 'sign with it at once: verifiers refuse its tokens for up to 5 minutes'),
    request: ({ now }) => ({ now: now === true }),
    asks: 'A new signing key replaces the present one. Users stay signed in. Continue?',
    says: ({ key }) => `Signing key ${kidOf(key)} is published.`,
    output: ({ key }) => ({ kid: kidOf(key) }),
    examples: ['keys rotate', 'keys rotate --now --yes'],
  },
  'keys retire': {
    about: 'Drop a leaked key at once, with all tokens that it signed or sealed. This can’t be undone.',
    rpc: 'retireSigningKey',
    on: 'key',
    warns: 'This ends all tokens of key {0} at once.',
    says: ({ successor }) => (successor ? `Key {0} is dropped. Its successor is ${successor}.` : 'Key {0} is dropped.'),
    output: ({ successor }, key) => ({ ...key, successor }),
    remarks: `
Until verifiers fetch the key set again, within 5 minutes, they refuse tokens of
the new key, and accept those of the dropped one. The id of a sealing key ends
all sessions of administrators, yours included.`,
    examples: ['keys retire KID --confirm KID'],
  },
  'imports abort': {
    about: 'End an import that isn’t finished. What it has changed stays.',
    rpc: 'abortImport',
    on: 'import',
    asks: 'Import {0} can’t be resumed any more. End it?',
    says: 'Import {0} is aborted.',
    examples: ['imports abort 7'],
  },
  'totp remove': {
    about: 'Remove the one-time codes of an administrator who lost the authenticator.',
    rpc: 'removeTotp',
    on: 'user',
    warns: '{0} signs in without one-time codes until it enrolls an authenticator again.',
    says: '{0} has no one-time codes.',
    already: '{0} has no one-time codes already.',
    examples: ['totp remove ana --confirm ana'],
  },
}

/** What nouns below others are about. */
const groups: Readonly<Record<string, string>> = {
  'services keys': 'Manage the keys of services.',
}

/** Adds the verbs to their nouns. */
export function addVerbs(program: Command): void {
  for (const [words, verb] of Object.entries(table)) {
    const path = words.split(' ')
    const name = path.pop()!
    let parent = program
    for (const [index, word] of path.entries())
      parent =
        parent.commands.find(each => each.name() === word) ??
        parent.command(word).description(groups[path.slice(0, index + 1).join(' ')]!)
    addVerb(parent, name, verb)
  }
}
