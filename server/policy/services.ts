import type { DescService } from '@bufbuild/protobuf'
import { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { OpenId } from '../../proto/gen/auth/v1/openid_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { changesPolicies } from './changes.js'
import { forgotPasswordsPolicies } from './forgotpasswords.js'
import { openIdPolicies } from './openid.js'
import type { Policy } from './policy.js'
import { usersPolicies } from './users.js'

/** The services for clients, each with the policies of its RPCs. */
export const clientServices: readonly (readonly [DescService, Readonly<Record<string, Policy>>])[] = [
  [Users, usersPolicies],
  [ForgotPasswords, forgotPasswordsPolicies],
  [OpenId, openIdPolicies],
  [Changes, changesPolicies],
]
