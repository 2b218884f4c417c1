/** Milliseconds of each unit of `readTimeout`. */
const units: Readonly<Record<string, number>> = { H: 3_600_000, M: 60_000, S: 1000, m: 1, u: 1e-3, n: 1e-6 }

/** Reads a timeout in the form of gRPC (`15S`), in ms; undefined if it is malformed. */
export function readTimeout(text: string): number | undefined {
  const [, digits, unit] = /^(\d{1,8})([HMSmun])$/.exec(text) ?? []
  return digits && unit ? Number(digits) * units[unit]! : undefined
}
