/** Loaded before a program (`node --import`): its clock is wrong by so many milliseconds, TEST_CLOCK_SKEW. */
const skew = Number(process.env.TEST_CLOCK_SKEW)
const RealDate = Date

globalThis.Date = class extends RealDate {
  constructor(...given: []) {
    if (given.length === 0) super(RealDate.now() + skew)
    else super(...given)
  }
  static override now() {
    return RealDate.now() + skew
  }
} as DateConstructor
