/** The `/metrics` of a running program. */
import type { TestService } from './service.js'

/** A sample: its name, its labels and its value. */
export interface Sample {
  readonly name: string
  readonly labels: Readonly<Record<string, string>>
  readonly value: number
}

/** Reads the metrics at a URL, or of a service. */
export async function scrape(of: string | Pick<TestService, 'service'>) {
  const url = typeof of === 'string' ? of : `http://127.0.0.1:${of.service.addresses.metrics?.port}/metrics`
  const answer = await fetch(url)
  const text = await answer.text()
  const samples: Sample[] = [...text.matchAll(/^(\w+)(?:\{(.*)\})? (\S+)$/gm)].map(
    ([, name = '', labels = '', value]) => ({
      name,
      labels: Object.fromEntries([...labels.matchAll(/(\w+)="([^"]*)"/g)].map(([, label, value]) => [label, value])),
      value: Number(value),
    }),
  )
  /** The value of a sample with these labels; undefined when it isn't exported. */
  const value = (name: string, labels: Record<string, string> = {}) =>
    samples.find(
      sample =>
        sample.name === name && Object.entries(labels).every(([label, value]) => sample.labels[label] === value),
    )?.value
  return { status: answer.status, text, samples, value }
}
