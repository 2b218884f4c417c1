import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { AdministrationRpcs } from '../calls/context.js'
import type { Transaction } from '../database/database.js'
import type { Models } from '../models/index.js'
import { publishLead, type SigningKey } from '../models/signing-key.js'
import { issuerObject } from '../models/token-issuer.js'
import { isAdministrationAudience, isForIssuer, type Settings } from '../process/settings.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { wrongField, wrongFields } from '../requests/wrong-fields.js'
import { maxLengths, tooLong } from '../rules/sizes.js'
import { requireConfirmation } from './confirmation.js'
import { reservedNames } from './services.js'

/** The RPCs of signing keys, and of issuer and audience of tokens. */
export function signingKeyRpcs(
  { signingKeys, sealingKeys, idTokenKeys, answers, tokenIssuers, services }: Models,
  settings: Pick<Settings, 'tokenTtl'>,
) {
  /** How a key of each kind is dropped; false if there is none. */
  const retire = {
    signing: signingKeys.retire,
    sealing: async (id: string, t: Transaction) => (await sealingKeys.retire(id, t)) && {},
    'id-token': async (kid: string, t: Transaction) => (await idTokenKeys.retire(kid, t)) && {},
  }

  async function kindOf(kid: string): Promise<keyof typeof retire | undefined> {
    if ((await sealingKeys.list()).some(({ id }) => id === kid)) return 'sealing'
    if ((await idTokenKeys.all()).some(key => key.kid === kid)) return 'id-token'
    return (await signingKeys.all()).some(key => key.kid === kid) ? 'signing' : undefined
  }

  return {
    /** Lists the keys that sign and verify tokens, those that seal, the newest first, and those of ID tokens. */
    async listSigningKeys(_request) {
      const [keys, signer, sealing] = [await signingKeys.all(), await signingKeys.signer(), await sealingKeys.list()]
      const ofIdTokens = await idTokenKeys.all()
      return {
        keys: keys.map(key => toSigningKey(key, signer)),
        sealingKeys: sealing.map(({ id, createdAt }) => ({ kid: id, createTime: timestampFromDate(createdAt) })),
        idTokenKeys: ofIdTokens.map(({ kid, signs, signsAt }) => ({
          kid,
          signs,
          signTime: timestampFromDate(signsAt),
        })),
      }
    },

    /** Returns one of these keys. */
    async getSigningKey(request) {
      const kid = readKid(request.kid)
      const key = (await signingKeys.all()).find(key => key.kid === kid) ?? missing(kid)
      return { key: toSigningKey(key, await signingKeys.signer()) }
    },

    /** Publishes a new signing key. The former key verifies until its last token expires. */
    async rotateSigningKey(request, { transact }) {
      return transact(async ({ t, record }) => {
        const lead = request.now ? 0 : publishLead
        const kid = await signingKeys.rotate({ force: true, lead, tokenTtl: settings.tokenTtl }, t)
        await record({ action: 'signing-key.rotate', object: `signing-key:${kid}` })
        const key = (await signingKeys.all(t)).find(key => key.kid === kid)!
        return { key: toSigningKey(key, await signingKeys.signer(t)) }
      })
    },

    /** Drops a key at once, with every token that it signed or sealed, and the answers that such a session may have saved. */
    async retireSigningKey(request, { transact }) {
      const kid = readKid(request.kid)
      const kind = (await kindOf(kid)) ?? missing(kid)
      requireConfirmation(kid, request.confirm)
      const retired = await transact(async ({ t, record }) => {
        const retired = await retire[kind](kid, t)
        if (kind !== 'id-token') await answers.endWaiting(t)
        await record({ action: 'signing-key.retire', object: `${kind}-key:${kid}` })
        return retired || missing(kid)
      })
      if (kind === 'id-token' && !request.validateOnly) await idTokenKeys.make()
      return retired
    },

    /** Returns issuer and audience of tokens. */
    async getIssuer(_request) {
      const found = await tokenIssuers.find()
      if (!found) throw new Error('The registry has no issuer: it is not installed.')
      return { ...found }
    },

    /** Changes issuer or audience of tokens; processes read them when they start. */
    async setIssuer(request, { transact }) {
      const asked = { issuer: request.issuer?.trim(), audience: request.audience?.trim() }
      const wrong: FieldViolation[] = Object.entries(asked).flatMap(([field, text]) =>
        text !== undefined && (text === '' || tooLong(text, 'text') || /\p{C}/u.test(text))
          ? [{ field, reason: 'MALFORMED', message: `Use 1 to ${maxLengths.text} characters.` }]
          : [],
      )
      if (asked.audience && isAdministrationAudience(asked.audience)) {
        const message = 'Use another audience: this one is reserved for tokens of administrators.'
        wrong.push({ field: 'audience', reason: 'RESERVED', message })
      }
      if (!asked.issuer && !asked.audience && wrong.length === 0)
        wrong.push({ field: 'issuer', reason: 'MISSING', message: 'Specify issuer, audience, or both.' })
      if (wrong.length > 0) wrongFields(wrong)
      return transact(async ({ t, record }) => {
        const from = await tokenIssuers.lock(t)
        const to = { issuer: asked.issuer ?? from.issuer, audience: asked.audience ?? from.audience }
        requireConfirmation(to.issuer, request.confirm)
        if (isForIssuer(to)) {
          const message = 'Use an audience that differs from the issuer.'
          wrongField(asked.audience === undefined ? 'issuer' : 'audience', 'CONFLICTING', message)
        }
        for (const name of reservedNames(to)) {
          if (!(await services.find(name, t))) continue
          const message = `Use another: a service has the name ${name}.`
          wrongField(name === to.audience ? 'audience' : 'issuer', 'TAKEN', message)
        }
        const changed = to.issuer !== from.issuer || to.audience !== from.audience
        if (changed) {
          await tokenIssuers.change(to, t)
          await record({ action: 'registry.set-issuer', object: issuerObject(to, from) })
        }
        return { ...to, changed }
      })
    },
  } satisfies Partial<AdministrationRpcs>
}

function readKid(given: string | undefined): string {
  const kid = (given ?? '').trim()
  if (kid === '' || tooLong(kid, 'key')) wrongField('kid', 'MISSING', 'Specify the id of a key.')
  return kid
}

function missing(kid: string): never {
  return refuse(Reason.RECORD_NOT_FOUND, { text: `There is no key ${kid}.` })
}

function toSigningKey({ kid, signsAt, verifiesUntil, tokenTtl }: SigningKey, signer: string | undefined) {
  return {
    kid,
    signs: kid === signer,
    signTime: timestampFromDate(signsAt),
    expireTime: verifiesUntil ? timestampFromDate(verifiesUntil) : undefined,
    tokenTtl,
  }
}
