/** Starts processes that end with this one. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'

const running = new Set<ChildProcess>()

/** Starts a program with only these variables, and waits until its output matches. Throws its output if it ends before. */
export async function start(
  program: string,
  args: readonly string[],
  env: Record<string, string>,
  until: RegExp,
): Promise<void> {
  const { PATH, HOME } = process.env
  const child = spawn(program, args, { env: { PATH, HOME, ...env }, stdio: ['ignore', 'pipe', 'pipe'] })
  running.add(child)
  let output = ''
  await new Promise<void>((resolve, reject) => {
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', chunk => {
        if (output === 'seen') return
        output += chunk
        if (!until.test(output)) return
        output = 'seen'
        resolve()
      })
    }
    child.once('error', reject).once('close', () => {
      running.delete(child)
      reject(new Error(`${program} ended: ${output.slice(-5000)}`))
    })
  })
}

/** Ends what was started, the last one first. */
export async function stopAll(): Promise<void> {
  for (const child of [...running].reverse()) {
    const ended = once(child, 'close')
    child.kill('SIGTERM')
    await ended
  }
}
