import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { Refusal } from '../requests/refusal.js'
import { type Scheduler, type Shed, Work } from './scheduler.js'

/** The turn of a call in a scheduler. It has begun when `take` returns or resolves, and ends when it is disposed of. */
export class Turn extends Work implements Disposable {
  private settle: { begin(): void; refuse(refusal: Refusal): void } | undefined
  private refusal: Refusal | undefined

  constructor(
    private readonly owner: Scheduler,
    networks: readonly string[],
    cost: number,
    deadline: number,
  ) {
    super(networks, cost, deadline)
  }

  /**
   * Waits until the turn begins; returns undefined when it begins at once. Refuses with OVERLOADED when too many wait,
   * and with DEADLINE_EXCEEDED when the deadline passes or the caller disconnects.
   */
  take(call: { readonly signal: AbortSignal }): Promise<void> | undefined {
    this.owner.submit(this)
    if (this.state === 'running') return undefined
    if (this.refusal) throw this.refusal
    const { signal } = call
    const onAbort = () => {
      this.owner.end(this)
      this.shed('late')
    }
    const begun = new Promise<void>((resolve, reject) => {
      this.settle = { begin: resolve, refuse: reject }
    })
    if (signal.aborted) onAbort()
    signal.addEventListener('abort', onAbort)
    return begun.finally(() => signal.removeEventListener('abort', onAbort))
  }

  override begin(): void {
    this.settle?.begin()
  }

  override shed(why: Shed): void {
    this.refusal = new Refusal(why === 'late' ? Reason.DEADLINE_EXCEEDED : Reason.OVERLOADED, { retryAfter: 1 })
    this.settle?.refuse(this.refusal)
  }

  [Symbol.dispose](): void {
    this.owner.end(this)
  }
}
