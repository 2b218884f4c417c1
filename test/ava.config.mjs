export default {
  files: ['dist/test/**/*.test.js'],
  concurrency: 4,
  timeout: '3m',
  workerThreads: false,
}
