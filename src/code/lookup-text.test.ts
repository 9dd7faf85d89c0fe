import { expect, test } from 'vitest';

import type { Declaration } from './declarations.ts';
import { argumentsOnLine, lookupText } from './lookup-text.ts';

const declare = (rest: Partial<Declaration>): Declaration => ({
  name: 'copy',
  file: 'a.js',
  line: 1,
  kind: 'function',
  isAsync: false,
  parameters: [],
  ...rest,
});

test('a called function shows each argument beside its parameter', () => {
  const copy = declare({ isAsync: true, parameters: ['source', 'target', 'options'] });
  expect(lookupText('copy', copy, 'await copy(this.target, paths.source)')).toBe(
    'async function copy(source = target, target = source, options)',
  );
  expect(lookupText('copy', copy, 'const f = copy')).toBe('async function copy(source, target, options)');
});

test('a constant shows its value beside the literal of the line', () => {
  const limit = declare({ name: 'LIMIT', kind: 'constant', value: '100' });
  expect(lookupText('LIMIT', limit, 'if (size > 10 /* LIMIT */) {')).toBe('const LIMIT = 100 here 10');
  const timeout = declare({ name: 'timeout', kind: 'property', value: '5000' });
  expect(lookupText('timeout', timeout, 'this.timeout = options.timeout ?? 50000')).toBe(
    'timeout default 5000 here 50000',
  );
});

test('properties name their holder; built-ins and unknown names are told apart', () => {
  expect(lookupText('size', declare({ name: 'size', kind: 'property', container: 'Cache' }), 'this.size')).toBe(
    'property size of Cache',
  );
  expect(lookupText('push', undefined, 'list.push(x)')).toBe('built-in push');
  expect(lookupText('sizeCount', undefined, 'this.sizeCount')).toBe('sizeCount is not declared in this package');
});

test('arguments are split outside brackets and quotes', () => {
  expect(argumentsOnLine("run(a.b, 'x, y', [1, 2], () => f(1, 2), -3)", 'run')).toEqual([
    'b',
    "'x, y'",
    '...',
    '...',
    '-3',
  ]);
  expect(argumentsOnLine('rerun(a)', 'run')).toBeUndefined();
  expect(argumentsOnLine('run(a, {', 'run')).toEqual(['a', '...']);
});
