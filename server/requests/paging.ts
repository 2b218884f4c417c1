import { createHash } from 'node:crypto'
import { type DescMethodUnary, type Message, toBinary } from '@bufbuild/protobuf'
import { wrongField } from './wrong-fields.js'

/** Default and maximum number of rows of a page. */
interface Sizes {
  readonly usual: number
  readonly max: number
}

/** A request for a page (AIP-158). */
interface ListRequest {
  readonly pageSize: number
  readonly pageToken: string
}

/** Reads which page a request asks for. */
export type OpenPage = ReturnType<typeof createPaging>

/**
 * Page tokens are sealed, so that clients can't depend on their content, and bound to their RPC and filter; the token of a list
 * that depends on its caller is bound to `owner`, too. Others are refused with INVALID_ARGUMENT.
 */
export function createPaging(dataKeys: {
  seal(use: string, text: string): Buffer
  open(use: string, sealed: Buffer): string
}) {
  function read(use: string, token: string) {
    try {
      return JSON.parse(dataKeys.open(use, Buffer.from(token, 'base64url')))
    } catch {
      return wrongField('page_token', 'MISMATCH', 'Not valid for this list and filter. Start without a page token.')
    }
  }

  return <After>(
    rpc: DescMethodUnary,
    request: Message & ListRequest,
    { sizes = { usual: 50, max: 1_000 }, owner = '' }: { readonly sizes?: Sizes; readonly owner?: string } = {},
  ) => {
    const { pageSize, pageToken } = request
    if (pageSize < 0) wrongField('page_size', 'OUT_OF_RANGE', 'Use 0 or more.')
    const filter = toBinary(rpc.input, Object.assign({}, request, { pageSize: 0, pageToken: '' }))
    const digest = createHash('sha256').update(`${owner}\0`).update(filter).digest('base64url')
    const use = `page-token ${rpc.name} ${digest}`
    const size = Math.min(pageSize || sizes.usual, sizes.max)
    /** The token with which the next page begins behind a row. */
    const next = (after: After) => dataKeys.seal(use, JSON.stringify(after)).toString('base64url')
    return {
      /** Maximum number of rows of the page. */
      size,
      /** Rows to read: one more than shown, which says whether there is a next page. */
      limit: size + 1,
      /** Behind which row it begins; undefined for the first page. */
      after: pageToken === '' ? undefined : (read(use, pageToken) as After),
      next,
      /** The rows to show of those that were read and, unless they are the last, the token of the next page. */
      cut<Row>(rows: readonly Row[], afterOf: (last: Row) => After) {
        const shown = rows.slice(0, size)
        return { shown, nextPageToken: rows.length > size ? next(afterOf(shown.at(-1)!)) : undefined }
      },
    }
  }
}
