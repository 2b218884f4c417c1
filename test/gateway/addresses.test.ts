/** Client addresses: one canonical form for every notation, and forwarding headers only from trusted proxies. */
import test from 'ava'
import { canonicalAddress, createSenderOf, network, networksOf } from '../../server/requests/client-address.js'

for (const [text, canonical] of [
  ['192.0.2.7', '192.0.2.7'],
  ['::1', '::1'],
  ['2001:DB8:0:0:0:0:0:1', '2001:db8::1'],
  ['2001:0db8::0001', '2001:db8::1'],
  ['fe80::1%eth0', 'fe80::1'],
  ['::ffff:192.0.2.7', '192.0.2.7'],
  ['::FFFF:c000:207', '192.0.2.7'],
  ['0:0:0:0:0:ffff:192.0.2.7', '192.0.2.7'],
  ['192.0.2.007', undefined],
  ['192.0.2', undefined],
  ['0xc0.0.2.7', undefined],
  ['[::1]', undefined],
  ['1::2::3', undefined],
  ['unknown', undefined],
  ['', undefined],
] as const) {
  test(`${text || 'nothing'} is ${canonical ? `the address ${canonical}` : 'no address'}`, t => {
    t.is(canonicalAddress(text), canonical)
  })
}

for (const [address, expected] of [
  ['192.0.2.7', '192.0.2.7'],
  ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2::/64'],
  ['2001:db8:1:2::', '2001:db8:1:2::/64'],
  ['2001:db8::1', '2001:db8:0:0::/64'],
  ['2001:db8::1:0:0:1', '2001:db8:0:0::/64'],
  ['::1', '0:0:0:0::/64'],
] as const) {
  test(`${address} is counted as ${expected}`, t => {
    t.is(network(address), expected)
  })
}

for (const [address, expected] of [
  ['192.0.2.7', ['192.0.2.7', '192.0.2.0/24']],
  ['2001:db8:1:23ff:3:4:5:6', ['2001:db8:1:23ff::/64', '2001:db8:1:2300::/56', '2001:db8:1::/48']],
  ['2001:db8::1', ['2001:db8:0:0::/64', '2001:db8:0:0::/56', '2001:db8:0::/48']],
] as const) {
  test(`${address} belongs to ${expected.join(', ')}`, t => {
    t.deepEqual(networksOf(address), expected)
  })
}

test('a request counts for the networks of its client, and for the proxy if that names no client', t => {
  t.deepEqual(senderOf('192.0.2.1', '198.51.100.1').networks, ['192.0.2.1', '192.0.2.0/24'])
  t.deepEqual(senderOf('10.0.0.1', '198.51.100.1').networks, ['198.51.100.1', '198.51.100.0/24'])
  t.deepEqual(senderOf('10.0.0.1', undefined).networks, ['proxy 10.0.0.1'])
})

const senderOf = createSenderOf(['10.0.0.0/8', '::1', '2001:db8::/32'])

for (const [why, peer, header, address, proxied] of [
  ['a peer that isn’t a proxy is the client', '192.0.2.1', '198.51.100.1', '192.0.2.1', false],
  ['a proxy names its client', '10.0.0.1', '198.51.100.1', '198.51.100.1', true],
  ['a proxy with an IPv4-mapped address names its client', '::ffff:10.0.0.1', '198.51.100.1', '198.51.100.1', true],
  ['a proxy in an IPv6 block names its client', '2001:db8::9', '198.51.100.1', '198.51.100.1', true],
  ['a proxy that names no client is the client', '10.0.0.1', undefined, '10.0.0.1', true],
  ['only the entry of the last proxy counts', '10.0.0.1', '1.2.3.4, 198.51.100.1', '198.51.100.1', true],
  ['trusted proxies in between are skipped', '10.0.0.1', '1.2.3.4, 198.51.100.1, 10.9.9.9, ::1', '198.51.100.1', true],
  ['the first entry counts if all are trusted', '10.0.0.1', '10.1.1.1, 10.2.2.2', '10.1.1.1', true],
  ['an invalid entry ends the search', '10.0.0.1', '198.51.100.1, unknown', '10.0.0.1', true],
  ['an invalid entry before a proxy ends the search', '10.0.0.1', '198.51.100.1, unknown, 10.2.2.2', '10.2.2.2', true],
  ['an empty entry is invalid', '10.0.0.1', '198.51.100.1,', '10.0.0.1', true],
  ['a port is removed', '10.0.0.1', '198.51.100.1:4711', '198.51.100.1', true],
  ['brackets are removed', '10.0.0.1', '[2001:0DB9::1]:4711', '2001:db9::1', true],
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
