/** The dead band of the precision weight: what moves it, and what does not. */
import { describe, expect, it } from 'vitest';

import { calibrate, recalibrate } from './recalibration.ts';

const start = calibrate({ precision: 0.5, recall: 0.5, beta: 0.5 });
const once = { band: 1.25, patience: 1 };

/** A point whose weight is `factor` times the starting weight. */
const at = (factor: number): { precision: number; recall: number } => ({
  precision: 0.5,
  recall: 0.5 * Math.sqrt(factor),
});

describe('recalibrate', () => {
  it('moves exactly when the weight is off by more than the band, in both directions', () => {
    for (const factor of [1.24, 1 / 1.24]) expect(recalibrate(start, at(factor), once).state).toBe(start);
    for (const factor of [1.26, 1 / 1.26]) {
      const { state, event } = recalibrate(start, at(factor), once);
      expect(state.precisionWeight).toBeCloseTo(4 * factor, 12);
      expect(event?.event).toBe('reward-recalibrated');
      expect(event?.drift).toBeCloseTo(Math.log(factor), 12);
      expect(event?.from.precisionWeight).toBeCloseTo(4, 12);
    }
  });

  it('depends on the ratio only: better at both is no drift', () => {
    expect(recalibrate(start, { precision: 0.9, recall: 0.9 }, once).event).toBeUndefined();
  });

  it('does not swing back inside the band around its new reference', () => {
    const moved = recalibrate(start, at(1.3), once).state;
    expect(recalibrate(moved, at(1.1), once).event).toBeUndefined();
    expect(recalibrate(moved, at(1), once).event).toBeDefined();
  });

  it('waits for measurements in a row, and starts to count anew after one inside', () => {
    const options = { band: 1.25, patience: 3 };
    let state = start;
    const feed = (factor: number): boolean => {
      const next = recalibrate(state, at(factor), options);
      state = next.state;
      return next.event !== undefined;
    };
    expect([feed(2), feed(2), feed(1.1), feed(2), feed(2)]).toEqual([false, false, false, false, false]);
    expect(feed(2)).toBe(true);
    expect(state.precisionWeight).toBeCloseTo(8, 12);
  });

  it('ignores a batch without precision or recall', () => {
    expect(recalibrate(start, { precision: 0, recall: 0.4 }, once)).toEqual({ state: start });
    expect(recalibrate(start, { precision: 0.4, recall: 0 }, once)).toEqual({ state: start });
  });
});
