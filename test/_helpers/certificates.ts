/** Certificates for tests (X.509, RFC 5280), with only the fields that TLS needs. */
import { generateKeyPairSync, type KeyObject, randomBytes, sign } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Teardown } from './database.js'
import { temporaryFolder } from './temporary-folder.js'

/** An authority, and a certificate that it signed, in PEM. */
export interface Authority {
  readonly certificate: Buffer
  issue(options: CertificateOptions): { cert: Buffer; key: Buffer }
}

/** The contents of a certificate. */
export interface CertificateOptions {
  /** Common name. */
  readonly name: string
  readonly dnsNames?: readonly string[]
  readonly uris?: readonly string[]
  /** IPv4 addresses. */
  readonly addresses?: readonly string[]
  /** Its last day; in a year by default. */
  readonly until?: Date
}

const year = 365 * 86_400_000

function der(tag: number, ...contents: Buffer[]): Buffer {
  const body = Buffer.concat(contents)
  const size = body.length
  const head = size < 128 ? [tag, size] : size < 256 ? [tag, 0x81, size] : [tag, 0x82, size >> 8, size & 255]
  return Buffer.concat([Buffer.from(head), body])
}

const sequence = (...contents: Buffer[]) => der(0x30, ...contents)
const objectId = (hex: string) => der(0x06, Buffer.from(hex, 'hex'))
const ecdsaWithSha256 = sequence(objectId('2a8648ce3d040302'))
const nameOf = (common: string) => sequence(der(0x31, sequence(objectId('550403'), der(0x0c, Buffer.from(common)))))
const timeOf = (date: Date) => der(0x17, Buffer.from(`${date.toISOString().replace(/[-:T]/g, '').slice(2, 14)}Z`))
const pem = (bytes: Buffer) => {
  const lines = bytes.toString('base64').match(/.{1,64}/g)!
  return Buffer.from(['-----BEGIN CERTIFICATE-----', ...lines, '-----END CERTIFICATE-----', ''].join('\n'))
}

/** Makes an authority with a new key. */
export function createAuthority(common: string): Authority {
  const own = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const issuer = nameOf(common)

  function certify(subject: Buffer, publicKey: KeyObject, until: Date, extensions: Buffer): Buffer {
    const body = sequence(
      der(0xa0, der(0x02, Buffer.from([2]))),
      der(0x02, Buffer.concat([Buffer.from([1]), randomBytes(8)])),
      ecdsaWithSha256,
      issuer,
      sequence(timeOf(new Date(Date.now() - year)), timeOf(until)),
      subject,
      publicKey.export({ type: 'spki', format: 'der' }),
      der(0xa3, sequence(extensions)),
    )
    const signature = der(0x03, Buffer.from([0]), sign('sha256', body, own.privateKey))
    return pem(sequence(body, ecdsaWithSha256, signature))
  }

  const isAuthority = sequence(
    objectId('551d13'),
    der(0x01, Buffer.from([0xff])),
    der(0x04, sequence(der(0x01, Buffer.from([0xff])))),
  )
  return {
    certificate: certify(issuer, own.publicKey, new Date(Date.now() + year), isAuthority),
    issue({ name, dnsNames = [], uris = [], addresses = [], until = new Date(Date.now() + year) }) {
      const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
      const names = [
        ...dnsNames.map(each => der(0x82, Buffer.from(each))),
        ...uris.map(each => der(0x86, Buffer.from(each))),
        ...addresses.map(each => der(0x87, Buffer.from(each.split('.').map(Number)))),
      ]
      const noAuthority = sequence(objectId('551d13'), der(0x04, sequence()))
      const more = names.length > 0 ? [sequence(objectId('551d11'), der(0x04, sequence(...names)))] : []
      return {
        cert: certify(nameOf(name), publicKey, until, Buffer.concat([noAuthority, ...more])),
        key: Buffer.from(privateKey.export({ type: 'pkcs8', format: 'pem' })),
      }
    },
  }
}

/** Writes each content to a separate file, and returns the paths by the same names; deleted when the test ends. */
export async function writePems<T extends Record<string, Buffer>>(
  t: Teardown,
  contents: T,
): Promise<{ [K in keyof T]: string }> {
  const folder = await temporaryFolder(t)
  const paths: Record<string, string> = {}
  for (const [name, content] of Object.entries(contents)) {
    paths[name] = join(folder, `${name}.pem`)
    await writeFile(paths[name], content)
  }
  return paths as { [K in keyof T]: string }
}
