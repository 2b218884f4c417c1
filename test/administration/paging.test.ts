/** Pages (AIP-158): sizes, the empty token at the end, and tokens that are bound to RPC and filter. */
import test from 'ava'
import { openSignedIn, reasonOf, wrongFieldsOf } from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))

test('a list returns each row once, in pages of 50 by default and at most 1,000, until the page token is empty', async t => {
  const { id } = await service.organization({ name: 'Modelo' })
  await ask(
    service.env.DATABASE_URL!,
    `INSERT INTO organizations (name, name_key, type, activation_key_digest, activation_key_sealed)
      SELECT 'Página ' || n, 'pagina ' || n, 'P', sha256(n::text::bytea), (SELECT activation_key_sealed FROM organizations WHERE id = ${id})
      FROM generate_series(1, 1005) n`,
  )
  const api = await openSignedIn(t, service)
  const type = 'P'
  t.is((await api.listOrganizations({ type })).organizations.length, 50)
  const first = await api.listOrganizations({ type, pageSize: 5_000 })
  t.is(first.organizations.length, 1_000)
  t.not(first.nextPageToken, '')
  const rest = await api.listOrganizations({ type, pageSize: 5_000, pageToken: first.nextPageToken })
  t.is(rest.organizations.length, 5)
  t.is(rest.nextPageToken, '')
  const ids = [...first.organizations, ...rest.organizations].map(({ record }) => record!.id!)
  t.is(new Set(ids).size, 1005)
  // Also if the last page is full.
  const exact = await api.listOrganizations({ type, pageSize: 5, pageToken: first.nextPageToken })
  t.is(exact.nextPageToken, '')
  t.deepEqual(await wrongFieldsOf(api.listOrganizations({ pageSize: -1 })), ['page_size'])
})

test('a page token is refused if it is altered or used with another filter or RPC', async t => {
  await service.organization({ name: 'Uma' })
  await service.organization({ name: 'Outra' })
  const api = await openSignedIn(t, service)
  const { nextPageToken: pageToken } = await api.listOrganizations({ active: true, pageSize: 1 })
  t.is(await reasonOf(api.listOrganizations({ active: true, pageSize: 2, pageToken })), 'none')
  const { nextPageToken: plain } = await api.listOrganizations({ pageSize: 1 })
  const altered = `${pageToken[0] === 'A' ? 'B' : 'A'}${pageToken.slice(1)}`
  for (const call of [
    api.listOrganizations({ pageToken }),
    api.listOrganizations({ active: false, pageToken }),
    api.listOrganizations({ active: true, text: 'x', pageToken }),
    api.listUsers({ pageToken: plain }),
    api.listQuestions({ pageToken: plain }),
    api.listOrganizations({ active: true, pageToken: altered }),
    api.listOrganizations({ active: true, pageToken: 'x' }),
  ]) {
    t.deepEqual(await wrongFieldsOf(call), ['page_token'])
  }
})
