// Who sent a gRPC call: the peer of its connection, by certificate or address, and the client that a gateway names.
import { X509Certificate } from 'node:crypto'
import type { PeerCertificate } from 'node:tls'
import type { Message } from '@bufbuild/protobuf'
import type { ServerUnaryCall } from '@grpc/grpc-js'
import { LRUCache } from 'lru-cache'
import { keyPrefix } from '../models/service.js'
import type { OnSender } from '../observability/undeclared-proxy.js'
import type { Call } from '../requests/call.js'
import { createSenderOf, type Sender } from '../requests/client-address.js'

/** A call as grpc-js passes it on. */
export type Incoming = ServerUnaryCall<Message, Message>

/** Which peers are gateways, whose word on the client's address is believed. */
export interface Trust {
  /**
   * Receives the sender of each call and its `x-forwarded-for`, believed or not; without the latter where a service shows
   * its key.
   */
  readonly onSender?: OnSender
  /** Addresses and CIDR blocks of gateways, where callers present no certificates. */
  readonly trustedProxies: readonly string[]
  /** Names in the certificates of gateways, where callers present them. */
  readonly gatewayNames: readonly string[]
}

/** The sender of a call, with the name in its certificate. */
export type Peer = Sender & Pick<Call, 'certificate'>

/**
 * Finds the sender of a call. A certificate outweighs the address, which others on the network can take. It is a gateway's
 * when a DNS name in it is one of `gatewayNames`, or, where it has no DNS names, its common name (RFC 6125, 6.4.4).
 */
export function createPeerOf({ trustedProxies, gatewayNames, onSender }: Trust): (incoming: Incoming) => Peer {
  const senderOf = createSenderOf(trustedProxies)
  // Reading a certificate takes longer than the rest of a call.
  const known = new LRUCache<string, ReturnType<typeof read>>({ max: 1000 })

  function read({ raw, subject }: PeerCertificate) {
    const certificate = new X509Certificate(raw)
    const options = { subject: 'default', wildcards: false } as const
    const trusted = gatewayNames.some(name => certificate.checkHost(name, options) !== undefined)
    return { trusted, name: trusted ? undefined : ([subject.CN].flat()[0] ?? certificate.subjectAltName) }
  }

  return incoming => {
    const certificate = incoming.getAuthContext().sslPeerCertificate
    let caller = certificate && known.get(certificate.fingerprint256)
    if (certificate && !caller) {
      caller = read(certificate)
      known.set(certificate.fingerprint256, caller)
    }
    // The peer reads `127.0.0.1:51000`, `[::1]:51000` or `::1:51000`.
    const address = incoming
      .getPeer()
      .replace(/:\d+$/, '')
      .replace(/^\[(.*)\]$/, '$1')
    const forwardedFor = textOf(incoming, 'x-forwarded-for')
    const sender = senderOf(address, forwardedFor, caller?.trusted)
    // Services are believed by their keys, which are checked later.
    onSender?.(sender, textOf(incoming, 'authorization')?.includes(keyPrefix) ? undefined : forwardedFor)
    return { ...sender, certificate: caller?.name }
  }
}

/** The first value of a metadata key. */
export function textOf(incoming: Incoming, name: string): string | undefined {
  return incoming.metadata.get(name)[0]?.toString()
}
