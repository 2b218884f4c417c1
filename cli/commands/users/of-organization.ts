// Suspension of all members of an organization, and its end.
import type { Api, GlobalOptions } from '../../administration.js'
import { misuse } from '../../exit-codes.js'
import { canAsk, confirm } from '../../terminal/ask.js'
import { printJson, say } from '../../terminal/output.js'
import { withProgress } from '../../terminal/progress.js'

interface Options extends GlobalOptions {
  readonly organization?: string
  readonly confirm?: number
}

/** What each does to so many users, as a question and as a sentence. */
const sentences = {
  suspendUsers: {
    asks: (count: number) =>
      `Users who can no longer sign in: ${count}. Their tokens are revoked at once. Suspend them?`,
    says: (count: number) => `Users that are suspended now: ${count}.`,
  },
  resumeUsers: {
    asks: (count: number) => `Users who can sign in again: ${count}. End their suspension?`,
    says: (count: number) => `Users that are no longer suspended: ${count}.`,
  },
}

/** Changes the members of `--organization`, page by page, after their number is confirmed. */
export async function changeMembers(api: Api, rpc: keyof typeof sentences, options: Options): Promise<void> {
  const { organization } = options
  const count = (await api[rpc]({ organization, validateOnly: true })).users
  const { asks, says } = sentences[rpc]
  if (count > 0 && options.confirm === undefined) {
    if (!canAsk(options)) misuse(`Users whom this concerns: ${count}. To confirm, pass --confirm ${count}.`)
    await confirm(asks(count), { ...options, yes: false })
  }
  let users = 0
  const change = async (report: (done: string) => void) => {
    for (let pageToken: string | undefined; pageToken !== ''; ) {
      const page = await api[rpc]({ organization, confirm: options.confirm ?? count, ...(pageToken && { pageToken }) })
      users += page.users
      pageToken = page.nextPageToken
      report(`${users} so far`)
    }
  }
  if (count > 0 || options.confirm !== undefined) await withProgress('Writing', change)
  if (options.json) printJson({ users })
  else say(says(users))
}
