/**
 * The figures that a study is held against, as data with their sources: the published table, and an independent prototype's
 * runs from a wrong starting slope. Facts only, in per cent, efforts low / medium / high.
 */

/** Saving and gain of one method at the last step, by effort, in per cent. */
export interface PublishedRow {
  /** Alpha of the steering rule; null = the fixed price. */
  readonly alpha: number | null;
  /** The starting price over the true slope. */
  readonly slopeFactor: number;
  readonly savingPercent: readonly [number, number, number];
  readonly gainPercent: readonly [number, number, number];
}

export interface PublishedTable {
  readonly source: string;
  readonly rows: readonly PublishedRow[];
}

/** Seeds behind each figure of the published table: it has the noise of so many itself. */
export const PUBLISHED_SEEDS = 3;

/** What the study's default configuration is to reproduce. */
export const PUBLISHED: PublishedTable = {
  source:
    'Results of the public study "SWE-2, extended" (anish-lakkapragada.github.io): step 1,000, mean of 100 problems x 3 seeds.',
  rows: [
    row(null, [-62.93, -16.26, 1.7], [97.85, 41.61, 21.88]),
    row(0, [28.86, 31.07, 32.33], [-0.03, 0.46, 0.87]),
    row(0.25, [22.42, 22.74, 21.79], [7.67, 7.93, 7.6]),
    row(0.5, [15.51, 14.71, 12.91], [15.67, 14.8, 12.89]),
    row(0.75, [8, 7, 5.77], [24.19, 21.08, 16.83]),
    row(1, [0.32, 0.11, 0.15], [32.5, 26.46, 19.73]),
  ],
};

/** The starting slope wrong by 3 or 10: a fixed price drifts, steering lands (slowly from a factor of 10). */
export const WRONG_SLOPE: PublishedTable = {
  source: 'An independent prototype of the recovered configuration, the starting price wrong by a factor.',
  rows: [
    row(null, [87, 74, 64], [-74, -45, -21], 3),
    row(0.5, [20, 15, 13], [9, 15, 13], 3),
    row(null, [-454, -193, -108], [280, 103, 47], 1 / 3),
    row(0.5, [15, 15, 13], [15, 15, 13], 1 / 3),
    row(null, [97, 94, 90], [-93, -81, -61], 10),
    row(0.5, [0, 7, 7], [19, 16, 15], 10),
    row(null, [-1204, -532, -318], [390, 140, 62], 0.1),
    row(0.5, [6, 16, 13], [27, 13, 13], 0.1),
  ],
};

/** The row of an arm; undefined where the table has none. Factors match to 1e-9 of themselves. */
export function publishedRow(
  table: PublishedTable,
  { alpha, slopeFactor }: { readonly alpha: number | null; readonly slopeFactor: number },
): PublishedRow | undefined {
  return table.rows.find(
    (candidate) => candidate.alpha === alpha && Math.abs(candidate.slopeFactor / slopeFactor - 1) < 1e-9,
  );
}

function row(
  alpha: number | null,
  savingPercent: PublishedRow['savingPercent'],
  gainPercent: PublishedRow['gainPercent'],
  slopeFactor = 1,
): PublishedRow {
  return { alpha, slopeFactor, savingPercent, gainPercent };
}
