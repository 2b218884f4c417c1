/** A service that watches the feed of changes, with the state that it has received. */
import { type MessageInitShape, toJson } from '@bufbuild/protobuf'
import { durationFromMs, timestampMs } from '@bufbuild/protobuf/wkt'
import {
  ChangeKind,
  Changes,
  type PollRequestSchema,
  type PollResponse,
  PollResponseSchema,
} from '../../proto/gen/auth/v1/changes_pb.js'
import type { GrpcClient, GrpcOptions } from './grpc.js'

/** Polls as a service, by default for revocations. */
export function pollWith(client: GrpcClient, token: string) {
  return (
    { ms = 0, ...request }: MessageInitShape<typeof PollRequestSchema> & { ms?: number } = {},
    options: GrpcOptions = {},
  ): Promise<PollResponse> =>
    client.call(
      Changes.method.poll,
      { kinds: [ChangeKind.REVOCATIONS], wait: durationFromMs(ms), ...request },
      { token, ...options },
    )
}

/** Polls until the last page; returns all pages. */
export async function readPages(
  poll: ReturnType<typeof pollWith>,
  request: MessageInitShape<typeof PollRequestSchema> = {},
): Promise<PollResponse[]> {
  const pages = [await poll(request)]
  while (pages.at(-1)!.more) pages.push(await poll({ ...request, cursor: pages.at(-1)!.cursor }))
  return pages
}

/** The size of a response as JSON, in bytes. */
export function sizeOf(response: PollResponse): number {
  return Buffer.byteLength(JSON.stringify(toJson(PollResponseSchema, response)))
}

/** `as_of` in ms since 1970. */
export function asOf(response: PollResponse): number {
  if (!response.asOf) throw new Error('no as_of')
  return timestampMs(response.asOf)
}

/** A watcher of revocations. */
export interface Watcher {
  /** The cursor of the last response. */
  readonly cursor: string
  /** The least valid generation of each user. */
  readonly generations: ReadonlyMap<number, number>
  readonly retired: ReadonlySet<string>
  /** The ids in the responses about users. */
  readonly users: ReadonlySet<number>
  /** Stops, and waits for the call in progress. */
  stop(): Promise<void>
}

/**
 * Polls until it is stopped, with each of the given polls in turn. `onResponse` is called after the contents of a response
 * are stored.
 */
export async function watch(
  polls: readonly ReturnType<typeof pollWith>[],
  {
    kinds = [ChangeKind.REVOCATIONS],
    onResponse = () => {},
  }: { kinds?: ChangeKind[]; onResponse?: (response: PollResponse, watcher: Watcher) => void } = {},
): Promise<Watcher> {
  let stopped = false
  const [generations, retired, users] = [new Map<number, number>(), new Set<string>(), new Set<number>()]
  const watcher = { cursor: '', generations, retired, users, stop: async () => {} }
  const gone = new AbortController()
  function take(response: PollResponse) {
    for (const { sub, minGeneration } of response.revocations) generations.set(Number(sub), minGeneration)
    for (const kid of response.retiredKeys) retired.add(kid)
    for (const id of response.userIds) users.add(id)
    watcher.cursor = response.cursor
    onResponse(response, watcher)
  }
  for (const page of await readPages(polls[0]!, { kinds })) take(page)
  const run = async () => {
    for (let round = 0; !stopped; round++) {
      const call = polls[round % polls.length]!(
        { cursor: watcher.cursor, kinds, ms: 10_000 },
        { once: true, started: call => gone.signal.addEventListener('abort', () => call.cancel()) },
      )
      const response = await call.catch(error => {
        if (!stopped) throw error
      })
      if (response && !stopped) take(response)
    }
  }
  const running = run()
  watcher.stop = async () => {
    stopped = true
    gone.abort()
    await running
  }
  return watcher
}
