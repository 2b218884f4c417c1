// This folder owns the RPCs of the service `auth.v1.Users`: an object of RPCs for each noun, and a file for each long rule.
// users.proto documents their meaning and refusals. access/ identifies callers and limits attempts, models/ stores, calls/
// applies the policies.
import type { UsersRpcs } from '../calls/context.js'
import type { Parts } from '../calls/parts.js'
import { createPaging } from '../requests/paging.js'
import { activate } from './activate.js'
import { sendAdminKeyByEmailPartner } from './activation-email.js'
import { deleteMe } from './delete-me.js'
import { deleteMyAnswers } from './delete-my-answers.js'
import { emailRpcs } from './email.js'
import { existsRpcs } from './exists.js'
import { tokenRpcs } from './introspection.js'
import { login } from './login.js'
import { lookUpRpcs } from './look-ups.js'
import { memberRpcs } from './members.js'
import { myDataRpcs } from './my-data.js'
import { updateMe } from './profile.js'
import { rotateProviderKey } from './provider-key.js'
import { refresh } from './refresh.js'
import { setUsername } from './rename.js'
import { signUp } from './sign-up.js'

/** Makes the RPCs of `Users` but for refresh tokens (openid/). */
export function createUsersRpcs(parts: Parts): Omit<UsersRpcs, 'createRefreshToken'> {
  const { registry, limits, hashing, access, outbox, registration, settings, log } = parts
  const openPage = createPaging(registry.dataKeys)
  return {
    signUp: signUp(parts),
    login: login(registry, hashing, access, log),
    refresh: refresh(registry, access),
    ...tokenRpcs(registry, access),
    ...lookUpRpcs(registry, limits, openPage),
    updateMe: updateMe(registry, limits, outbox, registration),
    ...emailRpcs(registry, access, outbox),
    setUsername: setUsername(registry, limits, access, outbox, registration),
    deleteMe: deleteMe(registry, access, outbox),
    deleteMyAnswers: deleteMyAnswers(registry, access, outbox),
    ...myDataRpcs(registry, outbox, openPage),
    activate: activate(registry, limits, settings),
    sendAdminKeyByEmailPartner: sendAdminKeyByEmailPartner(registry, limits, outbox),
    rotateProviderKey: rotateProviderKey(registry, outbox),
    ...memberRpcs(registry, access, outbox, openPage),
    ...existsRpcs(registry, limits),
  }
}
