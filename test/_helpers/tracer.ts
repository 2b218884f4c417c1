/** Loaded with `node --import` for tracing: an SDK that sends spans to OTEL_EXPORTER_OTLP_ENDPOINT a moment after they end. */
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import { BatchSpanProcessor, NodeTracerProvider } from '@opentelemetry/sdk-trace-node'

// In batches, because the exporter drops spans if more than 30 requests are in progress.
const processor = new BatchSpanProcessor(new OTLPTraceExporter(), { scheduledDelayMillis: 100 })
new NodeTracerProvider({ spanProcessors: [processor] }).register()
