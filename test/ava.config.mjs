/** Long files, and those that wait, start first, so that the others run meanwhile; AVA starts files by name otherwise. */
const first = [
  'attacks/timing.slow',
  'process/stops.slow',
  'faults/blackhole.slow',
  'gateway/balancing.slow',
  'examples/verifiers.slow',
  'gateway/reference.slow',
  'process/upgrade.slow',
  'predecessor/kills.slow',
  'client/outages.slow',
  'deploy/package.slow',
  'client/package.slow',
  'cli/backup.slow',
  'process/starts.slow',
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
