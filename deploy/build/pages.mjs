/**
 * Generates the pages that the gateway serves, in dist/pages: the reference of each revision in each language, the start page,
 * their scripts and style, and the definitions. Part of `npm run build`, after deploy/build/openapi.mjs.
 */
import { cp, mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { definitions, revisions } from '../../dist/gateway/operations.js'
import { renderReference, renderStart } from '../../dist/gateway/reference/page.js'
import { locales } from '../../dist/gateway/reference/texts.js'

const root = fileURLToPath(new URL('../..', import.meta.url))
const pages = `${root}/dist/pages`

await mkdir(pages, { recursive: true })
for (const locale of locales) {
  await writeFile(`${pages}/start.${locale}.html`, renderStart(locale))
  const introduction = await readFile(`${root}/gateway/reference/introduction.${locale}.md`, 'utf8')
  for (const revision of revisions) {
    const document = JSON.parse(await readFile(`${root}/dist/openapi/${revision}.json`, 'utf8'))
    const render = root => renderReference(document, locale, introduction.replaceAll('{revision}', revision), root)
    await writeFile(`${pages}/${revision}.${locale}.html`, render('../../'))
    await writeFile(`${pages}/docs.${revision}.${locale}.html`, render('./'))
  }
}
for (const path of definitions) await cp(join(root, path), join(pages, path))
await cp(`${root}/gateway/reference/reference.css`, `${pages}/reference.css`)
await cp(`${root}/dist/gateway/reference/script.js`, `${pages}/reference.js`)
await cp(`${root}/dist/gateway/reference/call.js`, `${pages}/call.js`)
