/** The journal: bit for bit, whole lines only, one plan a folder. */
import { constants } from 'node:buffer';
import {
  appendFileSync,
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { appendUnit, createStudyFolder, resumeStudyFolder, rewriteUnits } from './study-journal.ts';
import { createStudyPlan } from './study-plan.ts';
import type { UnitRuns } from './study-worker.ts';
import { runUnit, studyUnits } from './toy-run.ts';

const plan = { ...createStudyPlan({ problems: 3, seeds: 2, steps: 10, batch: 30 }), referenceRollouts: 100 };
const study = { kind: 'sampled', plan } as const;
const units = studyUnits(plan).map((unit) => ({ unit, runs: runUnit(plan, unit) }));

let folder = '';
beforeEach(() => {
  folder = join(mkdtempSync(join(tmpdir(), 'hone-journal-')), 'study');
});
afterEach(() => rmSync(join(folder, '..'), { recursive: true, force: true }));

describe('a study folder', () => {
  it('gives back what was finished, bit for bit', () => {
    createStudyFolder(folder, study);
    expect(resumeStudyFolder(folder, study)).toEqual([]);
    for (const unit of units.slice(2)) appendUnit(folder, unit);
    expect(resumeStudyFolder(folder, study)).toEqual(units.slice(2));
  });

  it('leaves out a line that was cut or damaged, and appends whole lines after it', () => {
    createStudyFolder(folder, study);
    const path = join(folder, 'units.jsonl');
    for (const unit of units.slice(0, 3)) appendUnit(folder, unit);
    truncateSync(path, readFileSync(path).length - 40);
    expect(resumeStudyFolder(folder, study)).toEqual(units.slice(0, 2));
    appendFileSync(path, '{"problem":1}\nnot JSON\n');
    appendFileSync(
      path,
      readFileSync(path, 'utf8')
        .split('\n')[0]!
        .replace(/"values":"[^"]{12}/u, '"values":"'),
    );
    appendFileSync(path, '\n');
    appendUnit(folder, units[4]!);
    expect(resumeStudyFolder(folder, study)).toEqual([units[0], units[1], units[4]]);
  });

  it('reads the same whichever unit ended first, once it is rewritten in order', () => {
    createStudyFolder(folder, study);
    for (const unit of units) appendUnit(folder, unit);
    const inOrder = readFileSync(join(folder, 'units.jsonl'));
    rmSync(join(folder, 'units.jsonl'));
    for (const unit of units.toReversed()) appendUnit(folder, unit);
    rewriteUnits(folder, units);
    expect(readFileSync(join(folder, 'units.jsonl'))).toEqual(inOrder);
  });

  it('refuses a folder that holds a study, one that holds none, and one with a broken plan', () => {
    expect(() => resumeStudyFolder(folder, study)).toThrow(/holds no study to resume/u);
    createStudyFolder(folder, study);
    expect(() => createStudyFolder(folder, study)).toThrow(/already holds a sampled study/u);
    writeFileSync(join(folder, 'plan.json'), '{"format":"other"}');
    expect(() => resumeStudyFolder(folder, study)).toThrow(/plan\.json is no plan of a study/u);
  });

  it('lets a mean-field study take the place of another one, and of no other kind', () => {
    createStudyFolder(folder, { kind: 'mean-field', plan });
    createStudyFolder(folder, { kind: 'mean-field', plan: { ...plan, steps: 11 } });
    expect(readFileSync(join(folder, 'plan.json'), 'utf8')).toContain('"steps": 11');
    expect(() => createStudyFolder(folder, study)).toThrow(
      expect.objectContaining({
        message: expect.stringContaining('already holds a mean-field study'),
        cure: 'Choose another --out, or remove the folder.',
      }),
    );
    const sampled = join(folder, 'sampled');
    createStudyFolder(sampled, study);
    expect(() => createStudyFolder(sampled, { kind: 'mean-field', plan })).toThrow(
      expect.objectContaining({ cure: 'Choose another --out, or remove the folder.' }),
    );
  });

  it('writes and reads more than a string can hold', () => {
    createStudyFolder(folder, study);
    const [unit] = units;
    const path = join(folder, 'units.jsonl');
    appendUnit(folder, unit!);
    const lineBytes = statSync(path).size;
    // Holes with an end of line here and there: no disk is filled. Whole lines stand before and after.
    const lineEvery = 16 << 20;
    const file = openSync(path, 'r+');
    let end = lineBytes;
    while (end <= constants.MAX_STRING_LENGTH) writeSync(file, '\n', (end += lineEvery) - 1);
    closeSync(file);
    appendUnit(folder, units[1]!);
    const sizeBefore = statSync(path).size;
    appendFileSync(path, '{"problem":');
    expect(resumeStudyFolder(folder, study)).toEqual([unit, units[1]]);
    expect(statSync(path).size).toBe(sizeBefore);

    let taken = 0;
    const many = function* (): Generator<UnitRuns> {
      for (; taken < 1000; taken++) yield unit!;
    };
    rewriteUnits(folder, many());
    expect(taken).toBe(1000);
    expect(statSync(path).size).toBe(1000 * lineBytes);
    expect(existsSync(`${path}.tmp`)).toBe(false);
  });

  it('refuses another plan and names what differs, few at a time', () => {
    createStudyFolder(folder, study);
    const resume = (changes: object) => () => resumeStudyFolder(folder, { ...study, plan: { ...plan, ...changes } });
    expect(resume({ batch: 31, seed: 4 })).toThrow(/another plan: seed was 1, is now 4; batch was 30, is now 31\.$/u);
    expect(resume({ problems: [1] })).toThrow(/problems had 3 entries, now has 1\.$/u);
    expect(resume({ arms: plan.arms.map((arm) => ({ ...arm, seeds: 7 })) })).toThrow(
      /arms\.0\.seeds was 2, is now 7; .*; and 10 more\.$/u,
    );
    expect(() => resumeStudyFolder(folder, { ...study, kind: 'mean-field' })).toThrow(/kind was "sampled"/u);
  });
});
