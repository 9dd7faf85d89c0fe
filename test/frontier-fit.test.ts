/**
 * `hone frontier fit` and `hone frontier simulate` as a user starts them: from evaluations to a page and frontier.json, from
 * that to landings; and what they say when they cannot go on. In Chromium, where there is one, the pages fit their window.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { stoppingEvaluations, toyEvaluations } from '../src/frontier/evaluations.fixture.ts';
import { parseFrontierFile } from '../src/frontier/frontier-file.ts';
import { chromiumPath, launchChromium, strayShapes } from './browser.fixture.ts';
import { runHone } from './hone-process.fixture.ts';
import type { HoneResult } from './hone-process.fixture.ts';

let folder: string;
const hone = (...args: string[]): Promise<HoneResult> => runHone(['frontier', ...args], { cwd: folder });
const read = (name: string): string => readFileSync(join(folder, name), 'utf8');

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'hone-frontier-'));
  writeFileSync(join(folder, 'toy.jsonl'), toyEvaluations(44, { tasks: 150, rolloutsPerTask: 3, seed: 6 }));
  writeFileSync(join(folder, 'stopping.jsonl'), stoppingEvaluations({ tasks: 60, rolloutsPerTask: 2, seed: 6 }));
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe('hone frontier fit, then simulate', () => {
  it('goes from evaluations to landings, and writes what it says', async () => {
    const fit = await hone('fit', 'toy.jsonl', '--cost', 'turns=0.01', '--out', 'fit');
    expect(fit).toMatchObject({ code: 0 });
    expect(fit.stdout).toContain('Frontier of toy.jsonl: 3 efforts, 1,350 rollouts');
    expect(fit.stderr).toContain('written to fit/frontier.json, fit/fit.html');
    const [, snippet = ''] = fit.stdout.split(
      /For hone\.config\.ts, inside reward: \{ terms: \[ \.\.\. \] \};[^{]*:\n(?=\{)/u,
    );
    const file = parseFrontierFile(JSON.parse(read('fit/frontier.json')), 'frontier.json');
    expect(file.efforts.map(({ startingPrice }) => startingPrice?.from)).toEqual(Array(3).fill('across-efforts'));
    expect(JSON.parse(snippet)).toEqual(file.rewardTerm);
    expect(file.rewardTerm).toMatchObject({ kind: 'frontier', costs: [{ weights: { turns: 0.01 } }] });

    const run = await hone(
      'simulate',
      'fit/frontier.json',
      '--alphas',
      '0,1',
      '--improve',
      '25',
      '--steps',
      '400',
      '--out',
      'simulated',
    );
    expect(run).toMatchObject({ code: 0 });
    expect(run.stdout).toMatch(/α = 1 +0\.0 \/ \+25\.0 +0\.0 \/ \+25\.0 +0\.0 \/ \+25\.0/u);
    expect(run.stdout).toContain('Without improvement every α stays where it started');
    expect(read('simulated/simulation.html')).toContain('Where each α would land');

    const json = await hone(
      'simulate',
      'fit/frontier.json',
      '--improve',
      '0',
      '--law',
      'failures',
      '--json',
      '--out',
      'nothing',
    );
    // Nothing improves: nothing moves, at any alpha.
    const { efforts } = JSON.parse(json.stdout) as { efforts: { steered: { landing: { costSaving: number } }[] }[] };
    expect(efforts).toHaveLength(3);
    for (const { steered } of efforts)
      for (const { landing } of steered) expect(Math.abs(landing.costSaving)).toBeLessThan(1e-9);
  });

  it('gives the same bytes for the same seed', async () => {
    for (const out of ['first', 'second'])
      expect(
        await hone('fit', 'stopping.jsonl', '--cost', 'usd', '--seed', '9', '--resamples', '300', '--out', out),
      ).toMatchObject({ code: 0 });
    expect(read('second/frontier.json')).toBe(read('first/frontier.json'));
    expect(read('second/fit.html')).toBe(read('first/fit.html'));
  });

  it('refuses a start where no slope is sure, after writing the page', async () => {
    const lines = toyEvaluations(44, { tasks: 12, rolloutsPerTask: 2, seed: 2 })
      .trim()
      .split('\n')
      .map((line, index) => JSON.stringify({ ...JSON.parse(line), success: (index * 7) % 5 < 2 }));
    writeFileSync(join(folder, 'flat.jsonl'), lines.join('\n'));
    const result = await hone('fit', 'flat.jsonl', '--cost', 'turns', '--out', 'flat');
    expect(result.code).toBe(1);
    expect(result.stderr).toMatch(
      /hone: No starting price: at effort \w+ \(12 tasks\) .* Evaluate .*give the starting price as a number/u,
    );
    expect(read('flat/fit.html')).toContain('No starting price');
  });

  it('fits an effort that spends nothing beside others, and simulates the others', async () => {
    const free = Array.from({ length: 40 }, (_, task) =>
      JSON.stringify({ task: `t${task}`, effort: 'none', success: task % 9 === 0, cost: { turns: 0, tokens: 0 } }),
    );
    writeFileSync(join(folder, 'free.jsonl'), `${read('toy.jsonl')}${free.join('\n')}\n`);
    const fit = await hone('fit', 'free.jsonl', '--cost', 'turns', '--resamples', '300', '--out', 'free');
    expect(fit).toMatchObject({ code: 0 });
    expect(fit.stdout.replaceAll(/\s+/gu, ' ')).toContain('Nothing is spent at effort none (c0 = 0)');
    const run = await hone('simulate', 'free/frontier.json', '--steps', '50', '--json', '--out', 'free');
    expect((JSON.parse(run.stdout) as { efforts: { effort: string }[] }).efforts.map(({ effort }) => effort)).toEqual([
      'low',
      'medium',
      'high',
    ]);
    expect(read('free/simulation.html')).toContain('Nothing is spent at effort none');
  });

  it('says where a fit has no price to start from', async () => {
    const file = parseFrontierFile(JSON.parse(read('fit/frontier.json')), 'frontier.json');
    const [low, ...others] = file.efforts;
    writeFileSync(
      join(folder, 'unpriced.json'),
      JSON.stringify({ ...file, efforts: [{ ...low, startingPrice: null }, ...others] }),
    );
    const sentence = 'The fit has no starting price for effort low, as no slope there lies above 0 for sure';
    const run = await hone('simulate', 'unpriced.json', '--steps', '50', '--out', 'unpriced');
    expect(run.stdout.replaceAll(/\s+/gu, ' ')).toContain(sentence);
    const given = await hone(
      'simulate',
      'unpriced.json',
      '--steps',
      '50',
      '--start-price',
      'low=0.1',
      '--out',
      'given',
    );
    expect(given).toMatchObject({ code: 0 });
    expect(given.stdout).not.toContain('The fit has no starting price');
  });

  it('takes the controller of a config, and refuses a config that steers nothing', async () => {
    const config = (terms: unknown[]): string =>
      JSON.stringify({ name: 'mine', model: 'models/nano', baseline: { rolloutsPerTask: 4 }, reward: { terms } });
    const controller = { rate: 0.15, proportional: 0.8, deadZone: 2 };
    const term = { kind: 'frontier', alpha: 0.5, costs: [{ weights: { turns: 1 } }], controller };
    writeFileSync(join(folder, 'steered.json'), config([term]));
    writeFileSync(join(folder, 'unsteered.json'), config([]));
    writeFileSync(join(folder, 'curve.csv'), 'effort,cost,success\nlow,1,0.3\nhigh,4,0.6\n');
    const simulate = (name: string, ...rest: string[]): Promise<HoneResult> =>
      hone('simulate', 'curve.csv', '--config', name, '--steps', '50', '--out', 'controlled', ...rest);
    const run = await simulate('steered.json');
    expect(run).toMatchObject({ code: 0 });
    expect(run.stdout.replaceAll(/\s+/gu, ' ')).toContain(
      'the controller of steered.json (rate 0.15, proportional 0.8)',
    );
    const { settings } = JSON.parse((await simulate('steered.json', '--json')).stdout) as { settings: object };
    expect(settings).toMatchObject({
      controller: { rate: 0.15, proportional: 0.8, slewLimit: 0.05, deadZone: 0 },
      controllerFrom: 'steered.json',
    });
    expect(await simulate('unsteered.json')).toMatchObject({
      code: 1,
      stderr:
        'hone: unsteered.json has no frontier term in reward.terms: its run would steer no price. Name a config with a term { kind: "frontier", ... }, or leave --config out for the default controller.\n',
    });
  });

  it.each([
    [['fit', 'none.jsonl'], 'hone: none.jsonl could not be read'],
    [
      ['fit', 'toy.jsonl'],
      'toy.jsonl:1 has a cost of counts (tokens, turns), and nothing says what they are worth. Price them, such as --cost',
    ],
    [['fit', 'toy.jsonl', '--cost', 'turns=x'], 'hone: --cost has the part "turns=x", not a price of a count.'],
    [
      ['fit', 'toy.jsonl', '--cost', 'turns', '--resamples', '5'],
      'hone: --resamples is 5, not a whole number from 100',
    ],
    [
      ['simulate', 'toy.jsonl'],
      'toy.jsonl:1 is a single rollout, of task "t0". Run hone frontier fit on the evaluations first',
    ],
    [
      ['simulate', 'points.csv', '--alphas', '0,2'],
      'hone: --alphas is 0,2, not a list of numbers from 0 to 1: 2 is none. Give numbers with commas between them, such as --alphas 0,0.5,1.',
    ],
    [['simulate', 'points.csv', '--alphas', '0,,1'], 'an empty entry is none.'],
    [
      ['simulate', 'points.csv', '--alphas', '0,0.5,0.50'],
      'hone: --alphas is 0,0.5,0.50: it has 0.5 twice. Name each number once.',
    ],
    [['simulate', 'points.csv', '--improve', '-1'], 'hone: --improve is -1, not a list of numbers from 0 to 1000.'],
    [
      ['simulate', 'points.csv', '--improve', '100', '--law', 'cost'],
      'hone: An improvement of 100 % by the law cost is not from 0 to 99.',
    ],
    [
      ['simulate', 'points.csv', '--start-price', 'medium=1'],
      'hone: --start-price names the effort "medium", which the curve does not have. Its efforts are low, high.',
    ],
    [
      ['simulate', 'points.csv', '--start-price', 'low=1,low=2'],
      'hone: --start-price names the effort low twice. Give each effort one price.',
    ],
    [
      ['simulate', 'points.csv', '--slope-error', '1'],
      'hone: --slope-error is 1, not a number above 1 and at most 1000. Give a number such as --slope-error 3.',
    ],
    [
      ['simulate', 'falling.csv'],
      'hone: Success falls from 0.6 at effort low (cost 1) to 0.3 at effort high (cost 4), and the curve, which never falls, is flat at effort low, which leaves no price to start from. More cost',
    ],
    [
      ['simulate', 'points.csv', '--steps', '20', '--out', 'toy.jsonl'],
      'toy.jsonl is a file, not a folder. Name a folder that you can write to with --out.',
    ],
    // Node's recursive mkdir would never return there.
    [
      ['fit', 'toy.jsonl', '--cost', 'turns', '--resamples', '100', '--out', '/proc/nope'],
      'hone: Results could not be written to /proc/nope: ',
    ],
    [['simulate', 'points.csv', '--out', ''], 'hone: --out is empty, not a path.'],
    [['fit', 'toy.jsonl', '--cost', 'turns', '--svg', ' '], 'hone: --svg is empty, not a path.'],
    [
      ['fit', 'none.jsonl', '--svg', 'points.csv/one.svg'],
      'hone: The picture could not be written to points.csv/one.svg',
    ],
  ])('says of %j what is wrong', async (args, message) => {
    writeFileSync(join(folder, 'points.csv'), 'effort,cost,success\nlow,1,0.3\nhigh,4,0.6\n');
    writeFileSync(join(folder, 'falling.csv'), 'effort,cost,success\nlow,1,0.6\nhigh,4,0.3\n');
    const result = await hone(...args);
    expect(result.code).toBe(1);
    expect(result.stderr).toContain(message);
    expect(result.stderr).not.toContain('    at ');
  });
});

describe.skipIf(chromiumPath === undefined)('the pages in Chromium', () => {
  it('fit 1280 and 390 pixels, light and dark, without script or network', async () => {
    await hone('fit', 'toy.jsonl', '--cost', 'turns=0.01', '--out', 'page', '--resamples', '200');
    await hone('simulate', 'page/frontier.json', '--out', 'page', '--improve', '25', '--steps', '200');
    const browser = await launchChromium();
    try {
      for (const name of ['fit.html', 'simulation.html'])
        for (const width of [1280, 390])
          for (const colorScheme of ['light', 'dark'] as const) {
            const context = await browser.newContext({
              viewport: { width, height: 900 },
              colorScheme,
              javaScriptEnabled: false,
            });
            const page = await context.newPage();
            const requests: string[] = [];
            page.on('request', (request) => requests.push(request.url()));
            const address = pathToFileURL(join(folder, 'page', name)).href;
            await page.goto(address);
            expect(requests).toEqual([address]);
            expect(await page.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(width);
            expect(await strayShapes(page)).toEqual([]);
            await context.close();
          }
    } finally {
      await browser.close();
    }
  });
});
