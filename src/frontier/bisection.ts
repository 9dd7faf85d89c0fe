/** Where a condition that stays true begins, to the last bit of a double. */

/** The lowest value in the range from which on `isTrue` holds; the upper end when it never does. */
export function lowestTrue(isTrue: (value: number) => boolean, [low, high]: readonly [number, number]): number {
  if (isTrue(low)) return low;
  let below = low;
  let above = high;
  for (;;) {
    const middle = below + (above - below) / 2;
    if (middle <= below || middle >= above) return above;
    if (isTrue(middle)) above = middle;
    else below = middle;
  }
}
