/** The files of a finished study: read back by another library, equal to the record, and free of any clock. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { asyncBufferFromFile, parquetReadObjects } from 'hyparquet';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { nanosecondsPerRollout, readTiming, writeStudyFiles } from './study-files.ts';
import { createStudyPlan } from './study-plan.ts';
import { recordedSteps } from './study-record.ts';
import { summariseStudy } from './study-summary.ts';
import { runUnit, studyUnits } from './toy-run.ts';
import { successRate, toyProblem, toyStart } from './toy-task.ts';

const plan = { ...createStudyPlan({ problems: 3, seeds: 2, steps: 20, batch: 30 }), referenceRollouts: 100 };
const record = { plan, runs: studyUnits(plan).flatMap((unit) => runUnit(plan, unit)) };
const summary = summariseStudy(record);
const timing = { workers: 2, units: 6, rollouts: 2e6, wallSeconds: 0.03, threadSeconds: 0.05 };

let folder = '';
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hone-study-files-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

async function readRows(name: string): Promise<Record<string, unknown>[]> {
  return parquetReadObjects({ file: await asyncBufferFromFile(join(folder, name)) });
}

describe('writeStudyFiles', () => {
  it('writes one row a run and effort, as the record has it', async () => {
    await writeStudyFiles(folder, { kind: 'sampled', record, summary, timing });
    const rows = await readRows('runs.parquet');
    expect(rows).toHaveLength(3 * record.runs.length);
    for (const [index, run] of record.runs.entries()) {
      const arm = plan.arms[run.arm]!;
      const problem = toyProblem(run.problem);
      const [q, ...rest] = run.values.slice(-7);
      for (const effort of [0, 1, 2]) {
        const cost = rest[effort]!;
        const success = successRate({ ...problem, q: q!, cost });
        expect(rows[3 * index + effort]).toEqual({
          problem: run.problem,
          pGood: problem.pGood,
          pBad: problem.pBad,
          seed: run.seed,
          arm: run.arm,
          rule: arm.rule.kind,
          alpha: arm.rule.kind === 'steered' ? arm.rule.alpha : null,
          slopeFactor: arm.slopeFactor,
          effort: ['low', 'medium', 'high'][effort],
          cost,
          success,
          saving: 1 - cost / [2, 6, 15][effort]!,
          gain: success / toyStart(problem).successes[effort]! - 1,
          price: rest[3 + effort],
          startPrice: toyStart(problem).prices[effort]! * arm.slopeFactor,
          q,
          capped: 0,
          referenceSuccess: run.references[effort]!.success,
          referenceCost: run.references[effort]!.cost,
        });
      }
    }
  });

  it('writes one row a run and recorded step', async () => {
    await writeStudyFiles(folder, { kind: 'sampled', record, summary, timing });
    const rows = await readRows('trajectories.parquet');
    const steps = recordedSteps(plan);
    expect(rows).toHaveLength(steps.length * record.runs.length);
    const run = record.runs[4]!;
    const row = rows[4 * steps.length + 7]!;
    expect([row['problem'], row['seed'], row['arm'], row['step']]).toEqual([run.problem, run.seed, run.arm, steps[7]]);
    const values = [row['q'], row['costLow'], row['costMedium'], row['costHigh'], row['priceLow']];
    expect(values).toEqual([...run.values.subarray(7 * 7, 7 * 7 + 5)]);
  });

  it('depends on no clock but in timing.json and the page', async () => {
    const stable = ['results.json', 'runs.parquet', 'trajectories.parquet'];
    const names = await writeStudyFiles(folder, { kind: 'sampled', record, summary, timing });
    const first = stable.map((name) => readFileSync(join(folder, name)));
    await writeStudyFiles(folder, { kind: 'sampled', record, summary, timing: { ...timing, wallSeconds: 99 } });
    expect(stable.map((name) => readFileSync(join(folder, name)))).toEqual(first);
    expect(names).toEqual([...stable, 'timing.json', 'report.html']);
    expect(readFileSync(join(folder, 'report.html'), 'utf8')).toContain('99.0 s on 2 workers');
    expect(readTiming(folder)).toEqual({ ...timing, wallSeconds: 99 });
    expect(nanosecondsPerRollout(timing)).toBeCloseTo(25, 9);

    const results = JSON.parse(first[0]!.toString()) as Record<string, unknown>;
    expect(results).toMatchObject({ format: 'hone-frontier-results-1', kind: 'sampled', runs: record.runs.length });
    // 3 problems, 20 steps of 30; the first seed runs 14 arms, the second 6; 3 x 100 for references of each unit.
    expect(results['rollouts']).toEqual({ training: 3 * 20 * 30 * 20, reference: 6 * 300 });
    expect(results['arms']).toHaveLength(14);
  });

  it('has no timing for what was never run', async () => {
    expect(await writeStudyFiles(folder, { kind: 'mean-field', record, summary, timing: undefined })).not.toContain(
      'timing.json',
    );
    expect(readTiming(folder)).toBeUndefined();
  });
});
