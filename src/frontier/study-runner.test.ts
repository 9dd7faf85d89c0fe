/** The pool: the same bits on any number of workers, units that are never run twice, a stop, and a worker that dies. */
import { describe, expect, it } from 'vitest';

import { createStudyPlan } from './study-plan.ts';
import type { StudyRecord } from './study-record.ts';
import { runStudy } from './study-runner.ts';
import type { StudyRunOptions } from './study-runner.ts';
import type { UnitResult } from './study-worker.ts';
import { runUnit, studyUnits } from './toy-run.ts';

const PLAN = { ...createStudyPlan({ problems: 4, seeds: 2, steps: 20, batch: 60 }), referenceRollouts: 500 };

async function recordOf(options: StudyRunOptions): Promise<StudyRecord> {
  const outcome = await runStudy(PLAN, options);
  if (outcome.kind !== 'finished') throw new Error('the study was stopped');
  return outcome.record;
}

describe('runStudy', () => {
  it('gives the bits of one thread on 1, 2 and 3 workers', async () => {
    const expected = studyUnits(PLAN).flatMap((unit) => runUnit(PLAN, unit));
    for (const workers of [1, 2, 3]) expect((await recordOf({ workers })).runs).toEqual(expected);
  });

  it('tells of each unit once, and does not run again what is finished', async () => {
    const told: UnitResult[] = [];
    const counts: string[] = [];
    const full = await recordOf({
      workers: 2,
      onUnit(result, { done, total }) {
        told.push(result);
        counts.push(`${done}/${total}`);
      },
    });
    expect(counts).toEqual(Array.from({ length: 8 }, (_, index) => `${index + 1}/8`));
    expect(told.every(({ milliseconds }) => milliseconds > 0)).toBe(true);

    const again: UnitResult[] = [];
    const resumed = await recordOf({ workers: 2, finished: told.slice(0, 5), onUnit: (result) => again.push(result) });
    expect(again).toHaveLength(3);
    expect(resumed).toEqual(full);
    expect(await recordOf({ finished: told, onUnit: () => expect.unreachable() })).toEqual(full);
  });

  it('stops between units, and keeps those that were running', async () => {
    const stop = new AbortController();
    const outcome = await runStudy(PLAN, {
      workers: 2,
      signal: stop.signal,
      onUnit: (_, { done }) => {
        if (done === 3) stop.abort();
      },
    });
    expect(outcome.kind).toBe('stopped');
    expect([3, 4]).toContain(outcome.units.length);
  });

  it('ends with the cause when a worker dies, and with what the listener throws', async () => {
    // So many steps that the worker cannot hold their rates.
    const impossible = { ...PLAN, steps: 2 ** 52, recordEvery: 2 ** 51 };
    await expect(runStudy(impossible, { workers: 2 })).rejects.toThrow(
      /^A worker of the study died in problem \d+, seed \d: Invalid typed array length: 4503599627370496\.$/u,
    );
    const failure = new Error('no room');
    const onUnit = (): void => {
      throw failure;
    };
    await expect(runStudy(PLAN, { workers: 2, onUnit })).rejects.toBe(failure);
  });

  it('refuses a plan or a number of workers out of range', async () => {
    await expect(runStudy({ ...PLAN, batch: 0 })).rejects.toThrow(/batch is 0/u);
    await expect(runStudy(PLAN, { workers: 0 })).rejects.toThrow(/on 0 workers/u);
    await expect(runStudy(PLAN, { workers: 257 })).rejects.toThrow(/on 257 workers/u);
  });
});
