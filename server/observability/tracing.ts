/**
 * Spans, by the API of OpenTelemetry. `node --import` loads an SDK before this project's code, or there is none: this is
 * detected once, and without an SDK no span is created.
 *
 * A span has fixed names for an operation and its outcome: no values, no path or query of a request, and of an error its
 * reason or code only.
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

/** Whether there is an SDK. Its spans have ids, recorded or not. */
export const tracing: boolean = isSpanContextValid(tracer.startSpan('probe').spanContext())

/** Properties of a span. */
interface SpanOptions {
  readonly name: string
  readonly kind?: SpanKind
  readonly attributes?: Attributes
  /** Its parent, instead of the active span. */
  readonly parent?: Context
}

/** Runs work in a span, which is the parent of spans that begin meanwhile. Use it only where `tracing` is true. */
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

/** Records a span from a `performance.now()` until now. */
export function spanSince(startTime: number, { name, ...options }: Omit<SpanOptions, 'parent'>, parent: Context): void {
  tracer.startSpan(name, { ...options, startTime }, parent).end()
}

/** The active span, as a parent for work that is done elsewhere. */
export function activeContext(): Context {
  return context.active()
}

/** Adds attributes to the active span, and renames it. */
export function describeSpan(attributes: Attributes, name?: string): void {
  const span = trace.getActiveSpan()?.setAttributes(attributes)
  if (name !== undefined) span?.updateName(name)
}

const reading: TextMapGetter<(name: string) => string | undefined> = {
  get: (read, name) => read(name),
  keys: () => [],
}

/** The caller's span (W3C Trace Context), as a parent. `read` returns headers or metadata by names in lower case. */
export function readParent(read: (name: string) => string | undefined): Context {
  return propagation.extract(ROOT_CONTEXT, read, reading)
}

/** Headers that propagate the active span (W3C Trace Context). */
export function traceHeaders(): Record<string, string> {
  const headers: Record<string, string> = {}
  propagation.inject(context.active(), headers)
  return headers
}

/** Id of the trace of a call: that of the active span, or the one in `traceparent`. */
export function traceIdOf(traceparent: string | undefined): string | undefined {
  if (tracing) return trace.getActiveSpan()?.spanContext().traceId
  if (traceparent === undefined) return undefined
  const id = /^(?!ff)[\da-f]{2}-([\da-f]{32})-[\da-f]{16}-[\da-f]{2}(?:-.*)?$/.exec(traceparent)?.[1]
  return id === undefined || /^0+$/.test(id) ? undefined : id
}
