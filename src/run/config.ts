/**
 * A run's config: one strict schema, every field with its unit and default. Unknown keys and impossible mixes are errors
 * at start, all of them at once, each with the key and the cure. The resolved config is what the run folder stores.
 */
import type { z } from 'zod';

import { impossibleMixes, unreadOptions } from './config-checks.ts';
import { runConfigFields } from './config-fields.ts';
import { knownKeys } from './config-options.ts';
import { HoneError } from '../domain/errors.ts';
import { schemaProblem } from '../domain/schema-problem.ts';

export const runConfigSchema = runConfigFields.superRefine((config, context) => {
  for (const { path, message } of impossibleMixes(config))
    context.addIssue({ code: 'custom', path: [...path], message });
});

/** As written in hone.config.ts: every field with a default may be left out. */
export type RunConfigInput = z.input<typeof runConfigSchema>;
export type RunConfig = z.output<typeof runConfigSchema> & { readonly schedule: { readonly maxStaleness: number } };

/** Identity, for editor completion in hone.config.ts. */
export function defineRun(config: RunConfigInput): RunConfigInput {
  return config;
}

/** Validates the whole config and reports every problem at once. `source` names where it came from. */
export function resolveConfig(input: unknown, source: string): RunConfig {
  const parsed = runConfigSchema.safeParse(input);
  if (!parsed.success) {
    const problems = parsed.error.issues.map((issue) => {
      const path = issue.path.join('.');
      if (issue.code === 'unrecognized_keys')
        return issue.keys
          .map((key) => `${path === '' ? key : `${path}.${key}`} is not a known option${suggestion(key, issue.path)}`)
          .join('; ');
      return `${path === '' ? 'the config' : path} ${schemaProblem(issue, input)}`;
    });
    throw new HoneError(
      'invalid-config',
      `${source} has ${problems.length} problem${problems.length > 1 ? 's' : ''}: ${problems.join('; ')}.`,
      { cure: 'Mend these keys; `hone config` lists every option with its unit and default.' },
    );
  }
  const config = parsed.data;
  const unread = unreadOptions(config, runConfigFields.parse({ name: 'defaults', model: 'defaults' }));
  if (unread.length > 0)
    throw new HoneError('invalid-config', `${source} sets what nothing would read: ${unread.join('; ')}.`, {
      cure: 'Leave these keys out.',
    });
  return {
    ...config,
    schedule: {
      ...config.schedule,
      maxStaleness: config.schedule.maxStaleness ?? (config.schedule.mode === 'async' ? 1 : 0),
    },
  };
}

/** The known sibling nearest in spelling, if it is near enough to be a typing slip. */
function suggestion(key: string, path: readonly PropertyKey[]): string {
  const near = knownKeys(runConfigSchema, path)
    .map((name) => ({ name, distance: editDistance(key.toLowerCase(), name.toLowerCase()) }))
    .sort((a, b) => a.distance - b.distance)[0];
  return near !== undefined && near.distance <= Math.max(2, key.length / 3) ? ` (did you mean ${near.name}?)` : '';
}

function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next.push(
        Math.min((row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1, (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1)),
      );
    row = next;
  }
  return row[b.length] ?? 0;
}
