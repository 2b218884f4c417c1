/** A transaction locks the rows that it depends on until it ends, and skips rows locked by others if possible. */
import test from 'ava'
import type { Models } from '../../server/models/define-models.js'
import type { Place } from '../../server/models/organization.js'
import { addUser, endsOrWaits, openModels } from '../_helpers/models.js'

type Transaction = Parameters<Models['organizations']['rotateKey']>[1]

/** An organization, its key, and a provider of it with a provider key. */
async function scene(models: Models) {
  const { administeredUsers, database, masterKey, organizations, users } = models
  const organization = await database.transact(t => organizations.add({ name: 'Escola' }, t))
  const provider = await addUser(models, 'ana', 'ROLE_INSTITUTION')
  await database.transact(async t =>
    users.activate((await administeredUsers.lock(provider, t))!, organization.id as Place, t),
  )
  const { providerKeySealed } = (await users.byId(provider))!
  return {
    id: organization.id,
    key: organizations.activationKey(organization),
    provider,
    providerKey: masterKey.open('activation-key', providerKeySealed!),
  }
}

interface Use {
  /** The holder of a key that an activation finds. */
  readonly find: (models: Models, given: Awaited<ReturnType<typeof scene>>, t: Transaction) => Promise<unknown>
  /** The changes that void the key. */
  readonly change: (models: Models, given: Awaited<ReturnType<typeof scene>>, t: Transaction) => Promise<unknown>
}
const uses: Record<string, Use> = {
  'an organization’s key isn’t rotated while it activates a user': {
    find: ({ organizations }, { key }, t) => organizations.byActivationKey(key, t),
    change: ({ organizations }, { id }, t) => organizations.rotateKey(id, t),
  },
  'an organization isn’t deactivated while its key activates a user': {
    find: ({ organizations }, { key }, t) => organizations.byActivationKey(key, t),
    change: ({ organizations }, { id }, t) => organizations.setActive(id, false, t),
  },
  'an organization isn’t deactivated while a key mailed to it activates a user': {
    find: async ({ organizations }, { id }, t) => (await organizations.hold([id], t)).some(({ active }) => active),
    change: ({ organizations }, { id }, t) => organizations.setActive(id, false, t),
  },
  'a provider isn’t suspended while its key activates a user': {
    find: ({ organizations }, { providerKey }, t) => organizations.byProviderKey(providerKey, t),
    change: async ({ users, audit }, { provider }, t) => {
      await users.suspend(provider, t)
      await audit.append({ action: 'user.suspend', outcome: 'ok', actor: 'test', subject_id: provider }, t)
    },
  },
}
for (const [name, { find, change }] of Object.entries(uses)) {
  test(name, async t => {
    const models = await openModels(t)
    const given = await scene(models)
    let changed: Promise<unknown> | undefined
    await models.database.transact(async transaction => {
      t.truthy(await find(models, given, transaction))
      changed = models.database.transact(other => change(models, given, other))
      t.is(await endsOrWaits(models.database, changed), 'waits')
    })
    await changed
    t.falsy(await models.database.transact(transaction => find(models, given, transaction)))
  })
}

test('one key activates many users at the same time', async t => {
  const models = await openModels(t)
  const { key } = await scene(models)
  const { database, organizations } = models
  await database.transact(async transaction => {
    await organizations.byActivationKey(key, transaction)
    const other = database.transact(another => organizations.byActivationKey(key, another))
    t.is(await endsOrWaits(database, other), 'ends')
  })
})

test('an e-mail that another worker is claiming is skipped', async t => {
  const { database, emails } = await openModels(t)
  const parameters = { userId: 1, at: '', address: '' }
  await emails.add({ kind: 'password-changed', stage: 'requested', parameters }, 'en')
  await emails.add({ kind: 'recovery-login', stage: 'requested', parameters }, 'en')
  await database.transact(async transaction => {
    await database.sequelize.query(`SELECT FROM emails WHERE kind = 'password-changed' FOR UPDATE`, { transaction })
    const claimed = emails.claim(60, true)
    t.is(await endsOrWaits(database, claimed), 'ends')
    t.is((await claimed)?.kind, 'recovery-login')
  })
  t.is((await emails.claim(60, true))?.kind, 'password-changed')
  t.is(await emails.claim(60, true), undefined)
})
