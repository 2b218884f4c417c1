/** Headers of every answer that prevent browsers from sniffing its type or loading content. */
export const securityHeaders = { 'x-content-type-options': 'nosniff', 'content-security-policy': "default-src 'none'" }

/** What a page may load and call: what the gateway itself serves. Only scripts send forms. */
export const pagePolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "connect-src 'self'",
  'img-src data:',
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ')
