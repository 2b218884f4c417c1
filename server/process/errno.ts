/** Whether an error of the operating system has this code, such as `ENOENT`. */
export function hasCode(error: unknown, code: string): boolean {
  return (error as NodeJS.ErrnoException).code === code
}

/** For `catch`: returns undefined for a missing file, and throws other errors again. */
export function ignoreMissing(error: unknown): undefined {
  if (!hasCode(error, 'ENOENT')) throw error
}
