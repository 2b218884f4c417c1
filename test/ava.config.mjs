/** Long files start first, those that wait beside those that work; AVA starts files by name otherwise. */
const first = [
  'attacks/timing.slow',
  'access/taking-away.slow',
  'process/stops.slow',
  'examples/verifiers.slow',
  'gateway/balancing.slow',
  'client/package.slow',
  'faults/blackhole.slow',
  'deploy/package.slow',
  'gateway/reference.slow',
  'process/upgrade.slow',
  'cli/backup.slow',
  'attacks/emails.slow',
  'predecessor/kills.slow',
  'faults/outage.slow',
  'client/outages.slow',
  'process/starts.slow',
  'gateway/certificates.slow',
  'cli/2',
  'conformance/1',
  'cli/1',
  'cli/3',
  'users/2',
  'users/1',
].map(name => `/dist/test/${name}.test.js`)

function place(file) {
  const found = first.findIndex(name => file.endsWith(name))
  return found === -1 ? first.length : found
}

export default {
  files: ['dist/test/**/*.test.js'],
  concurrency: 4,
  timeout: '3m',
  workerThreads: false,
  sortTestFiles: (a, b) => place(a) - place(b) || (a < b ? -1 : 1),
}
