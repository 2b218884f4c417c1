import { createHash } from 'node:crypto'
import { type DescMethodUnary, type Message, toBinary } from '@bufbuild/protobuf'
import { wrongFields } from './wrong-fields.js'

/** Default and maximum number of rows of a page. */
interface Sizes {
  readonly usual: number
  readonly max: number
}

/** A requested page. */
interface Page<After> {
  /** Maximum number of its rows. */
  readonly size: number
  /** Rows to read: one more than shown, which says whether there is a next page. */
  readonly limit: number
  /** Behind which row it begins; undefined for the first page. */
  readonly after: After | undefined
  /** The token with which the next page begins behind a row. */
  next(after: After): string
  /** The rows to show of those that were read and, unless they are the last, the token of the next page. */
  cut<Row>(rows: readonly Row[], afterOf: (last: Row) => After): { shown: readonly Row[]; nextPageToken?: string }
}

/** A request for a page (AIP-158). */
interface ListRequest {
  readonly pageSize: number
  readonly pageToken: string
}

/** Reads which page a request asks for. The token of a list that depends on its caller is bound to `owner`, too. */
export type OpenPage = <After>(
  rpc: DescMethodUnary,
  request: Message & ListRequest,
  options?: { readonly sizes?: Sizes; readonly owner?: string },
) => Page<After>

/**
 * Page tokens are sealed, so that clients can't depend on their content, and bound to their RPC and filter.
 * `OpenPage` refuses others with INVALID_ARGUMENT.
 */
export function createPaging(masterKey: {
  seal(use: string, text: string): Buffer
  open(use: string, sealed: Buffer): string
}): OpenPage {
  return (rpc, request, { sizes = { usual: 50, max: 1_000 }, owner = '' } = {}) => {
    const { pageSize, pageToken } = request
    if (pageSize < 0) wrongFields([{ field: 'page_size', message: 'Use 0 or more.' }])
    const filter = toBinary(rpc.input, Object.assign({}, request, { pageSize: 0, pageToken: '' }))
    const digest = createHash('sha256').update(`${owner}\0`).update(filter).digest('base64url')
    const use = `page-token ${rpc.name} ${digest}`
    const size = Math.min(pageSize || sizes.usual, sizes.max)
    const next = (after: unknown) => masterKey.seal(use, JSON.stringify(after)).toString('base64url')
    return {
      size,
      limit: size + 1,
      after: pageToken === '' ? undefined : read(use, pageToken),
      next,
      cut(rows, afterOf) {
        const shown = rows.slice(0, size)
        return rows.length > size ? { shown, nextPageToken: next(afterOf(shown.at(-1)!)) } : { shown }
      },
    }
  }

  function read(use: string, token: string) {
    try {
      return JSON.parse(masterKey.open(use, Buffer.from(token, 'base64url')))
    } catch {
      return wrongFields([
        { field: 'page_token', message: 'Not valid for this list and filter. Start without a page token.' },
      ])
    }
  }
}
