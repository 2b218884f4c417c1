/**
 * Spans by the API of OpenTelemetry. An SDK comes by `node --import`, before anything of ours, or not at all: that is
 * found out once, and without one everything goes the way it would go if this file weren't there.
 *
 * A span says what was done and how it ended, by names that are ours: no value, no path or query that somebody typed, and
 * of an error its reason or code alone.
 */
import {
  type Attributes,
  type Context,
  context,
  isSpanContextValid,
  propagation,
  ROOT_CONTEXT,
  type SpanKind,
  SpanStatusCode,
  type TextMapGetter,
  trace,
} from '@opentelemetry/api'

export { type Attributes, type Context, SpanKind } from '@opentelemetry/api'

const tracer = trace.getTracer('auth')

/** Whether an SDK is there. A span that it makes has an id, recorded or not. */
export const tracing: boolean = isSpanContextValid(tracer.startSpan('probe').spanContext())

/** What a span is made of. */
interface SpanOptions {
  readonly name: string
  readonly kind?: SpanKind
  readonly attributes?: Attributes
  /** What it is a part of, instead of the span that is active. */
  readonly parent?: Context
}

/** Runs work as a span; what is done meanwhile are its parts. Only for where `tracing` is true. */
export function inSpan<T>(
  { name, parent = context.active(), ...options }: SpanOptions,
  work: () => Promise<T>,
): Promise<T> {
  return tracer.startActiveSpan(name, options, parent, async span => {
    try {
      return await work()
    } catch (error) {
      const { code, name } = error as { code?: unknown; name?: unknown }
      span.setStatus({ code: SpanStatusCode.ERROR }).setAttribute('error.type', String(code ?? name))
      throw error
    } finally {
      span.end()
    }
  })
}

/** A span of what began at a `performance.now()` and ends now. */
export function spanSince(startTime: number, { name, ...options }: Omit<SpanOptions, 'parent'>, parent: Context): void {
  tracer.startSpan(name, { ...options, startTime }, parent).end()
}

/** The span that is active, as a parent for what is done elsewhere. */
export function activeContext(): Context {
  return context.active()
}

/** Says of the active span what is known of it only now, its name perhaps. */
export function describeSpan(attributes: Attributes, name?: string): void {
  const span = trace.getActiveSpan()?.setAttributes(attributes)
  if (name !== undefined) span?.updateName(name)
}

const reading: TextMapGetter<(name: string) => string | undefined> = {
  get: (read, name) => read(name),
  keys: () => [],
}

/** The caller's span (W3C Trace Context), as a parent, of headers or metadata that `read` reads by names in lower case. */
export function readParent(read: (name: string) => string | undefined): Context {
  return propagation.extract(ROOT_CONTEXT, read, reading)
}

/** Headers that carry on the active span (W3C Trace Context). */
export function traceHeaders(): Record<string, string> {
  const headers: Record<string, string> = {}
  propagation.inject(context.active(), headers)
  return headers
}

/** Id of the trace that a call belongs to: the active span's, or the one that `traceparent` names, as sent. */
export function traceIdOf(traceparent: string | undefined): string | undefined {
  if (tracing) return trace.getActiveSpan()?.spanContext().traceId
  if (traceparent === undefined) return undefined
  const id = /^(?!ff)[\da-f]{2}-([\da-f]{32})-[\da-f]{16}-[\da-f]{2}(?:-.*)?$/.exec(traceparent)?.[1]
  return id === undefined || /^0+$/.test(id) ? undefined : id
}
