/** Room for so much at once, which comes back evenly. */
export interface Room {
  /** Takes as much as a weight unless nothing is left, however much it is; 0 only asks. */
  take(weight: number): boolean
}

/** Room for `atOnce`, of which `perSecond` comes back in a second. */
export function createRoom(atOnce: number, perSecond: number): Room {
  let room = atOnce
  let at = performance.now()
  return {
    take(weight) {
      const now = performance.now()
      room = Math.min(atOnce, room + ((now - at) / 1000) * perSecond)
      at = now
      if (room < 1) return false
      room -= weight
      return true
    },
  }
}
