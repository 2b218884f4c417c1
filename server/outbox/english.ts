import type { Administered } from '../models/email.js'
import { type Catalogue, countsAt, erasedAt, withId } from './catalogue.js'

const englishTimes = (times: number) => (times === 1 ? '' : `${times} times, the last time `)

/** Changes to a user, as predicates of a sentence that begins with the username. */
const englishChanges: Record<Administered, string> = {
  'user.activate': 'was activated',
  'user.add': 'was registered',
  'user.clear-answers': 'no longer has answers to security questions',
  'user.delete': 'was deleted',
  'user.edit': 'was changed',
  'user.enroll-totp': 'now needs a one-time code to sign in',
  'user.erase': 'was permanently erased',
  'user.remove-totp': 'no longer needs a one-time code to sign in',
  'user.resume': 'is no longer suspended',
  'user.revoke-tokens': 'was signed out everywhere',
  'user.rotate-provider-key': 'has a new provider key',
  'user.send-key': 'will receive a recovery key by e-mail',
  'user.set-email': 'was given another e-mail address',
  'user.set-organization': 'was moved to another organization',
  'user.set-password': 'was given a new password',
  'user.set-role': 'was given another role',
  'user.suspend': 'was suspended',
  'user.undelete': 'is no longer deleted',
  'user.unlock': 'was unlocked: failed sign-ins no longer count',
}

