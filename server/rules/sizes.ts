/**
 * How long texts may be, in characters (code points). Whoever is given a text measures it before it is normalized,
 * compared, parsed or stored: normalizing 60 KB of stacked marks takes a second.
 */
export const limits = {
  /** Names, answers and all that has no line of its own. */
  text: 255,
  /** At most 1 KB, as no character has more than 4 bytes. */
  password: 256,
  /** RFC 5321 (4.5.3.1.3) leaves 254 of a path's 256 octets. */
  email: 254,
  /** Activation keys and mailed keys. */
  key: 64,
  /** A whole token. */
  token: 4096,
} as const

/** Whether a text is longer than its kind may be. Costs next to nothing, however long the text is. */
export function tooLong(text: string, kind: keyof typeof limits): boolean {
  const limit = limits[kind]
  // A character is one or two units of length.
  if (text.length <= limit) return false
  return text.length > 2 * limit || [...text].length > limit
}
