/** The pages in docs/ name what is there: every metric of a step is explained, and every option named exists. */
import { readFileSync } from 'node:fs';

import { expect, it } from 'vitest';
import { z } from 'zod';

import { stepMetricsSchema } from '../src/eval/events.ts';
import { runConfigSchema } from '../src/run/config.ts';

const page = (name: string): string => readFileSync(new URL(`../docs/${name}.md`, import.meta.url), 'utf8');
const quoted = (text: string): string[] => [...text.matchAll(/`([^`\n]+)`/gu)].map(([, code]) => code ?? '');

it('every metric of a step has its row, and no row names another', () => {
  const named = quoted(page('how-it-works')).filter((code) =>
    /^(rollout|policy|reward|frontier|train|speed|sync)\/\w+$/u.test(code),
  );
  expect([...new Set(named)].toSorted()).toEqual(Object.keys(stepMetricsSchema.shape).toSorted());
});

it.each(['how-it-works', 'train-your-own'])('every config option that docs/%s.md names exists', (name) => {
  // z.toJSONSchema gives plain JSON of this shape.
  const { properties } = z.toJSONSchema(runConfigSchema, { io: 'input' }) as {
    properties: Record<string, { properties?: Record<string, unknown> }>;
  };
  const named = quoted(page(name))
    .map((code) => /^([a-z]+)\.([a-zA-Z]+)(?:: .+)?$/u.exec(code))
    .filter((match) => match !== null)
    // `baseline.json` is a file.
    .filter(([, section, key]) => key !== 'json' && properties[section ?? '']?.properties !== undefined);
  expect(named.length).toBeGreaterThan(0);
  for (const [code, section = '', key = ''] of named)
    expect(Object.keys(properties[section]?.properties ?? {}), code).toContain(key);
});
