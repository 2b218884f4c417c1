// What the RPCs of a process are made of: what each folder below them offers.
import type { Access } from '../access/index.js'
import type { Limits } from '../limits/index.js'
import type { Registry } from '../models/index.js'
import type { Log } from '../observability/log.js'
import type { Outbox } from '../outbox/index.js'
import type { Hashing } from '../passwords/index.js'
import type { Settings } from '../process/settings.js'
import type { Registration } from '../registration/index.js'

/** The parts of a process. A function of an RPC gets those that it uses, and names what it uses of them. */
export interface Parts {
  readonly registry: Registry
  readonly limits: Limits
  readonly hashing: Hashing
  readonly access: Access
  readonly outbox: Outbox
  readonly registration: Registration
  readonly settings: Settings
  readonly log: Log
}
