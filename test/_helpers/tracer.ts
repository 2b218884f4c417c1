/** Loaded with `node --import` for tracing: an SDK that sends each span as it ends to OTEL_EXPORTER_OTLP_ENDPOINT. */
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import { NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node'

new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(new OTLPTraceExporter())] }).register()