/** The e-mails in English. */
export const english: Catalogue = {
  'recovery-key': {
    subject: 'Your key to regain access',
    text: ({ username, key }) => `Hello,

we received a request to regain access for the user ${username}.

Your key: ${key}

Enter the key in the app. It is valid for 15 minutes and can be used once.

If you didn't request this, ignore this message: no one can access your account without the key.
Don't share the key with anyone.`,
  },
  'email-code': {
    subject: 'Code to confirm this e-mail address',
    text: ({ username, key }) => `Hello,

the user ${username} wants to use this e-mail address for an account.

Your code: ${key}

Enter the code in the app. It is valid for 15 minutes and can be used once.

If it wasn't you, ignore this message: without the code nothing changes, and this address isn't used.
Don't share the code with anyone.`,
  },
  'activation-key': {
    subject: 'Activation key for a user of your organization',
    text: ({ username, key }) => `Hello,

the user ${username} requested a key to activate an account as a member of your organization.

Activation key: ${key}

If you know this user and they belong to the organization, give them the key. They must enter it in the
app within 72 hours. The key can be used once, and only by this user.

If you don't know this user, do nothing: without the key the account stays inactive.`,
  },
  'password-changed': {
    subject: 'Your password was changed',
    text: ({ username, times, at, address }, when) => `Hello,

the password of the user ${username} was changed ${englishTimes(times)}on ${when(at)}, from the address ${address}.
All open sessions were ended. Answers to security questions that didn't count yet were discarded, except those
saved in the same session: these end when you log out everywhere.

If it was you, no action is needed.
If it wasn't you, regain access now in the app under "Forgot password", and choose a new password: that also
discards answers that someone else saved and that don't count yet. Tell your organization, too.`,
  },
  'answer-saved': {
    subject: 'The answer to a security question was changed',
    text: ({ username, times, at, address }, when) => `Hello,

the answer to a security question of the user ${username} was saved ${englishTimes(times)}on ${when(at)}, from the address ${address}.

It counts at once, and the former answer no longer does.

If it was you, no action is needed.
If it wasn't you, save your own answers now in the app, with your password: they count at once. Then change your
password: that ends all open sessions. Also tell your organization: an administrator can remove your answers.`,
  },
  'answer-waits': {
    subject: 'A new answer to a security question',
    text: ({ username, times, at, address }, when) => `Hello,

the answer to a security question of the user ${username} was saved ${englishTimes(times)}on ${when(at)}, from the address ${address}.
The new answer counts from ${when(countsAt(at))} on. Until then, the former one does.

If it was you, no action is needed. An answer that you save with your password counts at once.
If it wasn't you, log out everywhere in the app before that time: that discards the new answer and ends all open
sessions. Then change your password, and tell your organization.`,
  },
  'answers-cleared': {
    subject: 'Your answers to security questions were removed',
    text: ({ username, times, at, address }, when) => `Hello,

an administrator removed all answers to security questions of the user ${username} ${englishTimes(times)}on ${when(at)},
from the address ${address}. No one can sign in with them any more. You can save new answers in the app.

If you didn't ask for this, talk to your organization.`,
  },
  'recovery-login': {
    subject: 'Sign-in to your account without the password',
    text: ({ username, times, at, address }, when) => `Hello,

someone signed in to the account of the user ${username} by account recovery
${englishTimes(times)}on ${when(at)}, from the address ${address}.

If it was you, no action is needed.
If it wasn't you, someone knows your answers or reads your e-mails. Save other answers to the security questions
now in the app, with your password: they count at once. Then change your password: that ends all open sessions.
Also tell your organization: an administrator can remove your answers.`,
  },
  'email-changed': {
    subject: 'The e-mail address of your account was changed',
    text: ({ username, times, at, address }, when) => `Hello,

the e-mail address of the user ${username} was changed ${englishTimes(times)}on ${when(at)}, from the address ${address}.
Recovery keys and notices are no longer sent to this address.

If it was you, no action is needed.
If it wasn't you or an administrator at your request, someone may know your password: change it now in the app,
and tell your organization, which can have the former address restored.`,
  },
  'account-deleted': {
    subject: 'Your account was deleted',
    text: ({ username, at, address }, when) => `Hello,

the account of the user ${username} was deleted with its password on ${when(at)}, from the address ${address}.
It can't be used any more, and all open sessions were ended.

On ${when(erasedAt(at))} all data of the account will be erased for good.
Until then an administrator can restore it: if you change your mind, ask your organization.
If it wasn't you, tell your organization now: someone may know your password.`,
  },
  'username-changed': {
    subject: 'Your username was changed',
    text: ({ username, times, at, address }, when) => `Hello,

the username of your account was changed ${englishTimes(times)}on ${when(at)}, from the address ${address}.
The new username, without special characters, is ${username}. You can't sign in with the former one any more;
it is reserved for your account for 30 days.

If it was you, there is nothing to do.
If it wasn't you, nor an administrator at your request, someone knows your password: change it now in the app,
and tell your organization.`,
  },
  'wrong-codes': {
    subject: 'Wrong one-time codes for your administrator account',
    text: ({ username, times, at, address }, when) => `Hello,

someone entered the correct password of the user ${username} and five wrong one-time codes
${englishTimes(times)}on ${when(at)}, from the address ${address}.
After ten wrong codes in 15 minutes, or thirty in a day, no code is accepted for this account until another
administrator unlocks it.

If it was you, check the clock of the device that shows the codes.
If it wasn't you, someone knows your password: change it now, and tell the other administrators.`,
  },
  'provider-key-rotated': {
    subject: 'Your activation key was replaced',
    text: ({ username, times, at, address }, when) => `Hello,

the key with which the user ${username} activates other users was replaced ${englishTimes(times)}on ${when(at)}, from the address ${address}.
The former key activates no users any more; users that are already active stay active. If your account was moved to
another organization, the new key activates users there.

If it was you, there is nothing to do.
If it wasn't you, nor an administrator at your request, change your password now in the app: that ends all open
sessions. Then replace the key again, and tell your organization.`,
  },
  'account-activated': {
    subject: 'Your account was activated',
    text: ({ username, times, at, address }, when) => `Hello,

an administrator activated the account of the user ${username} ${englishTimes(times)}on ${when(at)}, from the address ${address}.
Log in again in the app to use it.

If you don't know this account or didn't expect this, talk to your organization.`,
  },
  'organization-changed': {
    subject: 'The organization of your account was changed',
    text: ({ username, times, at, address }, when) => `Hello,

an administrator moved the user ${username} to another organization, or out of the present one,
${englishTimes(times)}on ${when(at)}, from the address ${address}.
All open sessions were ended: log in again in the app.

If you didn't expect this, talk to your organization.`,
  },
  'organization-email-changed': {
    subject: 'The e-mail address of your organization was changed',
    text: ({ organization, at, address }, when) => `Hello,

the e-mail address of the organization ${organization} was changed on ${when(at)}, from the address ${address}.
Activation keys for its users are no longer sent to this address, and those that were sent don't work any more.

If you don't know of this change, tell the administrators of the service now: keys sent to another address
give access as a member of your organization.`,
  },
  'member-deactivated': {
    subject: 'Your organization deactivated your account',
    text: ({ username, times, at }, when) => `Hello,

the organization of the user ${username} deactivated the account ${englishTimes(times)}on ${when(at)}: the account doesn't belong
to the organization any more, and all open sessions were ended.

Your data is still stored. To use the account again, log in in the app and activate it with a key of an
organization. If you didn't expect this, talk to your organization.`,
  },
  administration: {
    subject: 'A change made on the database itself',
    text: ({ username, id, action, role, actor, at, reason }, when) => `Hello,

the user ${withId(username, id)} ${englishChanges[action]}${role ? `: ${role}` : ''}.

Who: ${actor}, on the database itself, without a sign-in as an administrator
When: ${when(at)}
Reason given: ${reason}

All other active administrators receive this message.
If you don't recognize this change, contact the operators of the server now: the person who made it has access
to the database and the master key.`,
  },
  administered: {
    subject: 'A change to your administrator account',
    text: ({ username, id, action, role, actor, at, reason }, when) => `Hello,

the user ${withId(username, id)} ${englishChanges[action]}${role ? `: ${role}` : ''}.

Who: ${actor}
When: ${when(at)}${reason ? `\nReason given: ${reason}` : ''}

If you recognize this change, no action is needed.
If you don't, contact another administrator now: the audit log shows the change, and a suspension ends all
sessions.`,
  },
}
