/** Activation: who may, with which key, and its effects. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { suspend } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { type SignedUp, serviceForFile, serviceWithClock } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const service = serviceForFile()

const activate = (token: string, query: { username?: string; activationkey?: string }) =>
  service.request('POST', '/users/activate', { token, query })
const me = async ({ token }: { token: string }) => (await service.request('GET', '/users/me', { token })).json

async function scene() {
  const organization = await service.organization()
  return { organization, provider: await service.institution(organization) }
}

test('a ROLE_INSTITUTION is activated by its organization’s key, and gets its own provider key', async t => {
  const { id, activationkey } = await service.organization()
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const { status, text } = await activate(token, { username, activationkey })
  t.is(`${status} ${text}`, `200 ${username}`)
  const { active, partnerOrganization, providerActivationKey } = await me({ token })
  t.is(active, 1)
  t.is(partnerOrganization.id, id)
  t.regex(providerActivationKey.activationkey, /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/)
  t.not(providerActivationKey.activationkey, activationkey)
})

test('a ROLE_CLIENT is activated by the key of a provider and belongs to its organization', async t => {
  const { organization, provider } = await scene()
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const { status, text } = await activate(token, { username, activationkey: provider.providerKey })
  t.is(`${status} ${text}`, `200 ${username}`)
  const { active, partnerOrganization, providerActivationKey } = await me({ token })
  t.is(active, 1)
  t.is(partnerOrganization.id, organization.id)
  t.is(providerActivationKey, undefined)
})

test('a token from before the activation stays valid, and a refreshed one shows active', async t => {
  const { organization, provider } = await scene()
  const { username, token } = await service.signUp('ROLE_CLIENT')
  await activate(token, { username, activationkey: provider.providerKey })
  t.is((await me({ token })).active, 1)
  const { text } = await service.request('GET', '/users/refresh', { token })
  t.is(claimsOf(token).active, false)
  t.is(claimsOf(text).active, true)
  t.is(claimsOf(text).org, organization.id)
})

test('an administrator can activate every user', async t => {
  const { provider } = await scene()
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const admin = await service.adminToken()
  t.is((await activate(admin, { username, activationkey: provider.providerKey })).text, username)
  t.is((await me({ token })).active, 1)
})

/** A key as people copy it. */
const copied: Record<string, (key: string) => string> = {
  'in upper case with space around it': key => ` ${key.toUpperCase()} `,
  'without hyphens': key => key.replaceAll('-', ''),
  'with spaces': key => key.replaceAll('-', ' '),
  'with dashes': key => key.replaceAll('-', '–'),
  'with hyphens that don’t break': key => key.replaceAll('-', '‑'),
  'with a line break': key => `${key.slice(0, 18)}\n${key.slice(18)}`,
  'with a full stop': key => `${key}.`,
  'with invisible characters': key => `\ufeff${key.slice(0, 9)}\u200b${key.slice(9)}\u00a0`,
  'in full width': key => key.replace(/./g, each => String.fromCharCode(each.charCodeAt(0) + 0xfee0)),
  'in braces': key => `{${key}}`,
}

test('the username may be written in another spelling, and only letters and digits of a key count, however it is copied', async t => {
  const { provider, organization } = await scene()
  for (const [role, key] of [
    ['ROLE_CLIENT', provider.providerKey],
    ['ROLE_INSTITUTION', organization.activationkey],
  ] as const)
    for (const [how, copy] of Object.entries(copied)) {
      const { username, token } = await service.signUp(role)
      const name = username.replace(/\D/g, '')
      const wrong = `${key.slice(1)}${key[0] === 'a' ? 'b' : 'a'}`
      refused(t, await activate(token, { username: name, activationkey: copy(wrong) }), 422, 'ACTIVATION_REFUSED')
      t.is((await activate(token, { username: name, activationkey: copy(key) })).text, username, how)
    }
})

test('a missing key or username is answered with 400', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  refused(t, await activate(token, { username }), 400, 'MISSING_PARAMETER')
  refused(t, await activate(token, { activationkey: randomUUID() }), 400, 'MISSING_PARAMETER')
  refused(t, await activate(token, { username, activationkey: ' ' }), 400, 'MISSING_PARAMETER')
})

