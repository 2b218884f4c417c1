import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { AdministrationRpcs } from '../calls/context.js'
import type { Models } from '../models/define-models.js'
import { publishLead, type SigningKey } from '../models/signing-key.js'
import { issuerObject } from '../models/token-issuer.js'
import { isAdministrationAudience, isForIssuer, type Settings } from '../process/settings.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { wrongFields } from '../requests/wrong-fields.js'
import { maxLengths, tooLong } from '../rules/sizes.js'
import { requireConfirmation } from './confirmation.js'
import { reservedNames } from './services.js'

/** The RPCs of signing keys, and of issuer and audience of tokens. */
export function signingKeyRpcs(
  { signingKeys, sealingKeys, questions, tokenIssuers, services }: Models,
  settings: Pick<Settings, 'tokenTtl'>,
) {
  return {
    /** Lists the keys that sign and verify tokens, and those that seal, the newest first. */
    async listSigningKeys(_request) {
      const [keys, signer, sealing] = [await signingKeys.all(), await signingKeys.signer(), await sealingKeys.list()]
      return {
        keys: keys.map(key => toSigningKey(key, signer)),
        sealingKeys: sealing.map(({ id, createdAt }) => ({ kid: id, createTime: timestampFromDate(createdAt) })),
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
      const seals = (await sealingKeys.list()).some(({ id }) => id === kid)
      if (!seals && !(await signingKeys.all()).some(key => key.kid === kid)) missing(kid)
      requireConfirmation(kid, request.confirm)
      return transact(async ({ t, record }) => {
        const retired = seals ? (await sealingKeys.retire(kid, t)) && {} : await signingKeys.retire(kid, t)
        await questions.endWaiting(t)
        await record({ action: 'signing-key.retire', object: `${seals ? 'sealing' : 'signing'}-key:${kid}` })
        return retired || missing(kid)
      })
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
          ? [{ field, message: `Use 1 to ${maxLengths.text} characters.` }]
          : [],
      )
      if (asked.audience && isAdministrationAudience(asked.audience)) {
        const message = 'Use another audience: this one is reserved for tokens of administrators.'
        wrong.push({ field: 'audience', message })
      }
      if (!asked.issuer && !asked.audience && wrong.length === 0)
        wrong.push({ field: 'issuer', message: 'Specify issuer, audience, or both.' })
      if (wrong.length > 0) wrongFields(wrong)
      return transact(async ({ t, record }) => {
        const from = await tokenIssuers.lock(t)
        const to = { issuer: asked.issuer ?? from.issuer, audience: asked.audience ?? from.audience }
        requireConfirmation(to.issuer, request.confirm)
        if (isForIssuer(to)) {
          const message = 'Use an audience that differs from the issuer.'
          wrongFields([{ field: asked.audience === undefined ? 'issuer' : 'audience', message }])
        }
        for (const name of reservedNames(to)) {
          if (!(await services.find(name, t))) continue
          const message = `Use another: a service has the name ${name}.`
          wrongFields([{ field: name === to.audience ? 'audience' : 'issuer', message }])
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
  if (kid === '' || tooLong(kid, 'key')) wrongFields([{ field: 'kid', message: 'Specify the id of a key.' }])
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
