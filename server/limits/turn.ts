import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { Refusal } from '../requests/refusal.js'
import { type Scheduler, type Shed, Work } from './scheduler.js'

/** What a call waits for: it has begun when `take` returns or resolves, and ends when it is disposed of. */
export class Turn extends Work implements Disposable {
  private settle: { begin(): void; refuse(refusal: Refusal): void } | undefined
  private refusal: Refusal | undefined

  constructor(
    private readonly of: Scheduler,
    networks: readonly string[],
    cost: number,
    deadline: number,
  ) {
    super(networks, cost, deadline)
  }

  /**
   * Waits until it may begin. Refuses with OVERLOADED when too many wait, and with DEADLINE_EXCEEDED when its deadline passes
   * or the caller leaves.
   */
  take(call: { readonly signal: AbortSignal }): Promise<void> | undefined {
    this.of.submit(this)
    if (this.state === 'running') return undefined
    if (this.refusal) throw this.refusal
    const { signal } = call
    const leave = () => {
      this.of.end(this)
      this.shed('late')
    }
    const begun = new Promise<void>((resolve, reject) => {
      this.settle = { begin: resolve, refuse: reject }
    })
    if (signal.aborted) leave()
    signal.addEventListener('abort', leave)
    return begun.finally(() => signal.removeEventListener('abort', leave))
  }

  override begin(): void {
    this.settle?.begin()
  }

  override shed(why: Shed): void {
    this.refusal = new Refusal(why === 'late' ? Reason.DEADLINE_EXCEEDED : Reason.OVERLOADED, { retryAfter: 1 })
    this.settle?.refuse(this.refusal)
  }

  [Symbol.dispose](): void {
    this.of.end(this)
  }
}
