/** Tests that need something of the machine. */
import test, { type Implementation } from 'ava'

/** Declares a test that is skipped without a tool; then its title says which, and `.ci/run` lists it. */
export const testWith =
  (tool: string, isThere: boolean) =>
  (title: string, work: Implementation<[]>): void =>
    isThere ? test.serial(title, work) : test.skip(`${title} (needs ${tool})`, work)
