/** Whether a fault of the system has this code (errno, such as `ENOENT`). */
export function has(error: unknown, code: string): boolean {
  return (error as NodeJS.ErrnoException).code === code
}

/** For `catch`: a file that isn't there is no error. */
export function absent(error: unknown): undefined {
  if (!has(error, 'ENOENT')) throw error
}
