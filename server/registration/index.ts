// This folder owns how users and organizations are added and changed, one or many: their forms (form.ts), their names
// (name-refusals.ts), their accounts (registrar.ts, organizations.ts), and who becomes a member (membership.ts). Sign-up, own changes,
// administration, imports and the installation use it. They know who may change what, and record the events; the models store.
import type { Models } from '../models/index.js'
import { createPasswordPolicy } from '../passwords/policy.js'
import type { Settings } from '../process/settings.js'
import type { FormRules } from './form.js'
import { createOrganizationRegistrar } from './organizations.js'
import { createRegistrar } from './registrar.js'

/** What adds and changes users and organizations. */
export type Registration = ReturnType<typeof createRegistration>

/** Makes what adds and changes users and organizations; `now` is a clock in ms since 1970. */
export function createRegistration(registry: Models, settings: Settings, now: () => number) {
  const { timeZone, passwordMinLength: minLength, passwordDenylist: denylistFile } = settings
  const rules: FormRules = { policy: createPasswordPolicy({ minLength, denylistFile }), timeZone, now }
  return { rules, registrar: createRegistrar(registry), organizationRegistrar: createOrganizationRegistrar(registry) }
}
