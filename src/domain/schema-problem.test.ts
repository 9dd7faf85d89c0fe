/** The value that was found, what it must be, and a schema's own words where it has some. */
import { expect, it } from 'vitest';
import { z } from 'zod';

import { schemaProblem } from './schema-problem.ts';

it.each([
  [z.number().max(1), 1.5, 'is 1.5, must be at most 1'],
  [z.number().min(0), -1, 'is -1, must be at least 0'],
  [z.number().gt(1), 1, 'is 1, must be above 1'],
  [z.number().lt(1), 1, 'is 1, must be below 1'],
  [z.int(), 0.5, 'is 0.5, must be a whole number'],
  [z.number(), undefined, 'is missing, must be a number'],
  [z.number(), Number.NaN, 'is NaN, must be a number'],
  [z.string(), 3, 'is 3, must be a string'],
  [z.array(z.number()), 'x', 'is "x", must be an array'],
  [z.array(z.number()).min(1), [], 'is an empty list, must be a list of at least 1'],
  [z.string().min(2), 'x', 'is "x", must be a text of at least 2 characters'],
  [z.enum(['on', 'off']), 'of', 'is "of", must be "on" or "off"'],
  [z.literal('check'), {}, 'is an object, must be "check"'],
  [z.union([z.literal('measured'), z.number()]), 'm', 'is "m", must be "measured" or a number'],
  [z.string().regex(/^a$/u, 'must be a'), 'b', 'is "b", must be a'],
  [z.number().refine(() => false, 'is odd, and nobody wants it'), 1, 'is odd, and nobody wants it'],
])('%# %j', (schema, value, problem) => {
  const input = { at: [value] };
  const { error } = z.object({ at: z.array(z.unknown().pipe(schema)) }).safeParse(input);
  expect(error?.issues.map((issue) => schemaProblem(issue, input))).toEqual([problem]);
});

it('a choice by its kind tells the kinds', () => {
  const schema = z.discriminatedUnion('kind', [
    z.object({ kind: z.literal('cost') }),
    z.object({ kind: z.literal('frontier') }),
  ]);
  const input = { kind: 'frontiers' };
  expect(schema.safeParse(input).error?.issues.map((issue) => schemaProblem(issue, input))).toEqual([
    'is "frontiers", must be "cost" or "frontier"',
  ]);
});

it('keys that a schema does not know are named', () => {
  const input = { a: 1, b: 2, c: 3 };
  const { error } = z.strictObject({ a: z.number() }).safeParse(input);
  expect(error?.issues.map((issue) => schemaProblem(issue, input))).toEqual(['has b, c, which nothing reads']);
});

it('the name of a record entry is told by its own rule', () => {
  const input = { Low: 1 };
  const { error } = z.record(z.string().regex(/^[a-z]+$/u, 'lower-case letters only'), z.number()).safeParse(input);
  expect(error?.issues.map((issue) => schemaProblem(issue, input))).toEqual(['lower-case letters only']);
});
