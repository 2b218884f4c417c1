// This folder owns the feed of changes (auth.v1.Changes): the RPC (poll.ts) and what its calls share (feed-reader.ts). The audit
// log seals the events that the feed consists of, models/change-feed.ts reads them, and policy/audit-actions.ts says which they
// are.
import type { ChangesRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import type { FeedReader } from './feed-reader.js'
import { poll } from './poll.js'

/** Makes the RPC of `Changes`. */
export function createChangesRpcs({ changeFeed }: Models, feedReader: FeedReader): ChangesRpcs {
  return { poll: poll({ changeFeed, feedReader }) }
}
