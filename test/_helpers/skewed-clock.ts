/** Loaded before a program (`node --import`): shifts its clock by TEST_CLOCK_SKEW milliseconds. */
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