type Refusal = () => Promise<{ token: string; username: string; activationkey: string }>
const refusals: Record<string, Refusal> = {
  'an unknown user': async () => {
    const { provider } = await scene()
    return { token: await service.adminToken(), username: randomUUID(), activationkey: provider.providerKey }
  },
  'a user who is active already': async () => {
    const { organization, provider } = await scene()
    return { ...provider, activationkey: organization.activationkey }
  },
  'a suspended user whom an administrator activates': async () => {
    const { provider } = await scene()
    const user = await service.signUp('ROLE_CLIENT')
    await suspend(service.registry, idOf(user.token))
    return { ...user, token: await service.adminToken(), activationkey: provider.providerKey }
  },
  'a ROLE_ADMIN': async () => {
    const { organization } = await scene()
    return { ...(await service.signUp('ROLE_ADMIN')), activationkey: organization.activationkey }
  },
  'a ROLE_ADMIN whom an administrator activates': async () => {
    const { activationkey } = await service.organization()
    const { username } = await service.signUp('ROLE_ADMIN')
    return { token: await service.adminToken(), username, activationkey }
  },
  'an unknown key': async () => ({ ...(await service.signUp('ROLE_CLIENT')), activationkey: randomUUID() }),
  'a malformed key': async () => ({ ...(await service.signUp('ROLE_INSTITUTION')), activationkey: 'open sesame' }),
  'the organization’s key for a ROLE_CLIENT': async () => {
    const { organization } = await scene()
    return { ...(await service.signUp('ROLE_CLIENT')), activationkey: organization.activationkey }
  },
  'a provider key for a ROLE_INSTITUTION': async () => {
    const { provider } = await scene()
    return { ...(await service.signUp('ROLE_INSTITUTION')), activationkey: provider.providerKey }
  },
  'the key of an inactive organization': async () => {
    const { organization } = await scene()
    await service.registry.organizations.setActive(organization.id, false)
    return { ...(await service.signUp('ROLE_INSTITUTION')), activationkey: organization.activationkey }
  },
  'the provider key of an inactive organization': async () => {
    const { organization, provider } = await scene()
    await service.registry.organizations.setActive(organization.id, false)
    return { ...(await service.signUp('ROLE_CLIENT')), activationkey: provider.providerKey }
  },
  'the key of a suspended provider': async () => {
    const { provider } = await scene()
    await suspend(service.registry, idOf(provider.token))
    return { ...(await service.signUp('ROLE_CLIENT')), activationkey: provider.providerKey }
  },
  'a key mailed for another user': async () => {
    const { organization } = await scene()
    const other = await service.signUp('ROLE_INSTITUTION')
    const activationkey = randomUUID()
    await service.registry.mailedKeys.replace(idOf(other.token), 'activation', activationkey, {
      organizationId: organization.id,
    })
    return { ...(await service.signUp('ROLE_INSTITUTION')), activationkey }
  },
  'a key mailed for an organization that is inactive by now': async () => {
    const { organization } = await scene()
    const user = await service.signUp('ROLE_INSTITUTION')
    const activationkey = randomUUID()
    await service.registry.mailedKeys.replace(idOf(user.token), 'activation', activationkey, {
      organizationId: organization.id,
    })
    await service.registry.organizations.setActive(organization.id, false)
    return { ...user, activationkey }
  },
}
for (const [what, arrange] of Object.entries(refusals)) {
  test(`${what} is refused with 422, and the user stays inactive`, async t => {
    const { token, username, activationkey } = await arrange()
    const count = () => service.registry.users.byId(idOf(token))
    const before = await count()
    refused(t, await activate(token, { username, activationkey }), 422, 'ACTIVATION_REFUSED')
    t.deepEqual(await count(), before)
  })
}

test('a key mailed for an organization is valid for 72 hours', async t => {
  const later = await serviceWithClock(t)
  const organization = await later.organization()
  const users = [await later.signUp('ROLE_INSTITUTION'), await later.signUp('ROLE_INSTITUTION')]
  const activationkey = randomUUID()
  for (const { token } of users) {
    await later.registry.mailedKeys.replace(idOf(token), 'activation', activationkey, {
      organizationId: organization.id,
    })
  }
  const activate = async ({ username }: SignedUp) => {
    const token = await later.login(username)
    return later.request('POST', '/users/activate', { token, query: { username, activationkey } })
  }
  await later.clock.pass(72 * 3600 - 1)
  t.is((await activate(users[0]!)).status, 200)
  await later.clock.pass(1)
  refused(t, await activate(users[1]!), 422, 'ACTIVATION_REFUSED')
})
