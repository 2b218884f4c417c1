/** Client addresses: one canonical form for every notation, and forwarding headers only from trusted proxies. */
import test from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { canonicalAddress, createSenderOf, network, networksOf } from '../../server/requests/client-address.js'
import { grpcForFile } from '../_helpers/grpc.js'
import { sendRaw } from '../_helpers/raw.js'
import { password, serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const grpc = grpcForFile(service)

test('an address has one form, and no other text is an address', t => {
  for (const [text, canonical] of [
    ['192.0.2.7', '192.0.2.7'],
    ['::1', '::1'],
    ['2001:DB8:0:0:0:0:0:1', '2001:db8::1'],
    ['2001:0db8::0001', '2001:db8::1'],
    ['fe80::1%eth0', 'fe80::1'],
    ['::ffff:192.0.2.7', '192.0.2.7'],
    ['::FFFF:c000:207', '192.0.2.7'],
    ['0:0:0:0:0:ffff:192.0.2.7', '192.0.2.7'],
  ] as const)
    t.is(canonicalAddress(text), canonical)
  for (const text of ['192.0.2.007', '192.0.2', '0xc0.0.2.7', '[::1]', '1::2::3', 'unknown', ''])
    t.is(canonicalAddress(text), undefined, text)
})

test('an address belongs to its networks, and is counted as the innermost one', t => {
  for (const [address, ...networks] of [
    ['192.0.2.7', '192.0.2.7', '192.0.2.0/24'],
    ['2001:db8:1:23ff:3:4:5:6', '2001:db8:1:23ff::/64', '2001:db8:1:2300::/56', '2001:db8:1::/48'],
    ['2001:db8:1:2::', '2001:db8:1:2::/64', '2001:db8:1:0::/56', '2001:db8:1::/48'],
    ['2001:db8::1', '2001:db8:0:0::/64', '2001:db8:0:0::/56', '2001:db8:0::/48'],
    ['2001:db8::1:0:0:1', '2001:db8:0:0::/64', '2001:db8:0:0::/56', '2001:db8:0::/48'],
    ['::1', '0:0:0:0::/64', '0:0:0:0::/56', '0:0:0::/48'],
  ] as const) {
    t.deepEqual(networksOf(address), networks)
    t.is(network(address), networks[0])
  }
})

test('a request counts for the networks of its client, and for the proxy if that names no client', t => {
  t.deepEqual(senderOf('192.0.2.1', '198.51.100.1').networks, ['192.0.2.1', '192.0.2.0/24'])
  t.deepEqual(senderOf('10.0.0.1', '198.51.100.1').networks, ['198.51.100.1', '198.51.100.0/24'])
  for (const header of [undefined, '', ',', ' , ,\t'])
    t.deepEqual(senderOf('10.0.0.1', header).networks, ['proxy 10.0.0.1'])
})

const senderOf = createSenderOf(['10.0.0.0/8', '::1', '2001:db8::/32'])

for (const [why, peer, header, address, proxied] of [
  ['a peer that isn’t a proxy is the client', '192.0.2.1', '198.51.100.1', '192.0.2.1', false],
  ['a proxy names its client', '10.0.0.1', '198.51.100.1', '198.51.100.1', true],
  ['a proxy with an IPv4-mapped address names its client', '::ffff:10.0.0.1', '198.51.100.1', '198.51.100.1', true],
  ['a proxy in an IPv6 block names its client', '2001:db8::9', '198.51.100.1', '198.51.100.1', true],
  ['a proxy that names no client is the client', '10.0.0.1', undefined, '10.0.0.1', true],
  ['trusted proxies in between are skipped', '10.0.0.1', '1.2.3.4, 198.51.100.1, 10.9.9.9, ::1', '198.51.100.1', true],
  ['the first entry counts if all are trusted', '10.0.0.1', '10.1.1.1, 10.2.2.2', '10.1.1.1', true],
  ['an invalid entry before a proxy ends the search', '10.0.0.1', '198.51.100.1, unknown, 10.2.2.2', '10.2.2.2', true],
  ['brackets are removed', '10.0.0.1', '[2001:0DB9::1]:4711', '2001:db9::1', true],
  ['quotes within quotes are invalid', '10.0.0.1', '""198.51.100.1""', '10.0.0.1', true],
  ['an escape within quotes is invalid', '10.0.0.1', '"198\\.51.100.1"', '10.0.0.1', true],
  ['a port out of range is invalid', '10.0.0.1', '198.51.100.1:471100', '10.0.0.1', true],
  ['the result is canonical', '10.0.0.1', '::ffff:c633:6401', '198.51.100.1', true],
  ['a disconnected peer has no address', undefined, '198.51.100.1', '0.0.0.0', false],
] as const) {
  test(`behind proxies ${why}`, t => {
    // Twice, as the second result comes from the cache.
    for (let turn = 0; turn < 2; turn++) {
      const sender = senderOf(peer, header)
      t.deepEqual([sender.address, sender.proxied], [address, proxied])
    }
  })
}

test('a caller trusted by something other than its address may name its client, an untrusted one may not', t => {
  t.is(senderOf('192.0.2.1', '198.51.100.1', true).address, '198.51.100.1')
  t.is(senderOf('10.0.0.1', '198.51.100.1', false).address, '10.0.0.1')
})

test('without trusted proxies forwarding headers are ignored', t => {
  t.is(createSenderOf([])('127.0.0.1', '198.51.100.1').address, '127.0.0.1')
})

/** Header lines that a proxy at a trusted address sends, and the address that the audit log names for the login. */
const forwarded: readonly (readonly [lines: readonly string[], address: string])[] = [
  [['198.51.100.8'], '198.51.100.8'],
  [['198.51.100.8,'], '198.51.100.8'],
  [[',198.51.100.9'], '198.51.100.9'],
  [['192.0.2.1, , 198.51.100.10 ,\t, ,'], '198.51.100.10'],
  [['198.51.100.11', ''], '198.51.100.11'],
  [['192.0.2.1', '198.51.100.12'], '198.51.100.12'],
  [['192.0.2.1', ' , ', '198.51.100.13,', '127.0.0.1'], '198.51.100.13'],
  [['"198.51.100.14"'], '198.51.100.14'],
  [['192.0.2.1, "198.51.100.15:4711" ,'], '198.51.100.15'],
  [['"[2001:db8::16]:4711"'], '2001:db8::16'],
  [['[2001:db8::17]'], '2001:db8::17'],
  [['"2001:DB8:0::18"'], '2001:db8::18'],
  [['"::ffff:198.51.100.19"'], '198.51.100.19'],
  // A client wrote what stands before the entry of its proxy.
  [['", 198.51.100.20'], '198.51.100.20'],
  [['"192.0.2.1, 198.51.100.21'], '198.51.100.21'],
  [['192.0.2.1, unknown'], '127.0.0.1'],
  [['192.0.2.1, "198.51.100.22'], '127.0.0.1'],
  [['192.0.2.1, 198.51.100.23"'], '127.0.0.1'],
  [['192.0.2.1, ""'], '127.0.0.1'],
  [['192.0.2.1, for=198.51.100.24'], '127.0.0.1'],
  [['192.0.2.1, unknown, "127.0.0.1", ,'], '127.0.0.1'],
  [[''], '127.0.0.1'],
  [[' , ,'], '127.0.0.1'],
]

test('X-Forwarded-For is a list as in RFC 9110, 5.6.1: the last entry that isn’t empty counts, quoted or not', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const port = Number(new URL(service.http).port)
  const body = JSON.stringify({ username, password })
  const addressOfLast = async () =>
    (await service.registry.audit.list({ action: 'session.login', limit: 1 }))[0]?.address
  for (const [lines, address] of forwarded) {
    const headers = lines.map(line => `X-Forwarded-For: ${line}\r\n`).join('')
    const { statuses } = await sendRaw(port, [
      `POST /users/login HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n${headers}Content-Length: ${body.length}\r\n\r\n${body}`,
    ])
    t.deepEqual(statuses, [200])
    t.is(await addressOfLast(), address, `over HTTP: ${lines.join(' | ')}`)
    // HTTP/2 has no white space around values, and grpc-js sends no tabs.
    const header = lines.join(', ').replaceAll('\t', ' ').trim()
    await grpc.call(Users.method.login, { username, password }, { metadata: { 'x-forwarded-for': header } })
    t.is(await addressOfLast(), address, `over gRPC: ${header}`)
  }
})
