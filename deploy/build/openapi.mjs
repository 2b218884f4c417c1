/**
 * Generates the OpenAPI documents of both revisions, in dist/openapi. Part of `npm run build`, after the compiler: it needs the
 * definitions with their comments, which generated code doesn't have, the access policy and the routes.
 */
import { execFileSync } from 'node:child_process'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { readComments } from '../../dist/gateway/openapi/comments.js'
import { createDocument } from '../../dist/gateway/openapi/document.js'
import { revisions } from '../../dist/gateway/operations.js'
import { version } from '../../dist/server/process/version.js'

const root = fileURLToPath(new URL('../..', import.meta.url))
const buf = `${root}/node_modules/@bufbuild/buf/bin/buf`
const image = execFileSync(process.execPath, [buf, 'build', '-o', '-'], { cwd: root })
const comments = readComments(image)
const introduction = await readFile(`${root}/gateway/reference/introduction.en.md`, 'utf8')
const examples = JSON.parse(await readFile(`${root}/gateway/openapi/examples.json`, 'utf8'))

await mkdir(`${root}/dist/openapi`, { recursive: true })
for (const revision of revisions)
  await writeFile(
    `${root}/dist/openapi/${revision}.json`,
    JSON.stringify(createDocument(revision, { comments, introduction, examples, version })),
  )
