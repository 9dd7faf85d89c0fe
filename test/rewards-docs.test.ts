/** docs/rewards.md can be followed: its configs are accepted as they stand, its pictures and links are there. */
import { existsSync, readFileSync } from 'node:fs';
import { runInNewContext } from 'node:vm';

import { describe, expect, it } from 'vitest';

import * as hone from '../src/index.ts';
import { resolveConfig } from '../src/run/config.ts';

const folder = new URL('../docs/', import.meta.url);
const text = readFileSync(new URL('rewards.md', folder), 'utf8');
const snippets = [...text.matchAll(/```ts\n(.*?)```/gsu)].map(([, code = '']) => code);

describe('docs/rewards.md', () => {
  it('shows a config for the frontier, latency, budgets and phases', () => {
    expect(snippets).toHaveLength(4);
  });

  it.each(snippets)('is accepted: %s', (code) => {
    // Made of plain values: a snippet is the inside of an object literal.
    const fragment = JSON.parse(JSON.stringify(runInNewContext(`({${code}})`))) as Record<string, unknown>;
    const config = resolveConfig({ name: 'docs', model: 'models/nano', ...fragment }, 'the snippet');
    expect(config.reward.terms.length).toBeGreaterThan(0);
  });

  it('shows code that runs, and names functions that are exported', () => {
    const [, code = ''] = /```js\n(.*?)```/su.exec(text) ?? [];
    const printed: unknown[] = [];
    const console = { log: (value: unknown): number => printed.push(value) };
    runInNewContext(code.replace(/^import (\{.*\}) from 'hone';/u, 'const $1 = hone;'), { hone, console });
    // A gap of (0.119 - 0.02) / 2 at the rate 0.02, upwards.
    expect(printed).toEqual([expect.closeTo(0.06 * Math.exp((0.02 * (0.05 / 0.42 - 0.02)) / 2), 12)]);
    const section = text.slice(text.indexOf('## From your own code'), text.indexOf('Formulas, with their sources'));
    const named = [...section.matchAll(/`([a-z]\w+)`/gu)].map(([, name = '']) => name);
    expect(named.length).toBeGreaterThan(10);
    expect(named.filter((name) => !(name in hone))).toEqual([]);
  });

  it('links to what is there', () => {
    const targets = [...text.matchAll(/\]\(([^)#]+)(?:#[^)]*)?\)/gu)].map(([, target = '']) => target);
    expect(targets.length).toBeGreaterThan(3);
    expect(targets.filter((target) => !/^https?:/u.test(target) && !existsSync(new URL(target, folder)))).toEqual([]);
  });
});
