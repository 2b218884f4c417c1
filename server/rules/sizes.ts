/**
 * Maximum lengths of texts, in characters (code points). Code that receives a text checks its length before it
 * normalizes, compares, parses or stores it: to normalize 60 KB of combining marks takes a second.
 */
export const maxLengths = {
  /** Names, answers and all other texts. */
  text: 255,
  /** At most 1 KB, as no character has more than 4 bytes. */
  password: 256,
  /** A path has at most 256 octets with its angle brackets (RFC 5321, 4.5.3.1.3). */
  email: 254,
  /** Activation keys and mailed keys. */
  key: 64,
  /** A whole token. */
  token: 4096,
} as const

/** Most users that a call changes, in one transaction. */
export const mostUsersAtOnce = 25

/** Whether a text is longer than the limit of its kind, or than a number of characters. Takes constant time, however long the text is. */
export function tooLong(text: string, kind: keyof typeof maxLengths | number): boolean {
  const limit = typeof kind === 'number' ? kind : maxLengths[kind]
  // A code point is one or two code units.
  if (text.length <= limit) return false
  return text.length > 2 * limit || [...text].length > limit
}
