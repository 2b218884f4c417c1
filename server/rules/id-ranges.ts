// Lists of ids in events of the audit log, such as `1-20,25`.

/** Writes ids, in their order; consecutive ones as a range. */
export function formatIds(ids: readonly number[]): string {
  const sorted = [...new Set(ids)].sort((a, b) => a - b)
  const ranges: [first: number, last: number][] = []
  for (const id of sorted) {
    const range = ranges.at(-1)
    if (range?.[1] === id - 1) range[1] = id
    else ranges.push([id, id])
  }
  return ranges.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(',')
}

/** Reads ids as `formatIds` writes them. */
export function readIds(text: string): number[] {
  return text.split(',').flatMap(range => {
    const [first = 0, last = first] = range.split('-').map(Number)
    return Array.from({ length: last - first + 1 }, (_, index) => first + index)
  })
}

/** Names in the object of an event what an import created and updated: `import:7 created:1-20 updated:25`. Undefined if nothing. */
export function nameImported(
  object: string,
  changed: Readonly<Record<'created' | 'updated', readonly number[]>>,
): string | undefined {
  const named = (['created', 'updated'] as const)
    .filter(outcome => changed[outcome].length > 0)
    .map(outcome => `${outcome}:${formatIds(changed[outcome])}`)
  return named.length > 0 ? [object, ...named].join(' ') : undefined
}

/** Reads the ids that `nameImported` names. */
export function readImported(object: string): number[] {
  return object
    .split(' ')
    .slice(1)
    .flatMap(part => readIds(part.split(':')[1]!))
}
