import type { Command } from '../command.js'

/** Adds `auth-admin manual`. */
export function addManual(program: Command): void {
  program
    .command('manual')
    .description('Print the manual of all commands as a man page, or as Markdown.')
    .option('--markdown', 'as Markdown')
    .examples('manual | man -l -', 'manual > ~/.local/share/man/man1/auth-admin.1')
    .action(async (options: { markdown?: boolean }) => {
      const { toManPage, toMarkdown } = await import('../reference.js')
      process.stdout.write(options.markdown ? toMarkdown(program) : toManPage(program, program.version() ?? ''))
    })
}
